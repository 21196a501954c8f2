"""The model is the text reservoir.rddl, with an instance that is built for the number of reservoirs."""

import numpy as np

from sidestep.core.model import Model
from sidestep.models.domains.reservoir import DOMAIN
from sidestep.models.options import Options
from sidestep.models.rddl_domain import instance_text, rddl_model

# The twenty reservoirs of the RDDL benchmark: first level, rain's shape and scale, capacity, lower and upper end of
# the wanted range. A longer chain repeats them.
RESERVOIRS = (
    (75.0, 1.881, 2.541, 606.444, 86.013, 514.188),
    (50.0, 2.178, 9.64, 632.914, 78.083, 507.888),
    (50.0, 1.801, 2.702, 368.057, 39.538, 282.018),
    (50.0, 1.178, 8.918, 497.138, 59.667, 404.645),
    (50.0, 2.894, 9.055, 381.973, 55.168, 297.925),
    (50.0, 1.65, 8.654, 749.593, 105.573, 575.258),
    (50.0, 1.202, 7.645, 718.57, 105.121, 542.385),
    (50.0, 2.087, 7.836, 500.443, 64.581, 410.978),
    (50.0, 1.813, 6.601, 989.571, 143.022, 776.147),
    (50.0, 1.886, 7.971, 455.107, 50.318, 385.01),
    (50.0, 2.066, 4.21, 669.2, 68.722, 563.606),
    (50.0, 1.15, 3.704, 646.68, 87.225, 531.631),
    (50.0, 1.42, 9.119, 514.378, 67.854, 407.916),
    (50.0, 2.757, 2.0, 383.448, 54.905, 295.578),
    (50.0, 1.346, 1.081, 900.199, 132.078, 751.648),
    (50.0, 2.264, 6.491, 405.362, 46.011, 327.517),
    (50.0, 2.215, 6.516, 617.842, 87.127, 513.485),
    (50.0, 2.821, 7.992, 373.138, 54.888, 284.131),
    (50.0, 1.841, 8.549, 625.482, 78.649, 475.835),
    (50.0, 2.213, 8.146, 442.298, 64.228, 337.686),
)


def build(options: Options, double: bool) -> Model:
    reservoirs = options.integer("reservoirs", 20, 1, 2000) or 20
    description = f"{DOMAIN.description} ({reservoirs} reservoirs)"
    return rddl_model(__package__, "reservoir.rddl", options, double, instance(reservoirs), description)


def capacities(model: Model) -> np.ndarray:
    """The capacity of each reservoir of the model."""
    return np.array([RESERVOIRS[index % len(RESERVOIRS)][3] for index in range(model.spec.state.size)])


def instance(reservoirs: int) -> str:
    """A chain t1 -> t2 -> ... -> the sea."""
    lines, first = [], []
    for index in range(reservoirs):
        name, upstream = f"t{index + 1}", f"t{max(index, 1)}"
        level, shape, scale, capacity, lower, upper = RESERVOIRS[index % len(RESERVOIRS)]
        lines += [f"UPSTREAM({name}) = @{upstream};", f"HAS-UPSTREAM({name}) = {'true' if index else 'false'};"]
        lines += [f"RAIN-SHAPE({name}) = {shape};", f"RAIN-SCALE({name}) = {scale};", f"CAPACITY({name}) = {capacity};"]
        lines += [f"LOWER({name}) = {lower};", f"UPPER({name}) = {upper};"]
        first.append(f"water({name}) = {level};")
    objects = f"basin : {{ {', '.join(f't{index + 1}' for index in range(reservoirs))} }};"
    return instance_text("reservoir", objects, lines, first, horizon=40)
