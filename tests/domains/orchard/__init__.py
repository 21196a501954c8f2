"""A domain that is not in the package: a robot crosses an orchard and should not tread on seedlings or in mud."""

from sidestep.models.domain import Domain

DOMAIN = Domain(
    name="orchard",
    description="a robot walks through an orchard to the gate",
    package=__name__,
    options=("map", "horizon"),
    endings=(".orchard",),
    limits="sidestep limits orchard",
)
