"""Safety models in files: weights in safetensors, and in the header all that is needed to build the model again."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax

from sidestep.compiling import run_once
from sidestep.constraints import Scale
from sidestep.errors import InputError
from sidestep.model import require_finite_weights
from sidestep.safety.base import SafetyModel
from sidestep.safety.classifier import Classifier
from sidestep.safety.ensemble import Ensemble
from sidestep.safety.hazard import HazardModel
from sidestep.safety.markov import MarkovClassifier
from sidestep.safety.recurrent_model import RecurrentModel
from sidestep.safety.share import ShareModel
from sidestep.trees import load_tree, read_header, save_tree

FORMAT = 1
KINDS: dict[str, type[Any]] = {model.kind: model for model in (Classifier, HazardModel, MarkovClassifier, ShareModel)}


def make_safety(
    kind: str, state_size: int, action_size: int, categories: int, *, key: jax.Array, members: int = 1, **config: Any
) -> SafetyModel:
    """A fresh model of this kind; several members make an ensemble."""
    if kind not in KINDS:
        raise InputError(f"there is no safety model of the kind '{kind}'; there are {', '.join(KINDS)}")
    return _fresh(kind, (state_size, action_size, categories), members, config, key)


@run_once  # one program instead of one for each little array
def _fresh(kind: str, sizes: tuple[int, int, int], members: int, config: dict[str, Any], key: jax.Array) -> SafetyModel:
    def make(key: jax.Array) -> SafetyModel:
        return KINDS[kind](*sizes, key=key, **config)

    return make(key) if members == 1 else Ensemble(make, members, key=key)


def save_safety(path: Path, model: SafetyModel, scale: Scale, names: Sequence[str] = (), about: Any = None) -> None:
    """`names` are those of the state's and action's entries; `about` says what it was fitted on and how well."""
    require_finite_weights(model, "the safety model", str(path))
    config = model.config()
    header = {
        "format": FORMAT,
        "kind": config.pop("member", model.kind),
        "members": config.pop("size", 1),
        "sizes": [model.state_size, model.action_size, model.categories],
        "config": config,
        "categories": list(scale.categories),
        "names": list(names),
        "about": about,
    }
    save_tree(path, model, header)


def load_safety(path: Path) -> SafetyModel:
    header = safety_header(path)
    config: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in header["config"].items()
    }
    if issubclass(KINDS[header["kind"]], RecurrentModel):
        config.setdefault("encoder", ())  # files from before there were encoders do not name it

    def fresh() -> SafetyModel:
        return make_safety(header["kind"], *header["sizes"], key=jax.random.key(0), members=header["members"], **config)

    model = load_tree(path, eqx.filter_eval_shape(fresh))
    require_finite_weights(model, "the safety model", str(path))
    return model


def safety_header(path: Path) -> dict[str, Any]:
    """What the file says about itself: categories, names, what it was fitted on."""
    header = read_header(path)
    if "sizes" not in header:
        raise InputError("is a file of ours, but not a safety model", place=str(path))
    if header["format"] != FORMAT:
        raise InputError(f"its format is {header['format']}, and this version reads {FORMAT}", place=str(path))
    return header
