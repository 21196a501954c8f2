"""Compiled programs over a stack of learners, which can be compiled in the background before they are needed."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import equinox as eqx

from sidestep.beside import blank_part, each
from sidestep.compiling import Options
from sidestep.planning.learner import Learner

_compiler = ThreadPoolExecutor(1)
_waiting: list[Future[Any]] = []  # what is being compiled or waits for it


class Program:
    """`make(safety)(learner)` for every learner of a stack, one a seed.

    The safety model is an argument, so that a refitted one does not compile it anew.
    """

    def __init__(self, make: Callable[[Any], Callable[[Learner], Any]], options: Options) -> None:
        self._run: Any = eqx.filter_jit(lambda safety, learner: make(safety)(learner), compiler_options=options)  # type: ignore[call-overload]
        self._prepared: Future[Any] | None = None
        self._compiled = False

    def prepare(self, safety: Any, learners: Callable[[], Learner]) -> None:
        """Compile in the background for a safety model and learners of these shapes, whatever their values."""
        if self._compiled:
            return
        self._prepared = _compiler.submit(lambda: self._run.lower(safety, blank_part(learners)).compile())
        _waiting.append(self._prepared)

    def __call__(self, safety: Any, learners: Learner) -> Any:
        if self._prepared is not None:
            self._run, self._prepared, self._compiled = self._prepared.result(), None, True
        results = each(lambda learner: self._run(safety, learner), learners, compiled=self._compiled)
        self._compiled = True
        return results


def prepare_no_more() -> None:
    """Leave out what has not begun to compile, so that a process that is stopped need not wait for it."""
    while _waiting:
        _waiting.pop().cancel()
