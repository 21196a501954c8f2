"""From the action that was asked for to one that the model allows.

What is allowed may be said in three ways: bounds on single entries, rows of linear inequalities, and a test of the
whole action. An action that passes the test is left as it is. Of another one, real entries are projected onto the rows;
of the others as many as fit are taken, the strongest first; and what still fails the test is put together again from
an action that passes it, entry by entry. Whatever is found has passed the test. Where nothing is found, the action
comes back as it was, so that whoever tests it again sees it fail.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from sidestep.core.model import clipped

ROUNDS = 24  # cyclic projections of the real entries
HALVINGS = 20  # of the way to a real action that a test without a formula refuses
MARGIN = 1e-6  # relative: a projection ends this far inside a row, so that rounding does not carry it out again
SLACK = 1e-4  # whole numbers that are this close count as equal


@dataclass(frozen=True, eq=False)
class Entries:
    """What the entries of an action vector are."""

    default: np.ndarray  # (action,): what stands there when nothing is done
    real: np.ndarray  # bool (action,)
    groups: np.ndarray  # bool (groups, action): entries of one variable each
    most: int | None = None  # how many entries may differ from their default at once; None: all
    bent: bool = False  # is there a test of real entries that no row or bound speaks for?


class Rows(NamedTuple):
    """coefficients @ action <= limits, with an infinite limit where nothing is asked."""

    coefficients: Float[Array, "rows action"]
    limits: Float[Array, " rows"]
    equal: np.ndarray  # bool (rows,): one of the two rows of an equation


Test = Callable[[Float[Array, " action"]], Bool[Array, ""]]


def allowed_action(
    entries: Entries,
    action: Float[Array, " action"],
    low: Float[Array, " action"],
    high: Float[Array, " action"],
    rows: Rows,
    passes: Test,
) -> Float[Array, " action"]:
    """An action that passes the test, near the given one; itself if it passes.

    Gradients pass through the projection, and through the entries that are kept as they were asked for.
    """
    candidate = clipped(action, low, high)
    candidate = candidate + jax.lax.stop_gradient(jnp.where(entries.real, candidate, jnp.round(candidate)) - candidate)
    if entries.real.any() and rows.equal.size:
        candidate = _projected(entries, candidate, low, high, rows)
    asked = jax.lax.stop_gradient(candidate)
    fixed = jax.lax.stop_gradient((low, high, rows.coefficients, rows.limits))
    low, high, rows = fixed[0], fixed[1], Rows(fixed[2], fixed[3], rows.equal)

    def repair(carry):
        return jnp.array(True), *_repaired(entries, asked, low, high, rows, passes)

    # A loop of at most one turn: a batch whose actions are all allowed pays for the test alone.
    start = (passes(asked), asked, jnp.ones_like(asked))
    _, chosen, share = jax.lax.while_loop(lambda carry: ~carry[0], repair, start)
    return chosen + share * (candidate - asked)


def _projected(entries: Entries, action: Array, low: Array, high: Array, rows: Rows) -> Array:
    """The real entries on the allowed side of every row: cyclic projections, then a pull towards an inner point."""
    limits = rows.limits - jnp.where(rows.equal, 0.0, MARGIN * (1.0 + jnp.abs(rows.limits)))
    moving = jnp.where(entries.real, rows.coefficients, 0.0)
    norms = jnp.sum(moving * moving, axis=1)
    active = jnp.isfinite(limits) & (norms > 0)
    finite, norms = jnp.where(active, limits, 0.0), jnp.where(active, norms, 1.0)

    def one_row(point, row):
        coefficients, direction, limit, norm, counts = row
        excess = coefficients @ point - limit
        moved = clipped(point - excess / norm * direction, low, high)
        return jnp.where(counts & (excess > 0), moved, point), None

    def one_round(point, _):
        return jax.lax.scan(one_row, point, (rows.coefficients, moving, finite, norms, active))[0], None

    def project(point):
        return jax.lax.scan(one_round, point, length=ROUNDS)[0]

    point = project(action)
    inner = project(jnp.where(entries.real, clipped(jnp.asarray(entries.default, action.dtype), low, high), action))
    room = finite - rows.coefficients @ inner
    rise = rows.coefficients @ (point - inner)
    pulls = active & ~rows.equal & (room >= 0) & (rise > room)
    share = jnp.min(jnp.where(pulls, room / jnp.where(pulls, rise, 1.0), 1.0), initial=1.0)
    return jnp.where(share < 1.0, inner + share * (point - inner), point)


def _repaired(entries: Entries, asked: Array, low: Array, high: Array, rows: Rows, passes: Test) -> tuple[Array, Array]:
    """An action that passes, and for each entry the share of what was asked that it kept, for the gradient."""
    base = jnp.clip(jnp.asarray(entries.default, asked.dtype), low, high)
    order = _strongest_first(entries, asked, low, high)
    fitted = _fitted(entries, asked, base, low, high, rows, order)
    start, found = _first_that_passes(entries, asked, fitted, base, low, high, order, passes)
    filled = jnp.where(found, _filled(start, fitted, order, passes), asked)
    if entries.bent:
        filled, share = _stretched(entries, filled, asked, passes)
        return filled, jnp.where(entries.real & (filled != asked), share, (filled == asked).astype(share.dtype))
    return filled, (filled == asked).astype(asked.dtype)


def _strongest_first(entries: Entries, asked: Array, low: Array, high: Array) -> Array:
    """The entries, those first that differ most from their default, as a share of their range.

    Choices are all equally strong: among them the order begins at a place that depends on the whole action, so that
    none is favoured.
    """
    size = entries.default.size
    differs = asked != entries.default
    span = jnp.where(jnp.isfinite(high - low) & (high > low), high - low, 1.0)
    strength = jnp.where(entries.real, jnp.abs(asked - entries.default) / span, differs.astype(asked.dtype))
    places = np.random.default_rng(0).integers(size, size=size)
    count = jnp.maximum(jnp.sum(differs), 1)
    begin = jnp.sum(jnp.where(differs, places, 0)) % count
    turned = jnp.where(differs, (jnp.cumsum(differs) - 1 - begin) % count, jnp.arange(size))
    return jnp.argsort(turned.astype(asked.dtype) * (1e-3 / size) - strength)


def _fitted(entries: Entries, asked: Array, base: Array, low: Array, high: Array, rows: Rows, order: Array) -> Array:
    """As much of what was asked as rows and count leave room for; then what rows that ask for more still need."""
    if not rows.equal.size and entries.most is None:
        return asked
    real = jnp.asarray(entries.real)
    kept = real if entries.most is None else real & False  # a count may turn real entries off as well
    begin = jnp.where(kept, asked, base)
    size = asked.shape[0]

    def room_for(excess, column, wish, sign):
        """How far an entry may move in this direction before a row that it strains is full."""
        strains = column * sign > SLACK * 1e-3
        room = jnp.maximum(-excess, 0.0) / jnp.where(strains, jnp.abs(column), 1.0)
        return jnp.minimum(wish, jnp.min(jnp.where(strains, room, jnp.inf), initial=jnp.inf))

    def move(state, entry, wish, sign):
        current, excess = state
        column = rows.coefficients[:, entry]
        steps = room_for(excess, column, wish, sign)
        steps = jnp.where(real[entry], steps, jnp.floor(steps + SLACK))
        used = jnp.sum(current != entries.default)
        counted = used + (current[entry] == jnp.asarray(entries.default)[entry]).astype(used.dtype)
        may = True if entries.most is None else counted <= entries.most
        change = jnp.where(may, sign * jnp.maximum(steps, 0.0), 0.0)
        return current.at[entry].add(change), excess + column * change

    def take(i, state):
        entry = order[i]
        wish = asked[entry] - state[0][entry]
        return move(state, entry, jnp.abs(wish), jnp.sign(wish))

    def give(i, state):
        entry = order[i]
        current, excess = state
        column, lacking = rows.coefficients[:, entry], excess > SLACK
        sign = -jnp.sign(jnp.sum(jnp.where(lacking, column, 0.0)))
        helps = lacking & (column * sign < 0)
        need = jnp.min(jnp.where(helps, excess / jnp.where(helps, jnp.abs(column), 1.0), jnp.inf), initial=jnp.inf)
        need = jnp.where(real[entry], need, jnp.ceil(need - SLACK))
        reach = jnp.where(sign > 0, high[entry] - current[entry], current[entry] - low[entry])
        return move(state, entry, jnp.where(jnp.isfinite(need), jnp.minimum(need, reach), 0.0), sign)

    state = (begin, rows.coefficients @ begin - rows.limits)
    state = jax.lax.fori_loop(0, size, take, state)
    return jax.lax.fori_loop(0, size, give, state)[0] if rows.equal.size else state[0]


def _first_that_passes(
    entries: Entries, asked: Array, fitted: Array, base: Array, low: Array, high: Array, order: Array, passes: Test
) -> tuple[Array, Array]:
    """The first of these that passes, and whether one did: the fitted action, the default, one entry changed,
    one variable all at its upper bound, everything at its upper, at its lower bound."""
    size = asked.shape[0]
    top, bottom = (jnp.where(jnp.isfinite(bound), bound, base) for bound in (high, low))
    other = jnp.where(fitted != base, fitted, jnp.where(asked != base, asked, jnp.where(base < top, top, bottom)))
    groups = np.concatenate([entries.groups, np.ones((2, size), bool)])
    last = len(groups) - 1

    def start(i):
        entry = order[jnp.clip(i - 2, 0, size - 1)]
        group = jnp.clip(i - 2 - size, 0, last)
        edge = jnp.where(jnp.asarray(groups)[group], jnp.where(group == last, bottom, top), base)
        single = base.at[entry].set(other[entry])
        return jnp.where(i == 0, fitted, jnp.where(i == 1, base, jnp.where(i < 2 + size, single, edge)))

    count = 2 + size + len(groups)
    found = jax.lax.while_loop(lambda i: (i < count) & ~passes(start(i)), lambda i: i + 1, jnp.zeros((), int))
    return start(found), found < count


def _filled(start: Array, wanted: Array, order: Array, passes: Test) -> Array:
    """From an action that passes, entry by entry towards what was wanted, as long as it passes."""
    open_first = order[jnp.argsort(~(start != wanted)[order], stable=True)]
    count = jnp.sum(start != wanted)

    def try_one(carry):
        i, current = carry
        entry = open_first[i]
        tried = current.at[entry].set(wanted[entry])
        return i + 1, jnp.where(passes(tried), tried, current)

    return jax.lax.while_loop(lambda carry: carry[0] < count, try_one, (jnp.zeros((), int), start))[1]


def _stretched(entries: Entries, start: Array, asked: Array, passes: Test) -> tuple[Array, Array]:
    """The real entries moved on from an action that passes towards what was asked, as far as it passes; how far."""
    target = jnp.where(entries.real, asked, start)

    def halve(_, ends):
        middle = 0.5 * (ends[0] + ends[1])
        fine = passes(start + middle * (target - start))
        return jnp.where(fine, middle, ends[0]), jnp.where(fine, ends[1], middle)

    zero = jnp.zeros((), asked.dtype)
    share, _ = jax.lax.fori_loop(0, HALVINGS, halve, (zero, zero + 1.0))
    return start + share * (target - start), share
