"""Compiled programs over a stack of learners, which can be compiled in the background before they are needed."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import equinox as eqx

from sidestep.planning.learner import Learner
from sidestep.runtime.compilation import Options
from sidestep.runtime.parallel import blank_part, map_stack
from sidestep.safety.base import SafetyModel

R = TypeVar("R")
Safety = SafetyModel | None

_compiler = ThreadPoolExecutor(1)
_waiting: list[Future[Any]] = []  # programs that are being compiled or are in the queue


class Program(Generic[R]):
    """`make(safety)(learner)` for every learner of a stack, one per seed.

    The safety model is an argument, so that another fit of it does not compile the program again.
    """

    def __init__(self, make: Callable[[Safety], Callable[[Learner], R]], options: Options) -> None:
        self._run: Any = eqx.filter_jit(lambda safety, learner: make(safety)(learner), compiler_options=options)  # type: ignore[call-overload]
        self._prepared: Future[Any] | None = None
        self._compiled = False

    def prepare(self, safety: Safety, learners: Callable[[], Learner]) -> None:
        """Compile in the background for a safety model and learners of these shapes, whatever their values."""
        if self._compiled:
            return
        self._prepared = _compiler.submit(lambda: self._run.lower(safety, blank_part(learners)).compile())
        _waiting.append(self._prepared)

    def __call__(self, safety: Safety, learners: Learner) -> R:
        if self._prepared is not None:
            self._run, self._prepared, self._compiled = self._prepared.result(), None, True
        results: R = map_stack(lambda learner: self._run(safety, learner), learners, compiled=self._compiled)
        self._compiled = True
        return results


def prepare_no_more() -> None:
    """Cancel what has not begun to compile, so that a process that is stopped need not wait for it."""
    while _waiting:
        _waiting.pop().cancel()
