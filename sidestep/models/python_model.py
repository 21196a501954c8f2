"""Objects of a user's Python file: models and rules."""

import contextlib
import importlib.util
import sys
from typing import cast

import jax

from sidestep.core.errors import InputError
from sidestep.core.model import Model, Spec, bounds_of
from sidestep.models.trust import GIVEN, Files
from sidestep.models.user_code import FAULTS, FILES, in_words, users_fault, users_line


def load_object(reference: str, what: str, files: Files = GIVEN) -> object:
    """The object that `file.py:name` names; `what` says in an error what it was wanted for."""
    file, _, name = reference.partition(":")
    if not name:
        raise InputError(f"expected file.py:name, the name of the {what} in the file", place=reference)
    path, code = files.code(file, name)
    spec = importlib.util.spec_from_file_location(f"sidestep_user_{path.stem}", path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    FILES.add(str(path))
    try:
        # The very bytes that were looked at: not the file again, nor what Python may have kept of it beside it.
        with contextlib.redirect_stdout(sys.stderr):  # standard output is for what the command says
            exec(compile(code, path, "exec"), vars(module))
    except BaseException as error:
        if users_fault(error) is None and not isinstance(error, Exception):
            raise
        raise InputError(f"cannot be run: {in_words(error)}", place=users_line(error) or file) from error
    if name not in vars(module):
        names = [n for n in vars(module) if not n.startswith("_")]
        raise InputError(f"there is no '{name}' in this file; there are {', '.join(names)}", place=file)
    return vars(module)[name]


def model_from_object(candidate: object, place: str) -> Model:
    """Check that the object follows the contract in shape; a class or function is called for its model first."""
    if isinstance(candidate, type) or (callable(candidate) and not hasattr(candidate, "spec")):
        try:
            candidate = candidate()
        except FAULTS as error:
            raise InputError(
                f"calling it for a model failed: {in_words(error)}; it must need no arguments", place=place
            ) from error
    for attribute in ("spec", "reset", "step"):
        if not hasattr(candidate, attribute):
            raise InputError(
                f"a model has 'spec', 'reset' and 'step', and this object has no '{attribute}'", place=place
            )
    model = cast(Model, candidate)
    if not isinstance(model.spec, Spec):
        raise InputError(f"its 'spec' must be a sidestep.Spec, not a {type(model.spec).__name__}", place=place)
    return model if hasattr(model, "action_bounds") else WithStatedBounds(model)


class WithStatedBounds:
    """A user's model that states its action bounds in the spec only."""

    def __init__(self, inner: Model) -> None:
        self.inner = inner
        self.spec = inner.spec
        self.reset = inner.reset
        self.step = inner.step
        self.allowed = getattr(inner, "allowed", None)
        self.rules = getattr(inner, "rules", ())
        self.broken = getattr(inner, "broken", None)
        self.views = getattr(inner, "views", None)

    def __eq__(self, other: object) -> bool:
        """Compiled programs are found again by their model."""
        return isinstance(other, WithStatedBounds) and self.inner is other.inner

    def __hash__(self) -> int:
        return id(self.inner)

    def action_bounds(self, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        return bounds_of(self.inner, state)
