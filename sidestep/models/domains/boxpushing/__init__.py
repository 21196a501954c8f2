"""Boxpushing: a box is fetched and brought to a goal; loaded, fragile ground and holes should be avoided."""

from sidestep.models.domain import Domain

DOMAIN = Domain(
    name="boxpushing",
    description="a robot fetches a box and takes it to the goal on a slippery grid",
    package=__name__,
    options=("map", "horizon"),
    endings=(".bp",),
    limits="sidestep limits boxpushing",
)
