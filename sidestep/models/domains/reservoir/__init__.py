"""Reservoir: a chain of reservoirs whose levels should also stay balanced, which the reward does not ask for."""

from sidestep.models.domain import Domain

DOMAIN = Domain(
    name="reservoir",
    description="gates pass water down a chain of reservoirs",
    package=__name__,
    limits="python benchmarks/bounds.py",
    options=("reservoirs", "horizon", "relaxed"),
)
