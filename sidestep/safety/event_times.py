"""Learning from marks: the likelihood of when each severity was reached.

With hazards c_t^k that add up, severity k or worse strikes at step t with probability 1 - exp(-c_t^k), and the category
of a trajectory so far is the worst that has struck. So the chance that severity k is first reached at step t* is

    exp(-H^k(t* - 1)) (1 - exp(-c_t*^k)),    H^k(t) = c_0^k + ... + c_t^k.

A mark may be off by some steps: it says that severity k was first reached in a window t* - slack, ..., t* + slack. A
label alone says the same of wider windows: a severity up to the category was reached somewhere in the trajectory, a
worse one never. The likelihood of all windows together is exact, and without any mark it is that of the category.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from sidestep.safety.survival import Hazards, category_log_probabilities
from sidestep.safety.windows import Windows

NEVER = -1e9  # the logarithm of nothing, finite so that gradients are


def log_likelihood(steps: Hazards, length: Int[Array, "*batch"], windows: Windows) -> Float[Array, "*batch"]:
    """log P(every severity is first reached in its window) from the hazards of all steps, zero after the end.

    The category so far only rises, so it is enough to look at it where a window opens or closes. Between two such
    steps the hazards add up, and the category moves as over one long step: a Markov chain of K states and at most
    2 (K - 1) + 1 steps.
    """
    time, levels = steps.worse.shape[-2:]
    # A cut is the number of steps before it: severity k is not reached before cut `first`, and is before `last` + 1.
    opens, closes = windows.first, windows.last + 1
    end = jnp.broadcast_to(length[..., None], (*opens.shape[:-1], 1)).astype(opens.dtype)
    cuts = jnp.sort(jnp.minimum(jnp.concatenate([opens, closes, end], axis=-1), end), axis=-1)
    before = jnp.concatenate([jnp.zeros_like(cuts[..., :1]), cuts[..., :-1]], axis=-1)
    step = jnp.broadcast_to(jnp.arange(time, dtype=cuts.dtype)[:, None], (*cuts.shape[:-1], time, cuts.shape[-1]))
    inside = (step >= before[..., None, :]) & (step < cuts[..., None, :])
    segments = Hazards(*(jnp.einsum("...tc,...tk->...ck", inside.astype(part.dtype), part) for part in steps))
    strikes = category_log_probabilities(segments)  # log P(the worst that strikes in a segment is j)
    stays = jnp.concatenate([-segments.worse, jnp.zeros_like(segments.worse[..., :1])], axis=-1)  # ... at most j
    severity = jnp.broadcast_to(jnp.arange(levels + 1), (*cuts.shape, levels + 1))
    reached = jnp.sum(cuts[..., None] >= closes[..., None, :], axis=-1)[..., None]
    possible = jnp.sum(cuts[..., None] > opens[..., None, :], axis=-1)[..., None]
    allowed = (severity >= reached) & (severity <= possible)
    chain = jnp.where(severity[..., 0, :] == 0, 0.0, NEVER).astype(strikes.dtype)
    for cut in range(cuts.shape[-1]):
        below = jax.lax.cumlogsumexp(chain, axis=chain.ndim - 1)
        below = jnp.concatenate([jnp.full_like(chain[..., :1], NEVER), below[..., :-1]], axis=-1)
        chain = jnp.logaddexp(chain + stays[..., cut, :], below + strikes[..., cut, :])
        chain = jnp.where(allowed[..., cut, :], chain, NEVER)
    return jax.nn.logsumexp(chain, axis=-1)
