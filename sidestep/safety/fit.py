"""Fitting a safety model to labelled trajectories: maximum likelihood, early stopping, calibration, report."""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray, PyTree

from sidestep.core.errors import InputError
from sidestep.core.model import Trajectory
from sidestep.runtime.compilation import jit_fast_compile
from sidestep.runtime.parallel import map_stack
from sidestep.safety.base import (
    Calibration,
    SafetyModel,
    Standardisation,
    bucket,
    evidence_of,
    in_chunks,
    pad_rows,
    probabilities_of,
    trainable,
)
from sidestep.safety.calibrate import calibrate, uncalibrated
from sidestep.safety.config import FitConfig
from sidestep.safety.ensemble import Ensemble
from sidestep.safety.report import FitReport, Scores, scores
from sidestep.safety.windows import Windows, windows_of

M = TypeVar("M", bound=SafetyModel)

WARMUP = 0.02  # share of the steps in which the step size rises from nothing
CLIP = 1.0  # largest norm of a gradient
IMPOSSIBLE = 1e-6  # what an answer's likelihood is at least


class Rows(NamedTuple):
    """Labelled trajectories as the fit sees them, padded to a size that later fits can share."""

    states: Float[Array, "rows time state"]
    actions: Float[Array, "rows time action"]
    length: Int[Array, " rows"]
    categories: Int[Array, " rows"]
    windows: Windows | None  # when each severity was reached; None: nobody marked anything
    likelihood: Float[Array, "rows categories"] | None  # P(what was said | truth); None: labels are the truth


class Labelled(NamedTuple):
    """Trajectories with their categories; `room` is how many there may be one day."""

    trajectory: Trajectory
    categories: Int[np.ndarray, " batch"]
    windows: Windows | None
    likelihood: Float[np.ndarray, "batch categories"] | None
    room: int

    def part(self, rows: np.ndarray, room: int) -> "Labelled":
        windows, likelihood = jax.tree.map(lambda leaf: leaf[rows], (self.windows, self.likelihood))
        return Labelled(self.trajectory[rows], self.categories[rows], windows, likelihood, room)

    def rows(self) -> Rows:
        trajectory, count = self.trajectory, max(len(self.categories), self.room)
        parts = (
            trajectory.states,
            trajectory.actions,
            trajectory.length,
            self.categories,
            self.windows,
            self.likelihood,
        )
        return Rows(*pad_rows(parts, bucket(count)))


class Member(NamedTuple):
    """What goes from minibatch to minibatch, of a model or of each member of an ensemble."""

    model: SafetyModel
    average: SafetyModel  # over the last minibatches: steadier, and what is looked at and kept
    optimiser: PyTree
    step: Int[Array, ""]
    best: SafetyModel  # the one with the smallest held-out loss so far
    best_loss: Float[Array, ""]
    best_step: Int[Array, ""]


class Progress(NamedTuple):
    """Where a fit stands after a look at the held-out trajectories."""

    step: int
    steps: int
    train_loss: float
    held_out_loss: float  # nan when nothing is held out


