"""The domains: those in this folder, those of installed packages (entry points `sidestep.domains`), and folders
that were added by their path. Nothing else in the package names one."""

import contextlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from sidestep.core.errors import InputError
from sidestep.models.domain import Domain, Paper
from sidestep.models.user_code import FAULTS, FILES, in_words, users_line

__all__ = ["Domain", "Paper", "add_folder", "all_domains", "domain_of_file", "find_domain", "is_built_in"]

GROUP = "sidestep.domains"
_folders: dict[Path, Domain] = {}


def all_domains() -> dict[str, Domain]:
    """Every domain by its name."""
    return _known() | {name: _installed(name) for name in _installed_names() if name not in _known()}


def find_domain(name: str) -> Domain | None:
    """The domain of this name, if there is one."""
    known = _known()
    if not name or name in known:
        return known.get(name)
    return _installed(name) if name in _installed_names() else None


def is_built_in(name: str) -> bool:
    """Whether the domain of this name comes with the package."""
    return name in _built_in()


def domain_of_file(path: Path) -> Domain | None:
    """The domain that reads files with this ending, if there is one."""
    ending = path.suffix.lower()
    return next((domain for domain in all_domains().values() if ending in domain.endings), None) if ending else None


def add_folder(path: Path) -> Domain:
    """Make the domain in this folder known; a folder is read once."""
    folder = path.resolve()
    if folder not in _folders:
        domain = _domain_in(folder, place=str(path))
        if find_domain(domain.name):
            raise InputError(f"there is another domain '{domain.name}'; choose another name", place=str(path))
        _folders[folder] = domain
    return _folders[folder]


def _known() -> dict[str, Domain]:
    return _built_in() | {domain.name: domain for domain in _folders.values()}


@cache
def _built_in() -> dict[str, Domain]:
    packages = (import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__) if found.ispkg)
    return {package.DOMAIN.name: package.DOMAIN for package in packages}


@cache
def _installed_names() -> tuple[str, ...]:
    return tuple(sorted(entry_points(group=GROUP).names))


@cache
def _installed(name: str) -> Domain:
    """The domain that an installed package offers under this name."""
    found = next(iter(entry_points(group=GROUP, name=name)))
    place = f"domain '{name}' of the installed {found.value}"
    domain = _checked(found.load, place)
    if domain.name != name:
        raise InputError(f"its entry point must have the domain's own name, '{domain.name}'", place=place)
    return domain


def _domain_in(folder: Path, place: str) -> Domain:
    """Import the folder as a package under a name of its own."""
    file = folder / "__init__.py"
    if not file.is_file():
        raise InputError("a domain's folder has an __init__.py with a DOMAIN, and this one has none", place=place)
    package = f"sidestep_domain_{len(_folders)}_{folder.name.replace('.', '_')}"
    spec = importlib.util.spec_from_file_location(package, file, submodule_search_locations=[str(folder)])
    assert spec is not None
    module = sys.modules[package] = importlib.util.module_from_spec(spec)
    FILES.update(map(str, folder.glob("*.py")))

    def load() -> object:
        assert spec.loader is not None
        with contextlib.redirect_stdout(sys.stderr):  # standard output is for what the command says
            spec.loader.exec_module(module)
        return getattr(module, "DOMAIN", None)

    return _checked(load, place)


def _checked(load: Callable[[], object], place: str) -> Domain:
    """What `load` gives, if it is a domain; from now on its files are known as a user's."""
    try:
        found = load()
    except FAULTS as error:
        raise InputError(f"cannot be imported: {in_words(error)}", place=users_line(error) or place) from error
    if not isinstance(found, Domain):
        raise InputError(f"its DOMAIN must be a Domain, not a {type(found).__name__}", place=place)
    if found.package not in sys.modules:
        raise InputError(f"there is no package '{found.package}'; write package=__name__", place=place)
    FILES.update(map(str, Path(str(sys.modules[found.package].__file__)).parent.glob("*.py")))
    return found
