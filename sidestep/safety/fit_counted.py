"""Fitting counted events: a search for boxes, then ascent of the likelihood from there and from other starts.

The box that the search found is nearly right, and its sides keep their features: some steps of Adam. The other starts
are free: their sides may come to look at any entries and squares of entries, so that they can be oblique or round, with
a price on what they look at. That is a long way to go over few parameters, for which L-BFGS is made: from 400 labels of
a disc 150 of its iterations reach a log-likelihood of -9 where 800 steps of Adam, in ten times the time, reach -67.

A label may be wrong. It is taken at its word with chance 1 - LAPSE, and says nothing otherwise; where annotators are
known to err, it says of each category how likely the answer would be if that were the truth. Marks belong to the
category that was said; if another one is the truth they may be anywhere. All this is part of the likelihood and not of
the model, which says what is true.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree
from scipy.special import expit

from sidestep.core.model import Trajectory
from sidestep.runtime.compilation import jit_balanced
from sidestep.runtime.parallel import map_stack
from sidestep.safety import boxes
from sidestep.safety.base import Standardisation, bucket, pad_rows, trainable
from sidestep.safety.boxes import Box, Found, Told
from sidestep.safety.counted import IDLE, SHARPNESS, SIDES, CountedEvents, idle_sides
from sidestep.safety.derived import derive

LAPSE = 0.02  # chance that a label says nothing
SLACK = (0.8, 0.15, 0.05)  # chances that a mark is right, off by up to one step, by up to two; or what marks show
IMAGINED_MARKS = 20.0  # marks that are as far off as SLACK says, before any is seen
SPARSITY = 0.004  # price of what a free side looks at
FREE = 5  # starts that are free
RIDGE = 1.0  # on the weights of the logistic regression that draws the first surface
NEWTON_STEPS = 60  # of that regression, at most
SHARPEST_SURFACE = 50.0  # of its start
SHALLOW = 0.05  # curvature of the surface, in squares of deviations, below which it has no end along an axis
MOST_TURNED = 10  # entries of which all products are looked at
SIDE_PRICE = 2.0  # of a side in the search, in nats, beside half the logarithm of the number of labels
DERIVED_PRICE = 4.0  # more for a side of a derived feature
SHARPEST = 4000.0  # of a fresh side of a box, per deviation of its feature: HVAC's policies come within 0.01 degrees


class CountedRows(NamedTuple):
    """Labelled trajectories, padded; rows of padding weigh nothing."""

    states: Float[Array, "rows time state"]
    actions: Float[Array, "rows time action"]
    length: Int[Array, " rows"]
    categories: Int[Array, " rows"]
    marks: Int[Array, "rows levels"]
    said: Float[Array, "rows categories"]  # how likely the answer is for each truth
    weights: Float[Array, " rows"]
    slack: Float[Array, " steps"]  # chances that a mark is off by up to so many steps; the same for all rows


def told_by(model: CountedEvents, trajectory: Trajectory, categories: np.ndarray, marks: np.ndarray) -> Told:
    """Labels as the search sees them."""
    entries = np.concatenate([trajectory.states, trajectory.actions], axis=-1)
    features = np.asarray(_derived(model, jnp.asarray(entries)), np.float32)
    levels = np.arange(1, model.categories)
    prices = (
        SIDE_PRICE + 0.5 * np.log(len(categories)) + DERIVED_PRICE * (np.arange(features.shape[2]) >= entries.shape[2])
    )
    return Told(features, np.asarray(trajectory.mask), categories[:, None] >= levels[None], marks, prices)


@jit_balanced
def _derived(model: CountedEvents, entries: Array) -> Array:
    return derive(entries, model.state_size, model.alike)


def with_features_seen(model: CountedEvents, told: Told) -> CountedEvents:
    """The model in units of the features of these steps."""
    steps = told.features[told.mask].astype(float)
    mean, deviation = steps.mean(axis=0), steps.std(axis=0)
    deviation = np.where(deviation > 1e-6 * (1.0 + np.abs(mean)), deviation, 1.0)
    seen = Standardisation(*(jnp.asarray(part, jnp.float32) for part in (mean, deviation, len(steps))))
    return eqx.tree_at(lambda m: m.features_seen, model, seen)


def search_box(model: CountedEvents, told: Told, earlier: tuple[Box, ...] = ()) -> Found:
    """The best box, or two, for the model's statistic; `earlier` are those that it had before."""
    entries, actions = model.state_size + model.action_size, model.action_size
    bare = list(range(entries))
    squares = range(entries + actions, 2 * entries + actions)
    derived = [feature for feature in range(entries, told.features.shape[2]) if feature not in squares]
    return boxes.search(told, model.statistic, model.limit, entries, [*bare, *derived], earlier)