def fit(
    model: M,
    trajectory: Trajectory,
    categories: Int[np.ndarray, " batch"],
    config: FitConfig,
    key: PRNGKeyArray,
    progress: Callable[[Progress], None] = lambda progress: None,
    *,
    marks: Int[np.ndarray, "batch levels"] | None = None,
    likelihood: Float[np.ndarray, "batch categories"] | None = None,
    room: int = 0,
) -> tuple[M, FitReport]:
    """The model of largest likelihood on these labels, and how good it is on those that were held out.

    A model that was fitted before is continued: its parameters and standardisation stay, its optimiser is fresh.
    Members of an ensemble are fitted in parallel. The same key gives the same result. `marks` says at which step each
    severity (each category but the first) was first reached, -1 where nobody said. Where annotators err, `likelihood`
    says how likely their answers are for each true category, up to a factor. `room` is the number of labels that
    there may be one day: fits up to it share their compiled program.
    """
    began = time.perf_counter()
    trajectory, categories = jax.tree.map(np.asarray, trajectory), np.asarray(categories)
    check_labels(model, trajectory, categories)
    windows = _windows(model, marks, categories, np.asarray(trajectory.length), config.slack)
    split_key, draw_key, dropout_key = jax.random.split(key, 3)
    train_rows, held_rows = split(categories, config.held_out, generator(split_key))
    held_room = round(room * config.held_out)
    noisy = None if likelihood is None else np.asarray(likelihood, np.float32)
    every = Labelled(trajectory, categories, windows, noisy, room)
    train = every.part(train_rows, room - held_room)
    held = every.part(held_rows, held_room) if len(held_rows) else None

    if float(model.standardisation.seen) == 0.0:
        model = model.with_standardisation(Standardisation.of(train.trajectory))
    draws = Draws(train.categories, model, config, generator(draw_key))
    model, best_steps, looks = _maximise(uncalibrated(model), train, held, draws, config, dropout_key, progress)
    model, before, after = _calibrated(model, held, config.calibrate) if held else (model, None, None)
    return model, FitReport(
        train=len(train_rows),
        held_out=len(held_rows),
        marks=0 if windows is None else int(windows.marked.sum()),
        category_counts=tuple(np.bincount(categories, minlength=model.categories).tolist()),
        steps=looks[-1].step,
        best_steps=best_steps,
        epochs=looks[-1].step * config.batch / len(train_rows),
        seconds=time.perf_counter() - began,
        parameters=sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, trainable(model)))),
        train_loss=tuple(look.train_loss for look in looks),
        held_out_loss=tuple(look.held_out_loss for look in looks) if held else (),
        before_calibration=before,
        scores=after,
        calibration={name: float(value) for name, value in vars(model.calibration).items()},
    )


def _maximise(
    model: M,
    train: Labelled,
    held: Labelled | None,
    draws: "Draws",
    config: FitConfig,
    key: PRNGKeyArray,
    progress: Callable[[Progress], None],
) -> tuple[M, tuple[int, ...], list[Progress]]:
    """The best model by the held-out loss, after how many steps each member had it, and what every look showed."""
    rates, looks = learning_rates(config), list[Progress]()
    state = _start_members(model.members) if isinstance(model, Ensemble) else _start(model)
    judge = calibrated_loss if config.calibrate and train.windows is not None else held_out_loss
    shared = (train.rows(), held.rows() if held else None, draws.correction, config.sparsity, config.average, judge)
    for look, chunk in enumerate(rates):
        keys = jax.random.split(jax.random.fold_in(key, look), draws.shape(len(chunk)))
        own = (state, keys, draws(len(chunk)))
        run = partial(_advance, rates=chunk, shared=shared)
        state, *losses = map_stack(run, own, compiled=look > 0) if isinstance(model, Ensemble) else run(own)
        done = (look + 1) * len(chunk)
        looks.append(Progress(done, rates.size, *(float(np.mean(loss)) for loss in losses)))
        progress(looks[-1])
        if held and 0 < config.patience <= (done - int(np.max(state.best_step))) // len(chunk):
            break
    kept, loss = (state.best, state.best_loss) if held else (state.average, looks[-1].train_loss)
    if not np.isfinite(loss).all():
        raise InputError(
            "the fit's loss is not a finite number: the numbers of the trajectories or the learning rate are too "
            "large; rescale the states, or give a smaller --learning-rate"
        )
    fitted = cast(M, model.with_members(kept) if isinstance(model, Ensemble) else kept)
    return fitted, tuple(np.atleast_1d(state.best_step).tolist()), looks


def _calibrated(model: M, held: Labelled, wanted: bool) -> tuple[M, Scores, Scores]:
    """The model, calibrated if that is wanted, and its scores before and after."""
    truth = held.categories
    evidence = evidence_of(model, held.trajectory, held.room)
    before = scores(probabilities_of(model, evidence, len(truth)), truth)
    model = calibrate(model, evidence, truth, held.likelihood) if wanted else model
    return model, before, scores(probabilities_of(model, evidence, len(truth)), truth)


