"""Fitting any safety model: the hazard models by minibatches, counted events by search and ascent, families by both."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sidestep.core.model import Trajectory
from sidestep.runtime.compilation import jit_balanced
from sidestep.safety.base import SafetyModel
from sidestep.safety.boxes import Found, refined
from sidestep.safety.config import FitConfig
from sidestep.safety.counted import CountedEvents
from sidestep.safety.ensemble import Ensemble
from sidestep.safety.families import KEPT, UNTRUSTED, Families, normalised
from sidestep.safety.fit import Progress, fit, generator, split
from sidestep.safety.fit_counted import (
    LAPSE,
    SLACK,
    Ascent,
    CountedRows,
    ascend,
    counted_rows,
    free_starts,
    from_box,
    log_label,
    mark_slack,
    member_of,
    search_box,
    stacked,
    told_by,
    with_features_seen,
)
from sidestep.safety.hazard import HazardModel
from sidestep.safety.pattern import boxes_of
from sidestep.safety.report import FitReport, scores
from sidestep.safety.survival import Hazards

M = TypeVar("M", bound=SafetyModel)

# From a box, whose sides are nearly where they should be; from elsewhere, first from every start and then from the
# best; and on all labels, held-out ones included.
FROM_BOX, BOX_ON_ALL = Ascent(40, rate=0.003), Ascent(80, rate=0.003)
FROM_STARTS, FROM_BEST, FREE_ON_ALL = Ascent(60), Ascent(100), Ascent(30)
CONTENDING = 25.0  # nats by which the box of one statistic may be behind that of the other to be fitted further
EXPLAINED = 0.01  # share of wrong answers up to which a box needs no freer one beside it
MOST_STEPS, FEWEST = 100_000, 200  # steps that an ascent reads at most, and trajectories that it reads anyway
WINDOW = 2  # steps by which a held-out mark may be off
# Nats by which counted events may be behind and yet have half of the trust. Some sixty labels are held out, so that
# chance makes more of a difference; a right pattern is planned better alone, and can be said.
SIMPLER = 3.0


def learn(
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
    new: int = 0,
) -> tuple[M, FitReport]:
    """The model fitted to labels, and how good it is on those that were held out; see `fit`.

    `new`: how many of the labels, the last ones, were given after `model` was fitted. They are the best judges of its
    families: nobody has learned from them, and they are of what was planned by them.
    """
    if not isinstance(model, Families):
        return fit(model, trajectory, categories, config, key, progress, marks=marks, likelihood=likelihood, room=room)
    trajectory, categories = jax.tree.map(np.asarray, trajectory), np.asarray(categories, np.int32)
    hazards, report = fit(
        model.hazards, trajectory, categories, config, key, progress, marks=marks, likelihood=likelihood, room=room
    )
    if marks is None:
        marks = np.full((len(categories), model.categories - 1), -1, np.int32)
    train, held = split(categories, config.held_out, generator(jax.random.split(key, 3)[0]))
    judges = held if len(held) else train
    noisy = None if likelihood is None else np.asarray(likelihood, np.float32)
    known = Known(trajectory, categories, np.asarray(marks, np.int32), noisy, room)
    tried = _tried(model, known.part(train), key)
    groups = (hazards, *(group.with_members(one.members) for group, one in zip(model.counted, tried, strict=True)))
    foreseen = _foreseen(model, known.part(np.arange(len(categories))[-new:])) if new else None
    logs = _weights(groups, tried, known.part(judges), foreseen)
    judged = model.with_groups(groups, logs)
    final = tuple(group.with_members(_on_all(one, known)) for group, one in zip(model.counted, tried, strict=True))
    found = scores(
        np.exp(np.asarray(_probabilities(judged, known.part(judges).rows()))[: len(judges)]), categories[judges]
    )
    fitted = model.with_groups((hazards, *final), logs)
    return cast(M, fitted), replace(report, scores=found if len(held) else None)


class Known(NamedTuple):
    """Labelled trajectories, and how many there may be one day."""

    trajectory: Trajectory
    categories: Int[np.ndarray, " batch"]
    marks: Int[np.ndarray, "batch levels"]
    likelihood: Float[np.ndarray, "batch categories"] | None  # of what was said, for each truth; None: nobody errs
    room: int

    def part(self, rows: np.ndarray) -> "Known":
        noisy = None if self.likelihood is None else self.likelihood[rows]
        return Known(self.trajectory[rows], self.categories[rows], self.marks[rows], noisy, self.room)

    def some(self) -> "Known":
        """As many as an ascent reads, from the first to the last: all, unless they are very many steps."""
        most = max(MOST_STEPS // self.trajectory.rewards.shape[1], FEWEST)
        rows = np.unique(np.linspace(0, len(self.categories) - 1, min(most, len(self.categories))).astype(int))
        return self.part(rows)._replace(room=min(self.room, most))

    def rows(self, slack: tuple[float, ...] = SLACK) -> CountedRows:
        return counted_rows(self.trajectory, self.categories, self.marks, self.room, self.likelihood, slack)


class Tried(NamedTuple):
    """Counted events of one statistic as fitted to some of the labels."""

    members: CountedEvents  # a stack: the box, and the best free one
    found: Found
    fitted: tuple[bool, bool]  # whether each was; others are not trusted
    slack: tuple[float, ...]  # of marks


def _tried(model: Families, known: Known, key: PRNGKeyArray) -> list[Tried]:
    """For each statistic the best box, and where no box explains the labels a freer event as well."""
    blank = [cast(CountedEvents, group.member(0)) for group in model.counted]
    told = told_by(blank[0], *known[:3])
    fresh = [with_features_seen(one, told) for one in blank]
    trusted = np.asarray(model.weights.logs)[model.hazards.size :].reshape(-1, KEPT) > UNTRUSTED  # before
    earlier = [boxes_of(one) if before else () for one, before in zip(blank, trusted[:, 0], strict=True)]
    freer = [
        [cast(CountedEvents, group.member(1))] if before else []
        for group, before in zip(model.counted, trusted[:, 1], strict=True)
    ]
    boxes = [search_box(one, told, before) for one, before in zip(fresh, earlier, strict=True)]
    best = max(boxes, key=lambda found: found.score)
    slack = mark_slack(told, best)
    rows, tried = known.some().rows(slack), []
    for one, found, before in zip(fresh, boxes, freer, strict=True):
        box = from_box(one, found, told)
        if found.score < best.score - CONTENDING:
            tried.append(Tried(stacked([box, box]), found, (False, False), slack))
            continue
        [(fitted, _)] = ascend([box], rows, FROM_BOX)
        if found.wrong <= EXPLAINED * found.answers:
            tried.append(Tried(stacked([fitted, fitted]), found, (True, False), slack))
            continue
        starts = ascend([*free_starts(box, told, key), *before], rows, FROM_STARTS)
        best_start, _ = max(starts, key=lambda start: start[1])
        [(free, _)] = ascend([best_start], rows, FROM_BEST)
        tried.append(Tried(stacked([fitted, free]), found, (True, True), slack))
    return tried


def _on_all(one: Tried, known: Known) -> CountedEvents:
    """The stack, fitted further to all labels."""
    if not any(one.fitted):
        return one.members
    box, free = (member_of(one.members, index) for index in (0, 1))
    told = told_by(box, *known[:3])
    box = from_box(box, refined(told, one.found, box.limit), told)
    rows = known.some().rows(one.slack)
    [(box, _)] = ascend([box], rows, BOX_ON_ALL)
    if one.fitted[1]:
        [(free, _)] = ascend([free], rows, FREE_ON_ALL)
    return stacked([box, free])


def _weights(
    groups: tuple[Ensemble, ...], tried: list[Tried], held: Known, foreseen: Float[np.ndarray, " member"] | None
) -> Float[np.ndarray, " member"]:
    """log-weights by the likelihood of labels that were held out, and of those that came after the fit before; and by
    what was thought before any label: counted events are simpler."""
    usable = np.concatenate([np.ones(groups[0].size, bool), *(np.array(one.fitted) for one in tried)])
    likelihood = _log_labels(groups, held) + (0.0 if foreseen is None else foreseen)
    likelihood = likelihood + SIMPLER * (np.arange(len(likelihood)) >= groups[0].size)
    return normalised(np.where(usable, likelihood, -np.inf))


def _foreseen(model: Families, later: Known) -> Float[np.ndarray, " member"]:
    """The log-likelihood of later labels under each member; who was not trusted at all has the least of the others."""
    likelihood, trusted = _log_labels(model.groups, later), np.asarray(model.weights.logs) > UNTRUSTED
    return np.where(trusted, likelihood, likelihood[trusted].min())


def _log_labels(groups: tuple[Ensemble, ...], known: Known) -> Float[np.ndarray, " member"]:
    """log P(labels) under each member, marks included."""
    rows = known.rows()
    each = [np.asarray(_judged(group.members, rows))[:, : len(known.categories)] for group in groups]
    return np.concatenate(each).sum(axis=1)


@jit_balanced
def _judged(stack: SafetyModel, rows: CountedRows) -> Float[Array, "member rows"]:
    """log P(label) of each row by each member of a stack, with lapses."""
    return eqx.filter_vmap(lambda member: _log_label(member, rows))(stack)


def _log_label(member: SafetyModel, rows: CountedRows) -> Float[Array, " rows"]:
    parts = (rows.states, rows.actions, rows.length)
    survival = jnp.exp(running_survival(member, *parts))  # (row, time, level)
    at = lambda step: jnp.take_along_axis(survival, jnp.maximum(step, 0)[:, None, :], axis=1)[:, 0]  # noqa: E731
    last = jnp.broadcast_to(rows.length[:, None] - 1, rows.marks.shape)
    before = jnp.where(rows.marks - WINDOW > 0, at(rows.marks - WINDOW - 1), 1.0)
    inside = before - at(jnp.minimum(rows.marks + WINDOW, last))
    share = jnp.clip(inside / jnp.maximum(1.0 - at(last), 1e-6), 0.0, 1.0)
    of_marks = jnp.log((1.0 - LAPSE) * share + LAPSE / jnp.maximum(rows.length[:, None], 1).astype(share.dtype))
    return log_label(member.log_probabilities(*parts), jnp.where(rows.marks >= 0, of_marks, 0.0), rows)


def running_survival(
    member: SafetyModel, states: Array, actions: Array, length: Array
) -> Float[Array, "row time level"]:
    """log P(category so far < k) after each step."""
    if isinstance(member, HazardModel):
        totals = Hazards(*(jnp.cumsum(part, axis=-2) for part in member.hazards(states, actions, length)))
        return -member.calibration(totals).worse
    assert isinstance(member, CountedEvents)
    return jnp.moveaxis(member.survival_of(member.counters(states, actions, length), length), 0, 1)


@jit_balanced
def _probabilities(model: SafetyModel, rows: CountedRows) -> Float[Array, "rows categories"]:
    return model.log_probabilities(rows.states, rows.actions, rows.length)