def from_box(model: CountedEvents, found: Found, told: Told) -> CountedEvents:
    """The model with these boxes, in its units, and these thresholds; sides keep their features."""
    model = idle_sides(model)
    mean, deviation = np.asarray(model.features_seen.mean), np.asarray(model.features_seen.deviation)
    directions, offsets = np.array(model.directions, np.float32), np.array(model.offsets, np.float32)
    movable, sharpness = np.zeros_like(directions), np.array(model.log_sharpness)
    for region, box in enumerate(found.boxes):
        offsets[region] = IDLE / SHARPNESS
        sides = [
            (i.feature, sign, end) for i in box for sign, end in ((1.0, i.low), (-1.0, i.high)) if np.isfinite(end)
        ]
        for side, (feature, sign, end) in enumerate(sides[:SIDES]):
            directions[region, side, feature] = sign
            movable[region, side, feature] = 1.0
            offsets[region, side] = -sign * (end - mean[feature]) / deviation[feature]
            sharpness[region, side] = np.log(_sharpness(told, feature, end, deviation[feature]))
    where = lambda m: (m.directions, m.offsets, m.movable.directions, m.log_sharpness)  # noqa: E731
    parts = (directions, offsets, movable, sharpness)
    model = eqx.tree_at(where, model, tuple(jnp.asarray(part, jnp.float32) for part in parts))
    return with_thresholds(model, found.thresholds)


