"""Compiled programs over a stack of learners, which can be compiled in the background before they are needed."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax

from sidestep.halves import first_half, in_halves
from sidestep.model import Model
from sidestep.planning.learner import Learner

Make = Callable[[Any], Callable[[Learner], Any]]  # safety model -> learner -> result
Stacked = Callable[[Any, Learner], Any]

_compiler = ThreadPoolExecutor(1)
_waiting: list[Future[Any]] = []  # what is being compiled or waits for it


class Program:
    """`make(safety)(learner)` for a stack of learners, one a seed.

    The safety model is an argument, so that a refitted one does not compile it anew.
    """

    def __init__(self, model: Model, make: Make) -> None:
        # One after the other where trajectories end, since only then can a batch that has ended be skipped.
        self._stacked: Any = eqx.filter_jit(_one_by_one(make) if model.spec.ends else _side_by_side(make))
        self._prepared: Future[Any] | None = None

    def prepare(self, safety: Any, learners: Callable[[], Learner]) -> None:
        """Compile in the background for a safety model and learners of these shapes, whatever their values."""
        self._prepared = _compiler.submit(lambda: self._stacked.lower(safety, first_half(learners())).compile())
        _waiting.append(self._prepared)

    def __call__(self, safety: Any, learners: Learner) -> Any:
        run = self._stacked if self._prepared is None else self._prepared.result()
        return in_halves(lambda part: run(safety, part), learners)


def prepare_no_more() -> None:
    """Leave out what has not begun to compile, so that a process that is stopped need not wait for it."""
    while _waiting:
        _waiting.pop().cancel()


def _side_by_side(make: Make) -> Stacked:
    return eqx.filter_vmap(lambda safety, learner: make(safety)(learner), in_axes=(None, eqx.if_array(0)))


def _one_by_one(make: Make) -> Stacked:
    def run(safety, learners):
        arrays, rest = eqx.partition(learners, eqx.is_array)
        first = eqx.combine(jax.tree.map(lambda leaf: leaf[0], arrays), rest)
        shapes = eqx.filter_eval_shape(make(safety), first)
        statics = eqx.filter(shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct), inverse=True)

        def one(leaves):
            return eqx.filter(make(safety)(eqx.combine(leaves, rest)), eqx.is_array)

        return eqx.combine(jax.lax.map(one, arrays), statics)

    return run
