"""Good trajectories of every kind, before anything is known about side effects.

A side effect makes a detour necessary, and that may be a way that no random policy takes. So sequences of actions are
bred for return in many niches at once (quality diversity, as in MAP-Elites): a niche is a region of the states that a
trajectory visits, and keeps the best sequence found in it. Labels of these elites tell which of the ways worth taking
are harmless.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sidestep.core.model import Model, Trajectory, rollout_batch
from sidestep.planning.search import SequencePolicy, mutated
from sidestep.runtime.compilation import jit_balanced

GENERATIONS = 30
CHILDREN = 1000  # per generation
SPREADS = (0.3, 0.05)  # of mutations, in the first and the last generation
MOMENTS = (0.25, 0.5, 0.75, 1.0)  # of a trajectory, at which its state is read


@jit_balanced
def elites(
    model: Model, niches: int, found: Trajectory, shares: Float[Array, "batch time action"], key: PRNGKeyArray
) -> Trajectory:
    """One trajectory for each niche, of the best sequence found for it, the highest return first.

    The first sequences are those of explorers: `shares`, which led to the trajectories `found`.
    """
    centre_key, breed_key, last_key = jax.random.split(key, 3)
    places = places_of(found)
    scale = jnp.std(places, axis=0) + 1e-6
    centres = jax.random.permutation(centre_key, places)[:niches] / scale[None, :]
    kept = _settle(centres, scale, found, shares, jnp.zeros((niches, *shares.shape[1:])), jnp.full(niches, -jnp.inf))

    def generation(kept, inputs):
        key, progress = inputs
        parent_key, mutate_key, roll_key = jax.random.split(key, 3)
        spread = SPREADS[0] * (SPREADS[1] / SPREADS[0]) ** progress
        filled = jnp.isfinite(kept[1]).astype(float)
        parents = kept[0][jax.random.choice(parent_key, niches, (CHILDREN,), p=filled / jnp.sum(filled))]
        children = mutated(model, parents, kept[0], spread, mutate_key)
        return _settle(centres, scale, _one_each(model, children, roll_key), children, *kept), None

    inputs = (jax.random.split(breed_key, GENERATIONS), jnp.linspace(0.0, 1.0, GENERATIONS))
    (shares, returns), _ = jax.lax.scan(generation, kept, inputs)
    order = jnp.argsort(-returns)
    return _one_each(model, shares[order], last_key)


def places_of(trajectory: Trajectory) -> Float[Array, "batch feature"]:
    """The states at a few moments, evenly spread over each trajectory's own length."""
    moments = jnp.stack([((trajectory.length - 1).astype(float) * share).astype(int) for share in MOMENTS], axis=1)
    states = jnp.take_along_axis(trajectory.states, moments[:, :, None], axis=1)
    return states.reshape(len(trajectory.length), -1)


def _settle(
    centres: Array, scale: Array, found: Trajectory, shares: Array, held: Array, returns: Array
) -> tuple[Array, Array]:
    """Every trajectory goes to the nearest centre; a niche keeps the better of what it has and the best that came."""
    places = places_of(found) / scale[None, :]
    squares = jnp.sum(places**2, axis=1)[:, None] - 2.0 * places @ centres.T + jnp.sum(centres**2, axis=1)[None, :]
    here = jnp.argmin(squares, axis=1)[None, :] == jnp.arange(len(centres))[:, None]
    values = jnp.where(here, found.returns()[None, :], -jnp.inf)
    best = jnp.argmax(values, axis=1)
    value = jnp.max(values, axis=1)
    better = value > returns
    return jnp.where(better[:, None, None], shares[best], held), jnp.maximum(value, returns)


def _one_each(model: Model, shares: Array, key: PRNGKeyArray) -> Trajectory:
    keys = jax.random.split(key, len(shares))

    def one(sequence, key):
        return jax.tree.map(lambda leaf: leaf[0], rollout_batch(model, SequencePolicy(sequence, model), key[None])[0])

    return jax.vmap(one)(shares, keys)
