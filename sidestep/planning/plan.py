"""Planning from the outside: `plan(model, safety, constraints, config, key)`, or step by step with `Planner`."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Key, PRNGKeyArray, PyTree

from sidestep.core.constraints import Constraint
from sidestep.core.model import Model, Trajectory, require_finite, require_finite_weights
from sidestep.core.records import Number
from sidestep.planning.config import PlanConfig
from sidestep.planning.diagnosis import diagnose
from sidestep.planning.learner import Learner
from sidestep.planning.loop import Metrics, cut_phase, lookahead_phase, search_phase, test_phase, train_chunk
from sidestep.planning.problem import Problem
from sidestep.planning.programs import Program
from sidestep.planning.rows import PlanRow
from sidestep.policies.networks import NetworkPolicy, sees_present
from sidestep.runtime.compilation import OFTEN, SELDOM, jit_fast_compile
from sidestep.safety.base import SafetyModel

LOOKAHEADS = 4  # parts of the epochs, between which the policy is improved by lookahead,
LEAST_PART = 25  # if they have at least so many epochs: a policy that learned nothing yet is not worth it
LEEWAY = 0.2  # part of the margin in which a policy still counts as feasible, since training has noise


class PlannerState(eqx.Module):
    """One learner per seed (stacked), and the best feasible policy of each so far: all that a resumed run needs."""

    learners: Learner
    best: NetworkPolicy
    best_return: jax.Array  # (seed,); -inf until a policy was feasible


@dataclass(frozen=True)
class Plan:
    """The result for one seed."""

    policy: NetworkPolicy  # the best feasible one, or the last if none was
    last: NetworkPolicy
    feasible: bool  # by the safety model, on test trajectories of the mean action
    diagnosis: str
    history: list[PlanRow] = field(repr=False)


class Planner:
    """Trains one policy per seed, seeds in parallel, and yields one row of metrics per seed at every test.

    `rule` (optional) gives the true frequencies of the categories for the log; it decides nothing. `quick_compile`
    compiles faster to slower programs, for runs of so few epochs that compiling takes most of the time.
    """

    def __init__(
        self,
        model: Model,
        safety: SafetyModel | None,
        constraints: Sequence[Constraint],
        config: PlanConfig,
        rule: Callable[[Trajectory], ArrayLike] | None = None,
        *,
        quick_compile: bool = False,
    ) -> None:
        self.problem = Problem(model, safety, tuple(constraints))
        config.check(self.problem)
        self.config = config
        self.rule = rule
        self._present = sees_present(safety)
        self._start = jit_fast_compile(self._started)
        self._chunk = Program(
            lambda safety: train_chunk(self._with(safety), config), SELDOM if quick_compile else OFTEN
        )
        self._test = Program(lambda safety: test_phase(self._with(safety), config), SELDOM)
        self._lookahead = Program(lambda safety: lookahead_phase(self._with(safety), config), SELDOM)
        self._cut = Program(lambda safety: cut_phase(self._with(safety), config), SELDOM)
        self._search = Program(lambda safety: search_phase(self._with(safety), config), SELDOM)

    def _with(self, safety: SafetyModel | None) -> Problem:
        return Problem(self.problem.model, safety, self.problem.constraints)

    def _started(self, safety: SafetyModel | None, keys: Key[Array, " run"], policy: NetworkPolicy | None) -> Learner:
        start = partial(Learner.start, present=self._present)
        learners = eqx.filter_vmap(lambda key: start(self._with(safety), self.config, key, policy))(keys)
        return jax.tree.map(_strong, learners)

    def set_safety_model(self, safety: SafetyModel) -> None:
        """Continue with this safety model, which has the shape of the one before."""
        self.problem = self._with(safety)

    def prepare(self, learners: Callable[[], Learner]) -> None:
        """Compile the programs in the background, for learners of these shapes."""
        if self.config.search:
            self._search.prepare(self.problem.safety, learners)
        self._test.prepare(self.problem.safety, learners)
        self._chunk.prepare(self.problem.safety, learners)
        if self.config.lookahead:
            self._lookahead.prepare(self.problem.safety, learners)

    def start(
        self,
        keys: Key[Array, " run"],
        policy: NetworkPolicy | None = None,
        *,
        search: bool = True,
        tolerances: ArrayLike | None = None,
    ) -> PlannerState:
        """The state before the first epoch, one seed for each key; all of them start from `policy` if it is given.

        `tolerances` (seed, constraint) are trained for in place of the constraints' own.
        Without `search` only its structure is right, which is enough to load a checkpoint into.
        """
        learners = self._start(self.problem.safety, keys, policy)
        if tolerances is not None:
            learners = retarget(learners, tolerances, self.config)
        if search and self.config.search and policy is None:
            learners = jax.tree.map(_strong, self._search(self.problem.safety, learners))
        return PlannerState(learners, learners.policy, jnp.full(len(keys), -jnp.inf, float))

    def run(self, state: PlannerState) -> Iterator[tuple[PlannerState, list[PlanRow]]]:
        """From `state` to the last epoch: the state and the rows of every test on the way."""
        while int(state.learners.epoch[0]) < self.config.epochs:
            state, rows = self.advance(state)
            yield state, rows

    def advance(self, state: PlannerState) -> tuple[PlannerState, list[PlanRow]]:
        """Train up to the next test, improve by lookahead where that is due, and test."""
        begun = time.perf_counter()
        learners, training = self._chunk(self.problem.safety, state.learners)
        if self._looks_ahead(int(learners.epoch[0])):
            learners, training["lookahead_gain"] = self._lookahead(self.problem.safety, learners)
        return self._after(replace(state, learners=learners), training, begun)

    def cut_at_bounds(self, learners: Learner) -> Learner:
        """Learners at their first epoch, whose policies act alike and are cut at their bounds."""
        cut = self._cut(self.problem.safety, learners)
        return jax.tree.map(_strong, replace(cut, epoch=jnp.zeros_like(cut.epoch)))

    def _after(self, state: PlannerState, training: Metrics, begun: float) -> tuple[PlannerState, list[PlanRow]]:
        """The state with its best policies, by a test, and the rows of the test."""
        learners, best, best_return = state.learners, state.best, np.asarray(state.best_return)
        results, trajectories = self._tested(learners)
        training, results = jax.tree.map(np.asarray, (training, results))
        feasible = self._feasible(results["mean"], np.asarray(learners.tolerances))
        # Without noise in the gradient the latest policy is the best, whatever the noise of a test says.
        better = feasible & ((results["mean"]["return"] > best_return) | self.config.reward.noiseless)
        best = jax.tree.map(lambda new, old: _choose(better, new, old), learners.policy, best)
        state = PlannerState(learners, best, jnp.asarray(np.where(better, results["mean"]["return"], best_return)))
        seconds = time.perf_counter() - begun
        truth = self._true_shares(trajectories)
        epoch = int(learners.epoch[0])
        rows = [
            self._row(index, epoch, training, results, truth, bool(feasible[index]), seconds)
            for index in range(len(feasible))
        ]
        return state, rows

    def _looks_ahead(self, epoch: int) -> bool:
        """Whether an improvement by lookahead is due before the test of this epoch; the last word is the gradient's."""
        epochs, before = self.config.epochs, epoch - self.config.test_every
        new_part = LOOKAHEADS * epoch // epochs > LOOKAHEADS * before // epochs
        long_enough = epochs >= LOOKAHEADS * LEAST_PART
        return self.config.lookahead is not None and long_enough and epoch < epochs and new_part

    def test(self, learners: Learner) -> dict[str, Metrics]:
        """Figures of every learner's policy on test trajectories, by its mean and its sampled action."""
        return self._tested(learners)[0]

    def _tested(self, learners: Learner) -> tuple[dict[str, Metrics], dict[str, Trajectory]]:
        """Figures and trajectories of a test; numbers that are not finite are refused by name."""
        spec = self.problem.model.spec
        place = f"model '{spec.name}', epoch {int(learners.epoch[0])}"
        require_finite_weights(learners.policy, "training failed (is the model's gradient finite?): a policy", place)
        results, trajectories = self._test(self.problem.safety, learners)
        flat = {name: jax.tree.map(_batch_of_all, trajectory) for name, trajectory in trajectories.items()}
        flat = {name: require_finite(spec, trajectory) for name, trajectory in flat.items()}
        require_finite_weights(results, "a test of the policies", place)
        return results, flat

    def finish(self, state: PlannerState, history: Sequence[PlanRow]) -> list[Plan]:
        """One plan per seed, from the final state and all rows."""
        plans = []
        for index in range(len(state.best_return)):
            rows = [row for row in history if row.seed_index == index]
            feasible = bool(np.isfinite(state.best_return[index])) if self.problem.constraints else True
            best, last = _of_seed(state.best, index), _of_seed(state.learners.policy, index)
            text = diagnose(rows, self.problem.constraints, self.config)
            plans.append(Plan(best if feasible else last, last, feasible, text, rows))
        return plans

    def _feasible(self, mean: dict[str, np.ndarray], tolerances: np.ndarray) -> np.ndarray:
        if not self.problem.constraints:
            return np.ones(len(mean["return"]), bool)
        room = np.maximum(self.problem.tolerances - tolerances, 0.0)
        accepted = tolerances + LEEWAY * room
        # A network never predicts exactly zero.
        never = self.config.multiplier.never
        return np.all(mean["costs"] <= np.where(accepted == 0, never, accepted), axis=1)

    def _true_shares(self, trajectories: dict[str, Trajectory]) -> dict[str, np.ndarray]:
        if self.rule is None:
            return {}
        count = self.problem.safety.categories if self.problem.safety is not None else None
        shares = {}
        for name, trajectory in trajectories.items():
            batch = self.config.test_batch
            categories = np.asarray(self.rule(trajectory)).reshape(-1, batch)
            width = count or int(categories.max()) + 1
            shares[name] = np.stack([np.bincount(row, minlength=width) / batch for row in categories])
        return shares

    def _row(
        self, index: int, epoch: int, training: PyTree, results: PyTree, truth: PyTree, feasible: bool, seconds: float
    ) -> PlanRow:
        figures = {f"train_{name}": values[index] for name, values in training.items()}
        for action, found in results.items():
            figures |= {f"{action}_{name}": values[index] for name, values in found.items()}
            if action in truth:
                figures[f"{action}_true"] = truth[action][index]
        row = PlanRow(seed_index=index, epoch=epoch, feasible=feasible, seconds=Number(seconds))
        return row.with_figures({name: np.asarray(value) for name, value in figures.items()})


