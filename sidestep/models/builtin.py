"""The models that come with the package, by name: three RDDL texts and the grid maps."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from sidestep.errors import InputError
from sidestep.models.options import Options

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


@dataclass(frozen=True)
class Builtin:
    """A model of ours: what `sidestep models` says of it, and how it is built from the options of a reference."""

    description: str
    options: str
    build: Callable[[str, Options, bool], Any]


def hvac_instance(rooms: int) -> str:
    """Rooms r1, r2, ... in two rows of rooms / 2, read row by row; the first and last of a row touch the outside."""
    columns = rooms // 2
    lines = []
    for room in range(rooms):
        row, column = divmod(room, columns)
        sides = {
            "before": room - 1 if column > 0 else None,
            "after": room + 1 if column < columns - 1 else None,
            "across": room + columns if row == 0 else room - columns,
        }
        for side, neighbour in sides.items():
            lines.append(f"NEIGHBOUR(r{room + 1}, @{side}) = @r{(room if neighbour is None else neighbour) + 1};")
            if neighbour is not None:
                lines.append(f"HAS-NEIGHBOUR(r{room + 1}, @{side}) = true;")
        if column in (0, columns - 1):
            lines.append(f"OUTER(r{room + 1}) = true;")
    objects = f"room : {{ {', '.join(f'r{room + 1}' for room in range(rooms))} }};"
    return _instance("hvac", objects, lines, first=[], horizon=40)


def reservoir_instance(reservoirs: int) -> str:
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
    return _instance("reservoir", objects, lines, first, horizon=40)


def _instance(domain: str, objects: str, non_fluents: list[str], first: list[str], horizon: int) -> str:
    newline = "\n"
    init_state = f"init-state {{\n{newline.join(first)}\n}};\n" if first else ""
    return (
        f"non-fluents layout {{\ndomain = {domain};\nobjects {{ {objects} }};\n"
        f"non-fluents {{\n{newline.join(non_fluents)}\n}};\n}}\n"
        f"instance built {{\ndomain = {domain};\nnon-fluents = layout;\n{init_state}"
        f"max-nondef-actions = pos-inf;\nhorizon = {horizon};\ndiscount = 0.99;\n}}\n"
    )


def _rddl(name: str, options: Options, double: bool, instance: str | None = None, note: str = "") -> Any:
    from sidestep.models.rddl_model import RddlModel
    from sidestep.models.rddl_text import RddlText

    relaxed, horizon = options.flag("relaxed"), options.integer("horizon", None, 1)
    options.finish()
    parts = [(f"{name}.rddl", (files("sidestep.models") / "rddl" / f"{name}.rddl").read_text(encoding="utf-8"))]
    if instance is not None:
        parts.append((f"{name} (built instance)", instance))
    description = BUILTINS[name].description + note
    return RddlModel(
        RddlText(tuple(parts)),
        relaxed=relaxed,
        double=double,
        horizon=horizon,
        name=name,
        description=description,
        family=name,
    )


def _navigation(name: str, options: Options, double: bool) -> Any:
    return _rddl(name, options, double)


def _hvac(name: str, options: Options, double: bool) -> Any:
    rooms = options.integer("rooms", 6, 2) or 6
    if rooms % 2:
        raise InputError(f"option 'rooms' is an even number (two rows of rooms), not {rooms}", place=options.place)
    return _rddl(name, options, double, hvac_instance(rooms), f" ({rooms} rooms)")


def _reservoir(name: str, options: Options, double: bool) -> Any:
    reservoirs = options.integer("reservoirs", 20, 1) or 20
    return _rddl(name, options, double, reservoir_instance(reservoirs), f" ({reservoirs} reservoirs)")


def _grid(name: str, options: Options, double: bool) -> Any:
    from sidestep.models.grids import load_grid
    from sidestep.models.map_text import builtin_map

    try:
        path = builtin_map(name, options.text("map", "1"))
    except InputError as error:
        raise InputError(str(error), place=options.place) from error
    horizon = options.integer("horizon", 500, 1)
    options.finish()
    return load_grid(path, horizon=horizon)


BUILTINS = {
    "navigation": Builtin(
        "a robot crosses the plane to a goal past zones that slow it down", "horizon, relaxed", _navigation
    ),
    "hvac": Builtin("heated air keeps connected rooms comfortable", "rooms, horizon, relaxed", _hvac),
    "reservoir": Builtin("gates pass water down a chain of reservoirs", "reservoirs, horizon, relaxed", _reservoir),
    "boxpushing": Builtin("a robot fetches a box and takes it to the goal on a slippery grid", "map, horizon", _grid),
    "driving": Builtin("a car drives to the goal, slow or fast", "map, horizon", _grid),
}
