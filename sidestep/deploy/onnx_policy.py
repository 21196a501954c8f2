"""A policy as an ONNX file: one step of `numpy_policy`, recorded as a graph while NumPy computes it.

    action, memory_after = run(state, clock, memory, random)

`state` is a batch of them. The other inputs are there where the policy needs them: `clock`, the number of the step;
`memory`, the `memory_after` of the step before (at step 0 whatever it holds is replaced by the memory of a fresh
trajectory); `random`, a number in [0, 1) for each state, by which a mixed policy draws.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
from onnx import helper, numpy_helper

from sidestep.core.records import JsonObject
from sidestep.deploy import numpy_policy
from sidestep.deploy.exported_parts import exported_parts
from sidestep.policies.files import AnyPolicy
from sidestep.runtime.files import atomic_write

OPSET, IR_VERSION = 18, 8  # of 2022: old enough for the runtimes that are about
ROWS = 2  # of the batch that is computed while recording
LOOKED_UP = ("table", "tables", "which", "letters")  # arrays whose entries are found by an index
# NumPy's functions of entries, as operations of ONNX
OPERATIONS: dict[Any, str] = {
    np.add: "Add", np.subtract: "Sub", np.multiply: "Mul", np.divide: "Div", np.power: "Pow", np.matmul: "MatMul",
    np.maximum: "Max", np.minimum: "Min", np.absolute: "Abs", np.negative: "Neg", np.exp: "Exp", np.log: "Log",
    np.sqrt: "Sqrt", np.tanh: "Tanh", np.bitwise_and: "And", np.equal: "Equal", np.less: "Less",
    np.less_equal: "LessOrEqual", np.greater: "Greater",
}  # fmt: skip
# and those that are made of other functions
COMPOSED: dict[Any, Callable[..., Any]] = {
    np.expm1: lambda x: np.exp(x) - 1.0,
    np.logaddexp: lambda a, b: np.maximum(a, b) + np.log(1.0 + np.exp(-np.abs(a - b))),
    np.isfinite: lambda x: np.abs(x) < np.inf,
    np.clip: lambda x, low, high: np.minimum(np.maximum(x, low), high),
    np.diff: lambda x, axis: x[:, 1:] - x[:, :-1],
    np.zeros_like: lambda x: x * 0.0,
    np.split: lambda x, parts, axis: [
        x[:, at : at + x.shape[1] // parts] for at in range(0, x.shape[1], x.shape[1] // parts)
    ],
}


def export_onnx(policy: AnyPolicy, path: Path) -> Path:
    """Write the policy without its noise as an ONNX file."""
    graph, spec = Graph(), policy.model.spec
    _record(graph, *exported_parts(policy))
    made = graph.made(f"The planned policy of {spec.name}: one step of a batch of trajectories.")
    told = {"model": spec.name, "state": list(spec.state.names), "action": list(spec.action.names)}
    helper.set_model_props(made, {name: json.dumps(value) for name, value in told.items()})
    onnx.checker.check_model(made, full_check=True)
    atomic_write(path, made.SerializeToString())
    return path


def _record(graph: "Graph", kind: str, about: JsonObject, arrays: dict[str, np.ndarray]) -> None:
    """One step of this class of `numpy_policy`."""
    own: Any = getattr(numpy_policy, kind)
    policy = own.__new__(own)
    policy.about = about
    policy.arrays = {name: graph.constant(a) if name in LOOKED_UP else a for name, a in arrays.items()}
    policy.restart()
    policy.rows = lambda state: state
    state = graph.input("state", np.zeros((ROWS, policy.about["state_size"]), np.float32))
    clock = policy.clock = graph.input("clock", np.array(0))
    draws = () if kind == "NumpyPolicy" else (Draws(graph, arrays),)
    if kind != "NumpyTable":
        policy.remember(1, *draws)
    fresh = [part for memory in policy.memory for part in memory.kept]
    sizes = [int(np.prod(part.shape[1:])) for part in fresh]
    if fresh:
        before, start = graph.input("memory", np.zeros((ROWS, sum(sizes)))), 0
        for memory in policy.memory:
            for at, part in enumerate(memory.kept):
                size = int(np.prod(part.shape[1:]))
                held = before[:, start : start + size].reshape(ROWS, *part.shape[1:]).astype(part.dtype)
                memory.kept[at], start = np.where(cast(Any, clock == 0), part, cast(Any, held)), start + size
    graph.output("action", policy.act(state, *draws))
    if fresh:
        after = [part.reshape(ROWS, -1).astype(float) for memory in policy.memory for part in memory.kept]
        graph.output("memory_after", cast(Recorded, np.concatenate(after, axis=1)))


class Draws:
    """In place of a generator: the input `random`; where nothing is mixed, any number does."""

    def __init__(self, graph: "Graph", arrays: dict[str, np.ndarray]) -> None:
        chances = arrays["table"] if "table" in arrays else arrays["weights"][None]
        self.mixed, self.graph = bool(((chances > 0.0).sum(axis=1) > 1).any()), graph

    def random(self, rows: int) -> Any:
        return self.graph.input("random", np.zeros(ROWS, np.float32)) if self.mixed else np.full(1, 0.5)


class Graph:
    """Operations one after the other. What no output needs is left out in the end."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: dict[str, Recorded] = {}
        self.outputs: dict[str, Recorded] = {}

    def do(self, kind: str, value: np.ndarray, *inputs: Any, dtype: Any = None, **attributes: Any) -> "Recorded":
        """One operation, of which NumPy says that it gives `value`; its inputs are taken as of this type."""
        names = [self.named(one if dtype is None else _as(one, dtype)) for one in inputs]
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, names, [name], name=name, **attributes))
        return Recorded(self, name, np.asarray(value))

    def named(self, value: Any) -> str:
        return value.name if isinstance(value, Recorded) else self.constant(np.asarray(value)).name

    def constant(self, array: np.ndarray) -> "Recorded":
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        return Recorded(self, name, array)

    def input(self, name: str, value: np.ndarray) -> "Recorded":
        return self.inputs.setdefault(name, Recorded(self, name, value))

    def output(self, name: str, recorded: "Recorded") -> None:
        made = self.do("Identity", recorded.value, recorded)
        self.nodes[-1].output[0] = name
        self.outputs[name] = Recorded(self, name, made.value)

    def made(self, words: str) -> onnx.ModelProto:
        needed, nodes = set(self.outputs), list[onnx.NodeProto]()
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed.update(node.input)
                nodes.insert(0, node)
        inputs = [_described(one) for name, one in self.inputs.items() if name in needed]
        constants = [one for one in self.constants if one.name in needed]
        outputs = [_described(one) for one in self.outputs.values()]
        graph = helper.make_graph(nodes, "policy", inputs, outputs, constants, doc_string=words)
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="sidestep",
            doc_string=words,
        )


