"""Driving: a car drives to the goal; it should not go fast through puddles or near pedestrians."""

from sidestep.models.domain import Domain

DOMAIN = Domain(
    name="driving",
    description="a car drives to the goal, slow or fast",
    package=__name__,
    options=("map", "horizon"),
    endings=(".nav",),
    limits="sidestep limits driving",
)
