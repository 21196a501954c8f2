"""What an exported policy is made of: its numbers, and what is to be done with them."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sidestep.core.errors import InputError
from sidestep.core.model import Policy, allowed_of, require_finite_weights
from sidestep.core.records import JsonObject
from sidestep.deploy.affine_bounds import affine_bounds
from sidestep.finite.tabular import HorizonPolicy, TabularPolicy
from sidestep.policies.networks import ChoiceHead, GaussianHead, Network, NetworkPolicy, name_of
from sidestep.safety.base import SafetyModel
from sidestep.safety.counted import CountedEvents
from sidestep.safety.derived import MOST_PAIRS
from sidestep.safety.ensemble import members_of
from sidestep.safety.families import Families
from sidestep.safety.hazard import HazardModel

Arrays = dict[str, Array | np.ndarray | None]


def exported_parts(policy: Policy) -> tuple[str, JsonObject, dict[str, np.ndarray]]:
    """The class of `numpy_policy` that acts as this policy does, what it has to know, and its arrays.

    Of a table the arrays are all its chances: where the best policy mixes actions, it has no mean.
    """
    if not isinstance(policy, NetworkPolicy | TabularPolicy | HorizonPolicy):
        raise InputError(f"only planned policies can be exported, and this is a {type(policy).__name__}")
    require_finite_weights(policy, f"the policy of '{policy.model.spec.name}'")
    if isinstance(policy, NetworkPolicy):
        return ("NumpyPolicy", *network_parts(policy))
    return _table_parts(policy)


def _table_parts(policy: TabularPolicy | HorizonPolicy) -> tuple[str, JsonObject, dict[str, np.ndarray]]:
    """The chances of a table, or those of its parts, and the sizes of the one-hot factors that tell a state's row."""
    spec = policy.model.spec
    factors = [variable.size for variable in spec.state.variables]
    about: JsonObject = {"model": spec.name, "state_size": spec.state.size, "factors": factors}
    if isinstance(policy, TabularPolicy):
        return "NumpyTable", about, {"table": np.asarray(policy.table, "<f4")}
    schedule = policy.schedule
    if schedule.which.size == schedule.tables.shape[1] == 1:  # one table of states alone
        table = np.eye(schedule.letters.shape[1], dtype="<f4")[schedule.tables[0, 0]]
        return "NumpyTable", about, {"table": table}
    arrays = {name: np.asarray(part, "<f4") for name, part in schedule._asdict().items()}
    return "NumpyHorizon", about | {"horizon": spec.horizon}, arrays


def network_parts(policy: NetworkPolicy) -> tuple[JsonObject, dict[str, np.ndarray]]:
    """What `NumpyPolicy` is made of."""
    observer, spec = policy.observer, policy.model.spec
    if allowed_of(policy.model) is not None:
        raise InputError(
            f"the model '{spec.name}' forbids actions by more than bounds, and the exported policy could not keep to "
            "that; use it with sidestep.load"
        )
    net = policy.net
    if not isinstance(net, Network):
        raise InputError(
            f"the network '{name_of(net)}' is your own, and only the built-in one can be exported; use the policy with "
            "sidestep.load"
        )
    members, events = _members(observer.safety)
    arrays: Arrays = {"mean": observer.mean, "deviation": observer.deviation}
    for index, (linear, norm) in enumerate(zip(net.hidden, net.norms, strict=True)):
        parts = {"weight": linear.weight, "bias": linear.bias, "scale": norm.weight, "shift": norm.bias}
        arrays |= {f"hidden.{index}.{name}": array for name, array in parts.items()}
    arrays |= {"head.weight": net.head.weight, "head.bias": net.head.bias}
    bounds = affine_bounds(policy.model)
    arrays |= {"lowest": bounds.lowest, "highest": bounds.highest}
    if bounds.low_slope is not None:
        arrays |= {"low.slope": bounds.low_slope, "low.offset": bounds.low_offset}
        arrays |= {"high.slope": bounds.high_slope, "high.offset": bounds.high_offset}
    for index, found in enumerate([*map(_safety_arrays, members), *map(_event_arrays, events)]):
        arrays |= {f"safety.{index}.{name}": array for name, array in found.items()}
    about: JsonObject = {
        "model": spec.name,
        "state_size": spec.state.size,
        "horizon": observer.horizon,
        "sees_clock": observer.clock,
        "idle": None if observer.idle is None else list(observer.idle),
        "layers": len(net.hidden),
        "heads": [
            _head(head, variable.size) for head, variable in zip(policy.heads, spec.action.variables, strict=True)
        ],
        "members": len(members),
        "events": [_event(event) for event in events],
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


def _members(safety: SafetyModel | None) -> tuple[list[HazardModel], list[CountedEvents]]:
    """The hazard models and counted events whose memory the policy sees, in the order in which it sees them."""
    if safety is None:
        return [], []
    groups = safety.groups if isinstance(safety, Families) else (safety,)
    hazards = [member for group in groups for member in members_of(group, HazardModel)]
    events = [member for group in groups for member in members_of(group, CountedEvents)]
    if not hazards and not events:
        raise InputError(
            f"the policy looks at the memory of a safety model of the kind '{safety.kind}', and only those of the "
            "kinds 'hazard', 'counted' and 'families' can be exported; use the policy with sidestep.load"
        )
    return hazards, events


def _event(model: CountedEvents) -> JsonObject:
    alike = [list(group) for group in model.alike]
    return {"statistic": model.statistic, "limit": model.limit, "alike": alike, "most_pairs": MOST_PAIRS}


def _event_arrays(model: CountedEvents) -> Arrays:
    return {
        "directions": model.directions * model.movable.directions,
        "offsets": model.offsets,
        "sharpness": jnp.exp(model.log_sharpness),
        "thresholds": model.thresholds,
        "softness": jnp.exp(model.log_softness),
        "temperature": jnp.exp(model.calibration.log_temperature),
        "mean": model.features_seen.mean,
        "deviation": model.features_seen.deviation,
    }


def _safety_arrays(model: HazardModel) -> Arrays:
    arrays: Arrays = {"mean": model.standardisation.mean, "deviation": model.standardisation.deviation}
    arrays |= {"log_scale": model.calibration.log_scale, "log_power": model.calibration.log_power}
    arrays |= {"head_weight": model.head_weight, "head_bias": model.head_bias}
    for index, dense in enumerate(model.recurrent.encoder):
        arrays |= {f"encoder.{index}.weight": dense.input_weight, f"encoder.{index}.bias": dense.bias}
    for index, layer in enumerate(model.recurrent.layers):
        arrays |= {f"{index}.{name}": array for name, array in vars(layer).items()}
    return arrays
