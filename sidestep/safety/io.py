"""Safety models in files: weights in safetensors, and in the header all that is needed to build the model again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray

from sidestep.core.constraints import Scale
from sidestep.core.errors import InputError
from sidestep.core.model import require_finite_weights
from sidestep.core.records import Json, Number, checked
from sidestep.runtime.compilation import jit_fast_compile
from sidestep.runtime.serialisation import damaged, load_tree, read_header, require_room, save_tree
from sidestep.safety.base import Layers, SafetyModel
from sidestep.safety.classifier import Classifier
from sidestep.safety.counted import CountedEvents
from sidestep.safety.ensemble import Ensemble
from sidestep.safety.families import Families
from sidestep.safety.hazard import HazardModel
from sidestep.safety.markov import MarkovClassifier
from sidestep.safety.share import ShareModel

FORMAT = 1
KINDS: dict[str, Callable[..., SafetyModel]] = {
    model.kind: model for model in (Classifier, CountedEvents, Families, HazardModel, MarkovClassifier, ShareModel)
}


def register_safety(kind: type) -> type[SafetyModel]:
    """Make a safety model of your own known by its `kind`, so that it can be fitted, saved and loaded.

    `kind(state_size, action_size, categories, *, key, **shape)` builds a fresh one, where `shape` is what its `shape()`
    says. Can be used as a decorator.
    """
    if not (isinstance(kind, type) and issubclass(kind, SafetyModel)):
        raise InputError(f"a safety model is a subclass of sidestep.safety.base.SafetyModel, not {kind!r}")
    KINDS[kind.kind] = kind
    return kind


def _require_kind(kind: str) -> None:
    if kind not in KINDS:
        raise InputError(
            f"there is no safety model of the kind '{kind}'; there are {', '.join(KINDS)}, and what "
            "sidestep.register_safety makes known"
        )


@dataclass(frozen=True)
class Scores:
    """How good the fit was on trajectories that it never saw, as far as a report shows it."""

    trajectories: int | None = None
    accuracy: Number | None = None
    log_loss: Number | None = None
    calibration_error: Number | None = None


@dataclass(frozen=True)
class FitAbout:
    """What a file says of its fit."""

    scores: Scores | None = None


@dataclass(frozen=True)
class About:
    """What a file says of how its model came about."""

    labels: int | None = None
    pattern: str | None = None  # what was learned, in words
    fit: FitAbout | None = None


@dataclass(frozen=True)
class SafetyHeader:
    """What a safety model's file says about itself: enough to build it again, and what it is about."""

    format: int
    kind: str
    sizes: tuple[int, ...]  # of the state, of the action, of the scale
    categories: tuple[str, ...]
    config: Layers
    members: int = 1
    names: tuple[str, ...] = ()
    about: About | None = None

    def __post_init__(self) -> None:
        _require_kind(self.kind)
        if len(self.sizes) != 3 or self.sizes[2] != len(Scale(self.categories)):
            raise InputError(f"its sizes {list(self.sizes)} and its categories do not fit together")
        if self.members < 1:
            raise InputError(f"an ensemble needs at least one member, not {self.members}")


def make_safety(
    kind: str,
    state_size: int,
    action_size: int,
    categories: int,
    *,
    key: PRNGKeyArray,
    members: int = 1,
    **shape: object,
) -> SafetyModel:
    """A fresh model of this kind; several members make an ensemble."""
    _require_kind(kind)
    return _fresh(kind, (state_size, action_size, categories), members, shape, key)


@jit_fast_compile  # one program instead of one for each little array
def _fresh(
    kind: str, sizes: tuple[int, ...], members: int, shape: Mapping[str, object], key: PRNGKeyArray
) -> SafetyModel:
    def make(key: PRNGKeyArray) -> SafetyModel:
        return KINDS[kind](*sizes, key=key, **shape)

    return make(key) if members == 1 else Ensemble(make, members, key=key)


def save_safety(
    path: Path, model: SafetyModel, scale: Scale, names: Sequence[str] = (), about: Mapping[str, Json] | None = None
) -> None:
    """`names` are those of the state's and action's entries; `about` says what it was fitted on and how well."""
    require_finite_weights(model, "the safety model", str(path))
    header = {
        "format": FORMAT,
        "kind": model.members.kind if isinstance(model, Ensemble) else model.kind,
        "members": model.size if isinstance(model, Ensemble) else 1,
        "sizes": [model.state_size, model.action_size, model.categories],
        "config": model.shape().given,
        "categories": list(scale.categories),
        "names": list(names),
        "about": about,
    }
    save_tree(path, model, header)


def load_safety(path: str | Path) -> SafetyModel:
    """The safety model in this file."""
    path = Path(path)
    header = safety_header(path)
    shape = header.config
    if shape.cell is not None and shape.encoder is None:
        shape = replace(shape, encoder=())  # files from before there were encoders do not name it
    stacks = [shape.encoder or (), shape.hidden or ()]
    sides = [*header.sizes, header.members, shape.units or 1, *(width for widths in stacks for width in widths)]
    require_room(path, sides, sum(map(len, stacks)) + (shape.layers or 0))

    def fresh() -> SafetyModel:
        return _fresh(header.kind, header.sizes, header.members, shape.given, jax.random.key(0))

    try:
        like = eqx.filter_eval_shape(fresh)
    except TypeError as error:  # a keyword that this kind of model does not know
        raise damaged(path, error) from None
    model = load_tree(path, like)
    require_finite_weights(model, "the safety model", str(path))
    return model


def safety_header(path: Path) -> SafetyHeader:
    """What the file says about itself: categories, names, what it was fitted on."""
    header = read_header(path)
    if "sizes" not in header:
        raise InputError("is a Sidestep file, but not a safety model", place=str(path))
    if header.get("format") != FORMAT:
        raise InputError(f"its format is {header.get('format')}, and this version reads {FORMAT}", place=str(path))
    return checked(SafetyHeader, header, str(path))
