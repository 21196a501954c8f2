"""Compiled programs over a stack of learners, which can be compiled in the background before they are needed."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax

from sidestep.planning.learner import Learner
from sidestep.policies.networks import sees_present
from sidestep.runtime.compilation import Options
from sidestep.runtime.parallel import blank_part, map_stack
from sidestep.safety.base import SafetyModel

R = TypeVar("R")
Safety = SafetyModel | None

_compiler = ThreadPoolExecutor(1)
_waiting: list[Future[Any]] = []  # programs that are being compiled or are in the queue


class Program(Generic[R]):
    """`make(safety)(learner)` for every learner of a stack, one per seed.

    The safety model is an argument, so that another fit of it does not compile the program again; one of another
    structure does, and one that looks at actions where the other did not.
    """

    def __init__(self, make: Callable[[Safety], Callable[[Learner], R]], options: Options) -> None:
        self._run: Any = eqx.filter_jit(lambda safety, learner: make(safety)(learner), compiler_options=options)  # type: ignore[call-overload]
        self._prepared: dict[object, Future[Any]] = {}  # by `_structure`
        self._compiled: dict[object, Any] = {}

    def prepare(self, safety: Safety, learners: Callable[[], Learner]) -> None:
        """Compile in the background for a safety model and learners of these shapes, whatever their values."""
        structure = _structure(safety)
        if structure in self._compiled or structure in self._prepared:
            return
        task = _compiler.submit(lambda: self._run.lower(safety, blank_part(learners)).compile())
        self._prepared[structure] = task
        _waiting.append(task)

    def __call__(self, safety: Safety, learners: Learner) -> R:
        structure = _structure(safety)
        if structure in self._prepared:
            self._compiled[structure] = self._prepared.pop(structure).result()
        run = self._compiled.get(structure, self._run)
        results: R = map_stack(lambda learner: run(safety, learner), learners, compiled=structure in self._compiled)
        self._compiled[structure] = run
        return results


def _structure(safety: Safety) -> object:
    """What a compiled program is for: the structure of the safety model, and whether policies see its memory with the
    present state in it. The latter follows from values, and a program that was compiled ahead does not check it."""
    return jax.tree.structure(safety), sees_present(safety)


def prepare_no_more() -> None:
    """Cancel what has not begun to compile, so that a process that is stopped need not wait for it."""
    while _waiting:
        _waiting.pop().cancel()
