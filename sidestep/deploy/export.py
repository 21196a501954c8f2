"""A policy as a file for those who do not have Sidestep: by the file's ending, for NumPy or for ONNX."""

import base64
import inspect
import json
import os
import textwrap
from pathlib import Path

import numpy as np

from sidestep.core.errors import InputError
from sidestep.deploy import numpy_policy
from sidestep.deploy.exported_parts import exported_parts
from sidestep.policies.files import AnyPolicy
from sidestep.runtime.files import atomic_write

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
    if _POLICY.about["members"] or _POLICY.about.get("events"):
        raise ValueError("this policy remembers earlier steps: make a Policy() and give it the states one by one")
    return _POLICY.at(clock).act(state)
'''
DRAW = '''

def act(state, random=None):
    """The action in `state`, one vector or a batch of them; `random`, a NumPy generator, draws where it is mixed."""
    return _POLICY.act(state, random)
'''


FUNCTIONS = {"NumpyPolicy": ACT, "NumpyTable": DRAW, "NumpyHorizon": ""}  # below the class


def export_policy(policy: AnyPolicy, path: str | os.PathLike[str]) -> Path:
    """Write the policy to `path`: a .py file that needs only NumPy, or an .onnx file."""
    target = Path(path)
    if target.suffix == ".py":
        return export_numpy(policy, target)
    if target.suffix == ".onnx":
        try:
            from sidestep.deploy.onnx_policy import export_onnx  # the extra is optional
        except ImportError:
            raise InputError(
                "an .onnx file needs the package onnx: pip install 'sidestep[onnx]'", place=str(target)
            ) from None
        return export_onnx(policy, target)
    raise InputError("the policy is written as Python or ONNX; give a name that ends in .py or .onnx", place=str(path))


def export_numpy(policy: AnyPolicy, path: Path) -> Path:
    """Write the policy without its noise as one Python file: the source of `numpy_policy` with the weights below it."""
    kind, about, arrays = exported_parts(policy)
    words = f"The planned policy of {policy.model.spec.name!a}: states {_listed(policy.model.spec.state.names)}."
    words = textwrap.fill(words.replace("\\", "/").replace('"', "'"), 110, subsequent_indent="    ")
    source = [
        inspect.getsource(numpy_policy),
        f"\n\nABOUT = {json.dumps(about)!a}\n",
        "ARRAYS = {\n" + "".join(_literal(name, array) for name, array in arrays.items()) + "}\n",
        USE.format(kind=kind, words=words),
        FUNCTIONS[kind],
    ]
    atomic_write(path, "".join(source))
    return path


def _literal(name: str, array: np.ndarray) -> str:
    """One entry of the dictionary of arrays, in lines of readable length."""
    lines = textwrap.wrap(base64.b64encode(array.tobytes()).decode(), 100) or [""]
    return f'    "{name}": (\n        {array.shape},\n' + "".join(f'        "{line}"\n' for line in lines) + "    ),\n"


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(ascii(name)[1:-1] for name in names[:12])
    return shown if len(names) <= 12 else f"{shown}, ... ({len(names)} in all)"