def plan(
    model: Model,
    safety: SafetyModel | None,
    constraints: Sequence[Constraint],
    config: PlanConfig,
    key: PRNGKeyArray,
    *,
    policy: NetworkPolicy | None = None,
    rule: Callable[[Trajectory], ArrayLike] | None = None,
) -> Plan:
    """Train one policy to maximise return within the constraints, by the learned safety model."""
    planner = Planner(model, safety, constraints, config, rule)
    steps = list(planner.run(planner.start(jnp.expand_dims(key, 0), policy)))
    return planner.finish(steps[-1][0], [row for _, rows in steps for row in rows])[0]


def retarget(learners: Learner, tolerances: ArrayLike, config: PlanConfig) -> Learner:
    """Learners that train for these tolerances (seed, constraint), with multipliers to match.

    What may always happen needs no resistance, so a multiplier starts at (1 - d) of its usual first value.
    """
    tolerances = jnp.asarray(tolerances, float)
    rule = config.multiplier
    first = jnp.maximum(rule.start * (1.0 - tolerances), rule.least_start)
    fresh = learners.multipliers.updates[:, None] == 0
    value = jnp.where(fresh, first, jnp.maximum(learners.multipliers.value, first))
    return replace(learners, tolerances=tolerances, multipliers=replace(learners.multipliers, value=value))


def _of_seed(tree: PyTree, index: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _batch_of_all(leaf: Array) -> np.ndarray:
    """(seed, batch, ...) as (seed * batch, ...)."""
    return np.asarray(leaf).reshape(-1, *leaf.shape[2:])


def _choose(better: np.ndarray, new: PyTree, old: PyTree) -> PyTree:
    return np.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old) if eqx.is_array(new) else old


def _strong(leaf: PyTree) -> PyTree:
    """Without weak types, which would make the second chunk compile anew."""
    return jax.lax.convert_element_type(leaf, leaf.dtype) if _is_number(leaf) else leaf


def _is_number(leaf: PyTree) -> bool:
    return eqx.is_array(leaf) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
