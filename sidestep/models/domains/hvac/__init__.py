"""HVAC: connected rooms that are heated, one of which is in truth a server room and must stay cool."""

from sidestep.models.domain import Domain

DOMAIN = Domain(
    name="hvac",
    description="heated air keeps connected rooms comfortable",
    package=__name__,
    limits="python benchmarks/bounds.py",
    options=("rooms", "horizon", "relaxed"),
)