def check_labels(model: SafetyModel, trajectory: Trajectory, categories: np.ndarray) -> None:
    """Refuse labels that do not fit the model or the trajectories."""
    if categories.shape != (len(trajectory),) or categories.dtype.kind not in "iu":
        raise InputError(
            f"a fit needs one whole number as the category of each trajectory: {len(trajectory)} of them, "
            f"not {categories.dtype} of shape {categories.shape}"
        )
    if len(categories) < 2:
        raise InputError(f"a fit needs at least two labelled trajectories, not {len(categories)}; label more")
    if categories.min() < 0 or categories.max() >= model.categories:
        raise InputError(
            f"categories go from 0 to {model.categories - 1} here, and there are labels "
            f"from {categories.min()} to {categories.max()}"
        )
    sizes = (trajectory.states.shape[2], trajectory.actions.shape[2])
    if sizes != (model.state_size, model.action_size):
        raise InputError(
            f"the safety model reads states of {model.state_size} and actions of {model.action_size} numbers, "
            f"and these trajectories have {sizes[0]} and {sizes[1]}"
        )
    if np.min(trajectory.length) < 1:
        raise InputError("a labelled trajectory needs at least one step, and one of these has none")
    real = np.asarray(trajectory.mask)
    if not all(np.isfinite(part[real]).all() for part in (trajectory.states, trajectory.actions, trajectory.rewards)):
        raise InputError(
            "a labelled trajectory has a state, an action or a reward that is not a finite number; leave it out"
        )


def _windows(
    model: SafetyModel, marks: np.ndarray | None, categories: np.ndarray, length: np.ndarray, slack: int
) -> Windows | None:
    """When severities were reached; None where nobody marked anything, and the category is all there is."""
    if marks is None:
        return None
    marks = np.asarray(marks)
    if marks.shape != (len(categories), model.categories - 1) or marks.dtype.kind not in "iu":
        raise InputError(
            f"marks are whole numbers, one for each trajectory and severity: shape "
            f"{(len(categories), model.categories - 1)}, not {marks.dtype} of shape {marks.shape}"
        )
    if np.any(marks >= length[:, None]):
        raise InputError("a mark lies after the end of its trajectory; steps count from 0")
    return windows_of(marks, categories, length, slack) if np.any(marks >= 0) else None


def generator(key: PRNGKeyArray) -> np.random.Generator:
    """NumPy's random numbers from a key, for what is drawn on the host."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def split(categories: np.ndarray, share: float, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and rows to hold out, every category held out in proportion."""
    order = random.permutation(len(categories))
    order = order[np.argsort(categories[order], kind="stable")]
    held = np.diff(np.floor(np.arange(len(order) + 1) * share + 0.5)) > 0
    return np.sort(order[~held]), np.sort(order[held])


class Draws:
    """Minibatches of row numbers; members of an ensemble draw from bootstraps of their own.

    A row of category k is drawn with a chance that is proportional to (share of k)^-balance.
    """

    def __init__(self, categories: np.ndarray, model: SafetyModel, config: FitConfig, random: np.random.Generator):
        shares = np.maximum(np.bincount(categories, minlength=model.categories), 1) / len(categories)
        weights = shares[categories] ** -config.balance
        members = model.size if isinstance(model, Ensemble) else 1
        if isinstance(model, Ensemble) and config.bootstrap:
            hits = random.multinomial(len(categories), np.full(len(categories), 1 / len(categories)), size=members)
        else:
            hits = np.ones((members, len(categories)), int)
        self.edges = np.cumsum(hits * weights[None], axis=1)
        self.correction = jnp.asarray(-config.balance * np.log(shares), jnp.float32)
        self.batch, self.random = config.batch, random
        self.is_ensemble = isinstance(model, Ensemble)

    def shape(self, steps: int) -> tuple[int, ...]:
        return (len(self.edges), steps) if self.is_ensemble else (steps,)

    def __call__(self, steps: int) -> Int[Array, "*member steps batch"]:
        where = self.random.random((len(self.edges), steps, self.batch)) * self.edges[:, -1, None, None]
        rows = np.stack(
            [np.searchsorted(edges, own, side="right") for edges, own in zip(self.edges, where, strict=True)]
        )
        return jnp.asarray(rows if self.is_ensemble else rows[0], jnp.int32)


