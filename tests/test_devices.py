"""Batches over several devices, here virtual ones of the CPU: the same trajectories, gradients and plans as on one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from run_helpers import LINE

import sidestep

CODE = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
sys.path.insert(0, sys.argv[1])
from line import Line
from sidestep.core.model import FunctionPolicy, rollout, rollout_batch
from sidestep.runtime.parallel import map_stack

model, keys = Line(), jax.random.split(jax.random.key(3), 8)

def earned(gain):
    policy = FunctionPolicy(lambda state, clock, key: gain * (2.0 - state))
    return rollout_batch(model, policy, keys)[0].rewards.sum(axis=1).mean()

def follow(gain):
    return FunctionPolicy(lambda state, clock, key: gain * (2.0 - state))

sampled = rollout(model, follow(0.5), jax.random.key(1), 8)
odd = rollout(model, follow(0.5), jax.random.key(1), 7)
value, slope = jax.jit(jax.value_and_grad(earned))(jnp.asarray(0.4))
stacked = map_stack(jax.jit(earned), jnp.asarray([0.1, 0.2, 0.3]), compiled=False)
print(json.dumps({
    "devices": jax.device_count(),
    "spread": len(sampled.states.sharding.device_set),
    "states": np.asarray(sampled.states).tolist(),
    "odd": np.asarray(odd.states).tolist(),
    "value": float(value), "slope": float(slope),
    "stacked": np.asarray(stacked).tolist(),
}))
"""


def run(devices, folder):
    flags = f"--xla_backend_optimization_level=0 --xla_force_host_platform_device_count={devices}"
    package = str(Path(sidestep.__file__).parents[1])
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": package, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", CODE, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("devices")
    (folder / "line.py").write_text(LINE)
    return run(1, folder), run(4, folder)


def test_a_batch_is_spread_over_all_devices(found):
    one, four = found
    assert (one["devices"], one["spread"]) == (1, 1)
    assert (four["devices"], four["spread"]) == (4, 4)


@pytest.mark.parametrize("part", ["states", "odd", "value", "slope", "stacked"])
def test_the_numbers_are_those_of_one_device(found, part):
    one, four = found
    np.testing.assert_allclose(four[part], one[part], rtol=1e-5, atol=1e-6)
