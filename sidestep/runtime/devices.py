"""A batch over all devices of this process: GPUs, TPUs, or the CPU's virtual ones.

Trajectories of a batch are independent: each device rolls out its share of them. What follows from them (a mean,
a gradient) XLA adds up over the devices. Parameters are on all of them.
"""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

BATCH = "batch"


def over_devices(batch: Array) -> Array:
    """Inside jit: the array with its first axis over all devices. Devices get equal shares, so that a batch whose size
    is not a multiple of their number stays on one; with one device nothing changes."""
    devices = jax.devices()
    if len(devices) == 1 or batch.shape[0] % len(devices):
        return batch
    mesh = Mesh(np.array(devices), (BATCH,))
    return jax.lax.with_sharding_constraint(batch, NamedSharding(mesh, PartitionSpec(BATCH)))
