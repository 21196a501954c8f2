"""The model is the text hvac.rddl, with an instance that is built for the number of rooms."""

from sidestep.core.errors import InputError
from sidestep.core.model import Model
from sidestep.models.domains.hvac import DOMAIN
from sidestep.models.options import Options
from sidestep.models.rddl_domain import instance_text, rddl_model


def build(options: Options, double: bool) -> Model:
    rooms = options.integer("rooms", 6, 2, 2000) or 6
    if rooms % 2:
        raise InputError(f"option 'rooms' is an even number (two rows of rooms), not {rooms}", place=options.place)
    description = f"{DOMAIN.description} ({rooms} rooms)"
    return rddl_model(__package__, "hvac.rddl", options, double, instance(rooms), description)


def instance(rooms: int) -> str:
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
    return instance_text("hvac", objects, lines, first_state=[], horizon=40)