def learning_rates(config: FitConfig) -> Float[np.ndarray, "looks steps"]:
    """Linear warm-up, then a half cosine down to nothing; one row between two looks."""
    looks = -(-config.steps // config.check_every)
    steps = config.steps // looks * looks
    at = (np.arange(steps) + 1) / steps
    rise = np.minimum(at / WARMUP, 1.0)
    past = np.clip((at - WARMUP) / (1.0 - WARMUP), 0.0, 1.0)
    fall = 0.5 * (1 + np.cos(np.pi * past))
    return (config.learning_rate * rise * fall).astype(np.float32).reshape(looks, -1)


def mean_loss(log_probabilities: Array, categories: Array, correction: Array) -> Float[Array, ""]:
    """Mean of -log P(category | drawn), P(k | drawn) being proportional to P(k) exp(correction_k).

    Drawing category k more often by exp(correction_k) shifts its odds by as much; with the shift in the likelihood,
    the model itself learns the odds of the data (case-control sampling).
    """
    drawn = jax.nn.log_softmax(log_probabilities + jnp.broadcast_to(correction, log_probabilities.shape))
    return -jnp.mean(jnp.take_along_axis(drawn, categories[:, None], axis=1)[:, 0])


def row_norms(weight: Float[Array, "input units"]) -> Float[Array, ""]:
    """sum_i |w_i|, the group lasso's penalty: a row shrinks as a whole, whatever its size (smooth at nothing)."""
    return jnp.sum(jnp.sqrt(jnp.sum(jnp.square(weight), axis=1) + 1e-8))


def marks_loss(
    log_probabilities: Float[Array, "batch categories"], log_joint: Float[Array, " batch"], rows: Rows
) -> Float[Array, ""]:
    """Mean of -log P(marks | category), over all rows; those without marks add nothing."""
    assert rows.windows is not None
    of_truth = jnp.take_along_axis(log_probabilities, rows.categories[:, None], axis=1)[:, 0]
    return -jnp.mean(jnp.where(jnp.any(rows.windows.marked, axis=1), log_joint - of_truth, 0.0))


def erring_loss(
    log_probabilities: Float[Array, "batch categories"],
    log_joint: Float[Array, " batch"] | None,
    rows: Rows,
    correction: Array,
) -> Float[Array, ""]:
    """Mean of -log sum_t P(t | drawn) P(what was said | t): the truth is not known, and every category may be it.

    Marks belong to the category that was said. If another one is the truth they are slips, anywhere in the trajectory.
    """
    drawn = jax.nn.log_softmax(log_probabilities + jnp.broadcast_to(correction, log_probabilities.shape))
    terms = drawn + log_said(rows)
    if log_joint is not None:
        assert rows.windows is not None
        of_said = jnp.take_along_axis(log_probabilities, rows.categories[:, None], axis=1)[:, 0]
        first, last, marked = rows.windows
        wide = jnp.log((last - first + 1) / jnp.maximum(rows.length, 1)[:, None])
        slips = jnp.sum(jnp.where(marked, jnp.minimum(wide, 0.0), 0.0), axis=1)
        marks = jnp.where(jnp.any(marked, axis=1), log_joint - of_said, 0.0)
        said = jax.nn.one_hot(rows.categories, terms.shape[1], dtype=bool)
        terms = terms + jnp.where(said, marks[:, None], slips[:, None])
    return -jnp.mean(jax.nn.logsumexp(terms, axis=1))


def log_said(rows: Rows) -> Float[Array, "rows categories"]:
    """log P(what was said | truth)."""
    assert rows.likelihood is not None
    return jnp.log(jnp.maximum(rows.likelihood, IMPOSSIBLE))


def calibrated_loss(model: SafetyModel, held: Rows) -> Float[Array, ""]:
    """The held-out loss under the best of some calibrations, since a fit ends with one.

    Marks soon make a model right about most trajectories and too sure of all. Judged as it is, it would be stopped long
    before it is at its best (`benchmarks/marks.py`).
    """
    evidence = in_chunks(lambda rows: model.evidence(*rows), held[:3])

    def loss(calibration: Calibration) -> Float[Array, ""]:
        return _mean_said(model.with_calibration(calibration).conclude(evidence), held)

    return jnp.min(jax.vmap(loss)(type(model.calibration).grid()))


def held_out_loss(model: SafetyModel, held: Rows) -> Float[Array, ""]:
    """Mean of -log P(category), or of what was said; padding has length 0 and does not count."""
    return _mean_said(in_chunks(lambda rows: model.log_probabilities(*rows), held[:3]), held)


def _mean_said(log_probabilities: Float[Array, "rows categories"], held: Rows) -> Float[Array, ""]:
    if held.likelihood is None:
        of_truth = jnp.take_along_axis(log_probabilities, held.categories[:, None], axis=1)[:, 0]
    else:
        of_truth = jax.nn.logsumexp(log_probabilities + log_said(held), axis=1)
    real = held.length > 0
    return -jnp.sum(jnp.where(real, of_truth, 0.0)) / jnp.sum(real, dtype=of_truth.dtype)


# Adam without its step size, which comes with each step so that a schedule needs no new program.
OPTIMISER = optax.chain(optax.clip_by_global_norm(CLIP), optax.scale_by_adam())


def _start(model: SafetyModel) -> Member:
    nothing = jnp.zeros((), int)
    optimiser = OPTIMISER.init(eqx.filter(model, trainable(model)))
    return Member(model, model, optimiser, nothing, model, jnp.asarray(jnp.inf, jnp.float32), nothing)


def _run(
    own: tuple[Member, Key[Array, " steps"], Int[Array, "steps batch"]],
    rates: Float[Array, " steps"],
    shared: tuple[Rows, Rows | None, Array, float, float, Callable[[SafetyModel, Rows], Float[Array, ""]]],
) -> tuple[Member, Float[Array, ""], Float[Array, ""]]:
    """One minibatch for each rate, then a look at the held-out trajectories; a member's `own` state, keys and draws."""
    state, keys, draws = own
    train, held, correction, sparsity, decay, judge = shared

    def minibatch(carry, inputs):
        model, average, memory = carry
        rate, rows, key = inputs
        drawn = jax.tree.map(lambda leaf: leaf[rows], train)
        parameters, rest = eqx.partition(model, trainable(model))

        def loss(parameters):
            model = eqx.combine(parameters, rest)
            if drawn.windows is None:
                log_probabilities, statistics = model.learn(*drawn[:3], key)
                joint = None
            else:
                log_probabilities, joint, statistics = model.learn_marked(*drawn[:3], drawn.windows, key)
            if drawn.likelihood is not None:
                likelihood = erring_loss(log_probabilities, joint, drawn, correction)
            else:
                likelihood = mean_loss(log_probabilities, drawn.categories, correction)
                likelihood += 0.0 if joint is None else marks_loss(log_probabilities, joint, drawn)
            return likelihood + sparsity * row_norms(model.input_weight), (statistics, likelihood)

        (_, (statistics, value)), gradient = jax.value_and_grad(loss, has_aux=True)(parameters)
        updates, memory = OPTIMISER.update(gradient, memory)
        model = eqx.apply_updates(model, jax.tree.map(lambda update: -rate * update, updates))
        model = model.with_statistics(statistics)
        average = jax.tree.map(lambda old, new: new + decay * (old - new), average, model)
        return (model, average, memory), value

    start = (state.model, state.average, state.optimiser)
    (model, average, memory), losses = jax.lax.scan(minibatch, start, (rates, draws, keys))
    step = state.step + rates.shape[0]
    held_loss = jnp.asarray(jnp.nan) if held is None else judge(average, held)
    better = held_loss < state.best_loss
    best, best_loss, best_step = jax.tree.map(
        lambda new, old: jnp.where(better, new, old),
        (average, held_loss, step),
        (state.best, state.best_loss, state.best_step),
    )
    return Member(model, average, memory, step, best, best_loss, best_step), jnp.mean(losses), held_loss


_advance = eqx.filter_jit(_run)
_start_members = jit_fast_compile(eqx.filter_vmap(_start))