def _described(recorded: "Recorded") -> onnx.ValueInfoProto:
    shape = [*(["batch"] if recorded.shape else []), *recorded.shape[1:]]
    return helper.make_tensor_value_info(recorded.name, helper.np_dtype_to_tensor_dtype(recorded.dtype), shape)


def _value(given: Any) -> Any:
    return given.value if isinstance(given, Recorded) else given


def _as(given: Any, dtype: Any) -> Any:
    return given.astype(dtype) if isinstance(given, Recorded) else np.asarray(given, dtype)


class Recorded(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of NumPy's, and the name in the graph of what gives it. The first axis is the batch."""

    def __init__(self, graph: Graph, name: str, value: np.ndarray) -> None:
        self.graph, self.name, self.value = graph, name, value
        self.shape, self.dtype = value.shape, value.dtype

    def __len__(self) -> int:
        return len(self.value)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if ufunc in COMPOSED:
            return COMPOSED[ufunc](*inputs)
        value = ufunc(*map(_value, inputs))
        dtype = np.result_type(*map(_value, inputs)) if value.dtype == bool else value.dtype
        return self.graph.do(OPERATIONS[ufunc], value, *inputs, dtype=dtype)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if function in COMPOSED:
            return COMPOSED[function](*args, **options)
        return getattr(self, f"_{function.__name__}")(*args, **options)

    def _shape(self, recorded: "Recorded") -> tuple[int, ...]:
        return recorded.shape

    def _prod(self, recorded: "Recorded", axis: int) -> "Recorded":
        return recorded._reduced("Prod", np.prod, axis, False)

    def _mean(self, recorded: "Recorded", axis: int, keepdims: bool) -> "Recorded":
        return recorded.mean(axis, keepdims)

    def _where(self, condition: Any, yes: Any, no: Any) -> "Recorded":
        value = np.where(*map(_value, (condition, yes, no)))
        return self.graph.do("Where", value, condition, _as(yes, value.dtype), _as(no, value.dtype))

    def _concatenate(self, parts: list[Any], axis: int, dtype: Any = None) -> "Recorded":
        value = np.concatenate([_value(part) for part in parts], axis=axis, dtype=dtype)
        return self.graph.do("Concat", value, *parts, dtype=value.dtype, axis=axis)

    def __getitem__(self, index: Any) -> "Recorded":
        """Slices from the front; or the entries that other values say, of one axis or of all."""
        index, graph = index if isinstance(index, tuple) else (index,), self.graph
        value = self.value[tuple(map(_value, index))]
        found = [at for at, part in enumerate(index) if isinstance(part, Recorded)]
        if len(found) > 1:
            places = np.concatenate([part.reshape(-1, 1) for part in index], axis=1)
            return graph.do("GatherND", value, self, places)
        if found:
            return graph.do("Gather", value, self, index[found[0]], axis=found[0])
        if Ellipsis in index:
            index = (*[slice(None)] * (len(self.shape) - len(index) + 1), *index[1:])
        cuts = [(at, *part.indices(self.shape[at])[:2]) for at, part in enumerate(index) if part != slice(None)]
        axes, starts, ends = np.array(cuts, np.int64).reshape(-1, 3).T
        return graph.do("Slice", value, self, starts, ends, axes)

    def reshape(self, *shape: int) -> "Recorded":
        """A first axis as long as the batch stays what it is."""
        kept = [0 if at == 0 and size == len(self) else size for at, size in enumerate(shape)]
        return self.graph.do("Reshape", self.value.reshape(shape), self, np.array(kept))

    def astype(self, dtype: Any) -> "Recorded":
        if self.dtype == dtype:
            return self
        to = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.graph.do("Cast", self.value.astype(dtype), self, to=to)

    def argmax(self, axis: int) -> "Recorded":
        return self.graph.do("ArgMax", self.value.argmax(axis), self, axis=axis, keepdims=0)

    def cumsum(self, axis: int) -> "Recorded":
        return self.graph.do("CumSum", self.value.cumsum(axis), self, np.array(axis))

    def sum(self, axis: int, keepdims: bool = False) -> "Recorded":
        return self._reduced("Sum", np.sum, axis, keepdims)

    def mean(self, axis: int, keepdims: bool) -> "Recorded":
        return self._reduced("Mean", np.mean, axis, keepdims)

    def max(self, axis: int, keepdims: bool) -> "Recorded":
        return self._reduced("Max", np.max, axis, keepdims)

    def min(self, axis: int, keepdims: bool) -> "Recorded":
        return self._reduced("Min", np.min, axis, keepdims)

    def _reduced(self, kind: str, function: Any, axis: int, keepdims: bool) -> "Recorded":
        value = function(self.value, axis=axis, keepdims=keepdims)
        return self.graph.do(f"Reduce{kind}", value, self.astype(value.dtype), np.array([axis]), keepdims=int(keepdims))
