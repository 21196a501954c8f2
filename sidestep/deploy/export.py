"""A policy as one plain Python file that needs only NumPy: the source of `numpy_policy` with the weights below it."""

import base64
import inspect
import json
import os
import textwrap
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Array

from sidestep.core.errors import InputError
from sidestep.core.model import Policy, allowed_of, require_finite_weights
from sidestep.core.records import JsonObject
from sidestep.deploy import numpy_policy
from sidestep.deploy.affine_bounds import affine_bounds
from sidestep.finite.tabular import TabularPolicy
from sidestep.policies.networks import ChoiceHead, GaussianHead, NetworkPolicy
from sidestep.runtime.files import atomic_write
from sidestep.safety.base import SafetyModel
from sidestep.safety.ensemble import Ensemble
from sidestep.safety.hazard import HazardModel

Arrays = dict[str, Array | np.ndarray | None]
USE = '''

class Policy({kind}):
    """{words}"""

    def __init__(self) -> None:
        super().__init__(ABOUT, ARRAYS)


_POLICY = Policy()
'''
ACT = '''

def act(state, clock=0):
    """The action in `state`, one vector or a batch of them, at step `clock` of a trajectory."""
    if _POLICY.about["members"]:
        raise ValueError("this policy remembers earlier steps: make a Policy() and give it the states one by one")
    return _POLICY.at(clock).act(state)
'''
DRAW = '''

def act(state, random=None):
    """The action in `state`, one vector or a batch of them; `random`, a NumPy generator, draws where it is mixed."""
    return _POLICY.act(state, random)
'''


def export_numpy(policy: Policy, path: str | os.PathLike[str]) -> Path:
    """Write the mean action of a planned policy to `path`, a .py file.

    Of a table all its chances are written: where the best policy mixes actions, it has no mean.
    """
    target = Path(path)
    if target.suffix != ".py":
        raise InputError("the policy is written as Python; give a name that ends in .py", place=str(path))
    if not isinstance(policy, NetworkPolicy | TabularPolicy):
        raise InputError(f"only planned policies can be exported, and this is a {type(policy).__name__}")
    require_finite_weights(policy, f"the policy of '{policy.model.spec.name}'")
    table = isinstance(policy, TabularPolicy)
    about, arrays = _table_parts(policy) if isinstance(policy, TabularPolicy) else _parts(policy)
    words = f"The planned policy of {policy.model.spec.name!a}: states {_listed(policy.model.spec.state.names)}."
    words = textwrap.fill(words.replace("\\", "/").replace('"', "'"), 110, subsequent_indent="    ")
    source = [
        inspect.getsource(numpy_policy),
        f"\n\nABOUT = {json.dumps(about)!a}\n",
        "ARRAYS = {\n" + "".join(_literal(name, array) for name, array in arrays.items()) + "}\n",
        USE.format(kind="NumpyTable" if table else "NumpyPolicy", words=words),
        DRAW if table else ACT,
    ]
    atomic_write(target, "".join(source))
    return target


def _table_parts(policy: TabularPolicy) -> tuple[JsonObject, dict[str, np.ndarray]]:
    """What `NumpyTable` is made of: the chances, and the sizes of the one-hot factors that tell a state's row."""
    spec = policy.model.spec
    factors = [variable.size for variable in spec.state.variables]
    about: JsonObject = {"model": spec.name, "state_size": spec.state.size, "factors": factors}
    return about, {"table": np.asarray(policy.table, "<f4")}


def _parts(policy: NetworkPolicy) -> tuple[JsonObject, dict[str, np.ndarray]]:
    """What `NumpyPolicy` is made of."""
    observer, spec = policy.observer, policy.model.spec
    if allowed_of(policy.model) is not None:
        raise InputError(
            f"the model '{spec.name}' forbids actions by more than bounds, and the exported policy could not keep to "
            "that; use it with sidestep.load"
        )
    members = _members(observer.safety)
    arrays: Arrays = {"mean": observer.mean, "deviation": observer.deviation}
    for index, (linear, norm) in enumerate(zip(policy.net.hidden, policy.net.norms, strict=True)):
        parts = {"weight": linear.weight, "bias": linear.bias, "scale": norm.weight, "shift": norm.bias}
        arrays |= {f"hidden.{index}.{name}": array for name, array in parts.items()}
    arrays |= {"head.weight": policy.net.head.weight, "head.bias": policy.net.head.bias}
    bounds = affine_bounds(policy.model)
    arrays |= {"lowest": bounds.lowest, "highest": bounds.highest}
    if bounds.low_slope is not None:
        arrays |= {"low.slope": bounds.low_slope, "low.offset": bounds.low_offset}
        arrays |= {"high.slope": bounds.high_slope, "high.offset": bounds.high_offset}
    for index, member in enumerate(members):
        arrays |= {f"safety.{index}.{name}": array for name, array in _safety_arrays(member).items()}
    about: JsonObject = {
        "model": spec.name,
        "state_size": spec.state.size,
        "horizon": observer.horizon,
        "sees_clock": observer.clock,
        "layers": len(policy.net.hidden),
        "heads": [
            _head(head, variable.size) for head, variable in zip(policy.heads, spec.action.variables, strict=True)
        ],
        "members": len(members),
        "cell": members[0].cell if members else None,
        "recurrent_layers": len(members[0].recurrent.layers) if members else 0,
        "encoder_layers": len(members[0].recurrent.encoder) if members else 0,
    }
    return about, {name: np.asarray(array, "<f4") for name, array in arrays.items()}


def _head(head: GaussianHead | ChoiceHead, size: int) -> JsonObject:
    common = {"size": size, "outputs": head.outputs}
    if isinstance(head, GaussianHead):
        return common | {"kind": "real", "squash": head.squash}
    return common | {"kind": "one-hot" if head.one_hot else "int", "options": head.options}


def _members(safety: SafetyModel | None) -> list[HazardModel]:
    """The hazard models whose memory the policy sees: none, one, or those of an ensemble."""
    if safety is None:
        return []
    if isinstance(safety, HazardModel):
        return [safety]
    if isinstance(safety, Ensemble) and isinstance(safety.members, HazardModel):
        return [jax.tree.map(lambda leaf, i=i: leaf[i], safety.members) for i in range(safety.size)]
    raise InputError(
        f"the policy looks at the memory of a safety model of the kind '{safety.kind}', and only that of the kind "
        "'hazard' can be exported; use the policy with sidestep.load"
    )


def _safety_arrays(model: HazardModel) -> Arrays:
    arrays: Arrays = {"mean": model.standardisation.mean, "deviation": model.standardisation.deviation}
    arrays |= {"log_scale": model.calibration.log_scale, "log_power": model.calibration.log_power}
    arrays |= {"head_weight": model.head_weight, "head_bias": model.head_bias}
    for index, dense in enumerate(model.recurrent.encoder):
        arrays |= {f"encoder.{index}.weight": dense.input_weight, f"encoder.{index}.bias": dense.bias}
    for index, layer in enumerate(model.recurrent.layers):
        arrays |= {f"{index}.{name}": array for name, array in vars(layer).items()}
    return arrays


def _literal(name: str, array: np.ndarray) -> str:
    """One entry of the dictionary of arrays, in lines of readable length."""
    lines = textwrap.wrap(base64.b64encode(array.tobytes()).decode(), 100) or [""]
    return f'    "{name}": (\n        {array.shape},\n' + "".join(f'        "{line}"\n' for line in lines) + "    ),\n"


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(ascii(name)[1:-1] for name in names[:12])
    return shown if len(names) <= 12 else f"{shown}, ... ({len(names)} in all)"
