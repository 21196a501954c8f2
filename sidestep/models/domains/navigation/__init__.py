"""Navigation: a point on the plane, two zones that slow it down, and a dirty zone that the reward does not know."""

from sidestep.models.domain import Domain

DOMAIN = Domain(
    name="navigation",
    description="a robot crosses the plane to a goal past zones that slow it down",
    package=__name__,
    options=("horizon", "relaxed"),
    limits="python benchmarks/frontier.py",
)
