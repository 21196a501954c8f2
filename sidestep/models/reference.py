"""From what a user writes for MODEL to a model.

navigation                     a built-in model
hvac?rooms=24                  the same with options
plan.rddl                      a domain and its instance in one file
domain.rddl:instance.rddl      in two files
warehouse.bp, town.nav         a grid map
my_model.py:model              an object of a Python file that follows the contract

In Python, MODEL may also be such an object itself, or a class or a function that gives one.
"""

import difflib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sidestep.core.errors import InputError
from sidestep.models.domains import all_domains, domain_of_file, find_domain, is_built_in
from sidestep.models.options import Options
from sidestep.models.trust import GIVEN, Files

if TYPE_CHECKING:
    from sidestep.core.model import Model

FORMS = "a built-in name, a path to an .rddl, .bp or .nav file, domain.rddl:instance.rddl, or file.py:object"


def load_model(reference: object, *, double: bool = False, files: Files = GIVEN) -> "Model":
    """The model that `reference` names, or that it is: an object with `spec`, `reset` and `step`, or a class of such.

    `double` builds a named model for float64, to be used under `jax.enable_x64(True)`; `files` says where the files
    are that it names.
    """
    if isinstance(reference, Path):
        reference = str(reference)
    if not isinstance(reference, str):
        from sidestep.models.python_model import model_from_object  # imports JAX

        return model_from_object(reference, place=_described(reference))
    path, _, query = reference.partition("?")
    options = Options(query, place=f"MODEL '{reference}'")
    first, _, second = path.partition(":")
    suffix = Path(first).suffix.lower()
    if suffix == ".rddl":
        return _from_rddl(files.path(first), files.path(second) if second else None, options, double)
    if suffix == ".py":
        from sidestep.models.python_model import load_object, model_from_object  # imports JAX

        options.finish()
        return model_from_object(load_object(path, "model", files), place=path)
    reader = domain_of_file(Path(path))
    if reader is not None:
        return reader.from_file(files.path(path), options)
    return _from_name(path, reference, options, double)


def checked_model(reference: object) -> "Model":
    """The same for a command: a model of the user's is tried out first, and refused if it cannot be used."""
    model = load_model(reference)
    named = isinstance(reference, str | Path)
    if not is_built_in(model.spec.family) or not named or ".py:" in str(reference):
        from sidestep.models.check import quick_check  # imports JAX

        quick_check(model, place=f"MODEL '{reference}'" if named else _described(reference))
    return model


def _described(candidate: object) -> str:
    """What stands in an error for an object of the user's."""
    name = getattr(candidate, "__name__", None) or type(candidate).__name__
    return f"the model {name}"


def _from_rddl(domain: Path, instance: Path | None, options: Options, double: bool) -> "Model":
    from sidestep.models.rddl_model import RddlModel, RddlText  # pyRDDLGym takes 4 s to import

    relaxed, horizon = options.flag("relaxed"), options.integer("horizon", None, 1)
    integers = options.whole_range("integers")
    options.finish()
    text = RddlText.read(domain, instance)
    return RddlModel(text, relaxed=relaxed, double=double, horizon=horizon, integers=integers, name=domain.stem)


def _from_name(name: str, reference: str, options: Options, double: bool) -> "Model":
    domain = find_domain(name)
    if domain is None:
        names = all_domains()
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else f"; the built-in names are {', '.join(names)}"
        raise InputError(f"expected {FORMS}{hint}", place=options.place)
    model = domain.build(options, double)
    model.spec = replace(model.spec, name=reference)  # with its options, so that the name alone finds it again
    return model