def _sharpness(told: Told, feature: int, end: float, deviation: float) -> float:
    """As sharp as the labelled steps near a side can tell it."""
    values = np.sort(told.features[..., feature][told.mask])
    place, reach = int(np.searchsorted(values, end)), max(5, len(values) // 1000)
    near = values[min(place + reach, len(values) - 1)] - values[max(place - reach, 0)]
    return float(np.clip(4.0 * deviation / max(near, 1e-9), SHARPNESS, SHARPEST))


def with_thresholds(model: CountedEvents, thresholds: tuple[int, ...]) -> CountedEvents:
    at = np.array(thresholds, float) - 0.5
    gaps = np.log(np.maximum(np.diff(at), 0.1))
    where = lambda m: (m.first_threshold, m.gaps)  # noqa: E731
    return eqx.tree_at(where, model, (jnp.asarray(at[0], jnp.float32), jnp.asarray(gaps, jnp.float32)))


def free_starts(box: CountedEvents, told: Told, key: PRNGKeyArray) -> list[CountedEvents]:
    """Starts whose sides may turn: the box itself where it looks at entries; the surface between marked steps and those
    of harmless trajectories, alone and among random sides; its principal axes; and the linear discriminant."""
    entries, actions = box.state_size + box.action_size, box.action_size
    allowed = np.zeros(told.features.shape[2], np.float32)
    allowed[:entries] = allowed[entries + actions : 2 * entries + actions] = 1.0
    random = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    blank = idle_sides(box)
    events, others = _event_steps(box, told, allowed)
    found = []
    for number in range(FREE):
        directions, offsets = np.array(blank.directions), np.array(blank.offsets)
        sharpness = np.full(offsets.shape, np.log(4.0))
        if number == 0:
            directions, offsets = np.array(box.directions) * allowed, np.array(box.offsets)
        elif number == 1:
            telling = _most_telling(events[:, :entries], others[:, :entries])
            turned, ends = _principal_axes(events[:, telling], others[:, telling])
            directions[0, : len(turned), telling], offsets[0, : len(turned)] = turned.T, ends
        else:
            draw, sides = ((_surface, 0), (_surface, 2), (_discriminant, 3))[number - 2]
            weights, offset = draw(events, others, allowed)
            length = max(float(np.linalg.norm(weights)), 1e-9)
            directions[0, 0], offsets[0, 0] = weights / length, offset / length
            sharpness[0, 0] = np.log(np.clip(length, 4.0, SHARPEST_SURFACE))
            for side in range(1, 1 + sides):
                directions[0, side] = 0.3 * random.normal(size=len(allowed)) * (np.arange(len(allowed)) < entries)
                offsets[0, side] = 1.0
        directions = directions + 0.02 * random.normal(size=directions.shape) * allowed
        offsets = np.where(np.abs(offsets) >= IDLE / SHARPNESS, np.sign(offsets) * 2.0, offsets)
        where = lambda m: (m.directions, m.offsets, m.log_sharpness, m.movable.directions)  # noqa: E731
        parts = (directions, offsets, sharpness, np.broadcast_to(allowed, directions.shape))
        found.append(eqx.tree_at(where, box, tuple(jnp.asarray(part, jnp.float32) for part in parts)))
    return found


def _event_steps(box: CountedEvents, told: Told, allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Features of steps at which severities were marked (or of all steps of bad trajectories), and of harmless
    trajectories' steps; few of the latter are events."""
    seen = (told.features - np.asarray(box.features_seen.mean)) / np.asarray(box.features_seen.deviation) * allowed
    rows, levels = np.nonzero(told.marks >= 0)
    bad = told.reached[:, 0]
    events = seen[rows, told.marks[rows, levels]] if len(rows) else seen[bad][told.mask[bad]]
    return events, seen[~bad][told.mask[~bad]]


def _surface(events: np.ndarray, others: np.ndarray, allowed: np.ndarray) -> tuple[np.ndarray, float]:
    """Weights and offset of a logistic regression of being an event."""
    found = np.zeros_like(allowed)
    found[allowed > 0], offset = _logistic(events[:, allowed > 0], others[:, allowed > 0])
    return found, offset


def _logistic(events: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, float]:
    """By Newton's method, with a ridge."""
    inputs = np.concatenate([events, others]).astype(float)
    inputs = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)
    labels = np.arange(len(inputs)) < len(events)
    weights, ridge = np.zeros(inputs.shape[1]), RIDGE * np.eye(inputs.shape[1])
    for _ in range(NEWTON_STEPS):
        chances = expit(inputs @ weights)
        slope = inputs.T @ (labels - chances) - ridge @ weights
        move = np.linalg.solve((inputs * (chances * (1.0 - chances))[:, None]).T @ inputs + ridge, slope)
        weights += move / max(1.0, np.linalg.norm(move) / 5.0)  # far off, the quadratic model leads too far
        if np.abs(move).max() < 1e-6:
            break
    return weights[:-1], float(weights[-1])


def _most_telling(events: np.ndarray, others: np.ndarray) -> Int[np.ndarray, " entry"]:
    """The entries by which events differ the most from other steps, in mean and deviation."""
    if not len(events) or not len(others):
        return np.arange(min(events.shape[1], MOST_TURNED))
    mean, deviation = (np.abs(of(events, axis=0) - of(others, axis=0)) for of in (np.mean, np.std))
    return np.sort(np.argsort(-(mean + deviation), kind="stable")[:MOST_TURNED])


def _principal_axes(events: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Directions and offsets of pairs of sides across the axes of a quadratic surface around the events.

    f(z) = z'Qz + b'z + c, a logistic regression on all products of entries, is largest at m = -Q^-1 b / 2 within the
    space of the axes v with negative eigenvalues l, and f = 0 at the distances sqrt(f(m) / -l) from there along each.
    """
    first, second = np.triu_indices(events.shape[1])
    products = [np.concatenate([part, part[:, first] * part[:, second]], axis=1) for part in (events, others)]
    weights, constant = _logistic(*products)
    slope, form = weights[: events.shape[1]], np.zeros((events.shape[1],) * 2)
    form[first, second] = weights[events.shape[1] :]
    values, axes = np.linalg.eigh((form + form.T) / 2)
    chosen = np.flatnonzero(values < -SHALLOW)[: SIDES // 2]
    values, axes = values[chosen], axes[:, chosen]
    middle = -(slope @ axes) / (2.0 * values)
    highest = constant - float(np.sum(values * middle**2))
    reach = np.sqrt(max(highest, 1.0) / -values)
    return np.concatenate([axes.T, -axes.T]), np.concatenate([reach - middle, reach + middle])


def _discriminant(events: np.ndarray, others: np.ndarray, allowed: np.ndarray) -> tuple[np.ndarray, float]:
    """The direction and offset of the linear discriminant."""
    if len(events) < 2 or len(others) < 2:
        return np.zeros_like(allowed), 0.0
    scatter = np.cov(events.T) + np.cov(others.T) + 0.1 * np.eye(len(allowed))
    direction = np.linalg.solve(scatter, events.mean(axis=0) - others.mean(axis=0)) * allowed
    direction = direction / max(np.linalg.norm(direction), 1e-9)
    middle = 0.5 * (events.mean(axis=0) + others.mean(axis=0))
    return direction, float(-direction @ middle)


def counted_rows(
    trajectory: Trajectory,
    categories: np.ndarray,
    marks: np.ndarray,
    room: int,
    likelihood: np.ndarray | None = None,
    slack: tuple[float, ...] = SLACK,
) -> CountedRows:
    """`likelihood`: how likely what was said is for each true category, up to a factor; None where nobody errs."""
    count, size = len(categories), marks.shape[1] + 1
    heard = np.eye(size)[categories] if likelihood is None else likelihood / likelihood.max(axis=1, keepdims=True)
    said = np.asarray((1.0 - LAPSE) * heard + LAPSE / size, np.float32)
    parts = (trajectory.states, trajectory.actions, trajectory.length, categories, marks, said)
    padded = pad_rows((*parts, np.ones(count, np.float32)), bucket(max(count, room)))
    return CountedRows(*(*padded, jnp.asarray(slack, jnp.float32)))


def mark_slack(told: Told, found: Found) -> tuple[float, ...]:
    """Chances w_s that a mark is off by up to s steps, by how far marks are from where this event has its thresholds.

    Marks at distance d with chance p_d (to each side) are a mixture of uniform windows of the widths 2 s + 1:
    w_s = (2 s + 1) (p_s - p_{s+1}). Never much smaller than SLACK, so that a few exact marks do not make it brittle.
    """
    so_far = boxes.running(told.inside(found.boxes), "run" if found.statistic == "run" else "count")
    widest = len(SLACK) - 1
    imagined = np.array([sum(w / (2 * s + 1) for s, w in enumerate(SLACK) if s >= d) for d in range(widest + 1)])
    counts = IMAGINED_MARKS * imagined * np.where(np.arange(widest + 1) > 0, 2.0, 1.0)
    for level, threshold in enumerate(found.thresholds):
        rows = told.marked(level)
        reached = so_far[:, rows] >= threshold
        first, marks = reached.argmax(axis=0), told.marks[rows, level]
        off = np.abs(first - marks)[reached.any(axis=0)]
        counts += np.bincount(off[off <= widest], minlength=widest + 1)
    density = counts / counts.sum() / np.where(np.arange(widest + 1) > 0, 2.0, 1.0)
    widths = 2 * np.arange(widest + 1) + 1
    chances = np.maximum(widths * -np.diff(density, append=0.0), SLACK)
    return tuple((chances / chances.sum()).tolist())


def log_likelihood(model: CountedEvents, rows: CountedRows) -> Float[Array, " rows"]:
    """log P(label) of each row, marks included; see `log_label`."""
    found = model.counters(rows.states, rows.actions, rows.length)  # (time, row, counter)
    return log_label(model.categories_of(found[-1], rows.length), _log_marks(model, found, rows), rows)


def log_label(
    log_probabilities: Float[Array, "rows categories"], log_marks: Float[Array, "rows levels"], rows: CountedRows
) -> Float[Array, " rows"]:
    """log sum_t P(t) P(said | t) P(marks | t, said); marks of a slip, t != said, are anywhere in the trajectory."""
    steps = jnp.maximum(rows.length, 1).astype(log_marks.dtype)
    slip = -jnp.log(steps) * jnp.sum(rows.marks >= 0, axis=1, dtype=log_marks.dtype)
    truthful = jax.nn.one_hot(rows.categories, rows.said.shape[1], dtype=bool)
    of_marks = jnp.where(truthful, jnp.sum(log_marks, axis=1)[:, None], slip[:, None])
    said = jnp.where(rows.weights[:, None] > 0, rows.said, 1.0)
    return jax.nn.logsumexp(log_probabilities + jnp.log(said) + of_marks, axis=1)


def _log_marks(model: CountedEvents, found: Array, rows: CountedRows) -> Float[Array, "rows levels"]:
    """log P(mark | reached): the chance of each severity to be reached within s steps of its mark, over the slack."""
    number = jnp.arange(len(rows.length))[:, None]

    def survival(at: Int[Array, "rows levels"]) -> Array:
        counter = found[jnp.clip(at, 0, found.shape[0] - 1), number]  # of each row and mark
        each = model.survival_of(counter, jnp.broadcast_to(rows.length[:, None], at.shape))
        return jnp.where(at < 0, 1.0, jnp.exp(jnp.diagonal(each, axis1=1, axis2=2)))

    last = jnp.broadcast_to(rows.length[:, None] - 1, rows.marks.shape)
    reached = 1.0 - survival(last)
    near = sum(
        rows.slack[off] * (survival(rows.marks - off - 1) - survival(jnp.minimum(rows.marks + off, last)))
        for off in range(len(rows.slack))
    )
    share = jnp.clip(near / jnp.maximum(reached, 1e-6), 0.0, 1.0)
    steps = rows.length[:, None].astype(share.dtype)
    told = jnp.log((1.0 - LAPSE) * share + LAPSE / jnp.maximum(steps, 1.0))
    return jnp.where(rows.marks >= 0, told, 0.0)


class Ascent(NamedTuple):
    """How far, and how, a fit goes uphill: Adam with a step size that falls as half a cosine, or L-BFGS."""

    steps: int
    rate: float = 0.0  # of Adam; 0: L-BFGS


ADAM = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam())
LBFGS = optax.lbfgs(memory_size=20)


def ascend(models: list[CountedEvents], rows: CountedRows, ascent: Ascent) -> list[tuple[CountedEvents, float]]:
    """Each model after so many steps, and its penalised log-likelihood per row; one program for all of them."""
    steps = jnp.asarray(ascent.steps)
    if ascent.rate:
        run = partial(_adam, rows=rows, steps=steps, rate=jnp.asarray(ascent.rate, jnp.float32))
    else:
        run = partial(_lbfgs, rows=rows, steps=steps)
    fitted, values = map_stack(run, stacked(models), compiled=False)
    worth = np.nan_to_num(np.asarray(values), nan=-np.inf)
    return [(member_of(fitted, index), float(worth[index])) for index in range(len(models))]


def _loss(model: CountedEvents, rows: CountedRows) -> tuple[PyTree, PyTree, Callable[[PyTree], Array]]:
    """What is fitted, the rest, and the loss: minus the mean log-likelihood, and a price on what free sides look at."""
    parameters, rest = eqx.partition(model, trainable(model))
    count = jnp.maximum(jnp.sum(rows.weights), 1.0)
    free = (jnp.sum(model.movable.directions) > 3.0 * SIDES * 2).astype(count.dtype)  # boxes pay in the search

    def loss(parameters: PyTree) -> Array:
        model = eqx.combine(parameters, rest)
        looked = jnp.sum(jnp.sqrt(jnp.square(model.directions * model.movable.directions) + 1e-8))
        sharp = jnp.mean(jnp.square(model.log_sharpness - np.log(SHARPNESS)))
        fitted = jnp.sum(jnp.where(rows.weights > 0, log_likelihood(model, rows), 0.0)) / count
        return -fitted + free * SPARSITY * looked + 0.0005 * sharp

    return parameters, rest, loss


@jit_balanced
def _adam(
    model: CountedEvents, rows: CountedRows, steps: Int[Array, ""], rate: Float[Array, ""]
) -> tuple[CountedEvents, Float[Array, ""]]:
    """The number of steps is an argument, here and below, so that one program does for all."""
    parameters, rest, loss = _loss(model, rows)

    def step(number: Array, carry: PyTree) -> PyTree:
        parameters, memory = carry
        updates, memory = ADAM.update(jax.grad(loss)(parameters), memory)
        size = rate * 0.5 * (1.0 + jnp.cos(jnp.pi * number.astype(rate.dtype) / steps.astype(rate.dtype)))
        return jax.tree.map(lambda p, u: p - size * u, parameters, updates), memory

    parameters, _ = jax.lax.fori_loop(0, steps, step, (parameters, ADAM.init(parameters)))
    return eqx.combine(parameters, rest), -loss(parameters)


@jit_balanced
def _lbfgs(model: CountedEvents, rows: CountedRows, steps: Int[Array, ""]) -> tuple[CountedEvents, Float[Array, ""]]:
    parameters, rest, loss = _loss(model, rows)
    slope_of = optax.value_and_grad_from_state(loss)

    def step(number: Array, carry: PyTree) -> PyTree:
        parameters, memory = carry
        value, slope = slope_of(parameters, state=memory)
        updates, memory = LBFGS.update(slope, memory, parameters, value=value, grad=slope, value_fn=loss)
        return optax.apply_updates(parameters, updates), memory

    parameters, _ = jax.lax.fori_loop(0, steps, step, (parameters, LBFGS.init(parameters)))
    return eqx.combine(parameters, rest), -loss(parameters)


def member_of(stack: CountedEvents, index: int) -> CountedEvents:
    return jax.tree.map(lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf, stack)


def stacked(models: list[CountedEvents]) -> CountedEvents:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *models)
