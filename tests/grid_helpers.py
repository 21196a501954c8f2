"""Two small maps, and the best that can be done on a map without side effects."""

from sidestep.finite.occupancy import Bound, occupancy_lp
from sidestep.labels.rules import load_rule
from sidestep.reproduce.exact import PENALTY, side_effects

AROUND = "SB.F..G\n..x.x..\n.......\n"
PUDDLES = "S.@@.G\n.X..X.\n......\n"


def safe_optimum(model, discount=1.0):
    penalty = side_effects(model, load_rule(None, model))[PENALTY]
    return occupancy_lp(model.finite, [Bound(penalty, 0.0, PENALTY)], discount=discount)
