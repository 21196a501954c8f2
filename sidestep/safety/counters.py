"""How often, and for how long: the exact distribution of a statistic of uncertain events, step by step.

Events happen independently, at step t with chance e_t. A counter holds the logarithms of the probabilities of its
states, so that a hopeless trajectory still says which way is better.

    count    of all events, 0 to the limit:  p_t(c) = (1 - e_t) p_{t-1}(c) + e_t p_{t-1}(c - 1)
    share    the same, of which no number is too large to be told apart
    run      for each severity j the present run of events, as long as no run has reached theta_j; the last state is
             "reached", which is final:  p_t(r) = e_t p_{t-1}(r - 1),  p_t(0) = (1 - e_t) sum_r p_{t-1}(r)
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Statistic = Literal["count", "run", "share"]
NEVER = -1e4  # the logarithm of the chance of what cannot be; finite, so that its derivative is


def start(statistic: Statistic, limit: int, levels: int, dtype: jnp.dtype) -> Float[Array, "*levels state"]:
    """The counter before the first step: of runs, one for each severity."""
    first = np.where(np.arange(limit + 1) == 0, 0.0, NEVER)
    return jnp.asarray(np.tile(first, (levels, 1)) if statistic == "run" else first, dtype)


def advance_count(
    counter: Float[Array, "*batch state"], log_event: Float[Array, "*batch"], log_none: Float[Array, "*batch"]
) -> Float[Array, "*batch state"]:
    """The counter after a step whose event has these log-chances to happen and not to."""
    one_more = jnp.concatenate([jnp.full_like(counter[..., :1], NEVER), counter[..., :-1]], axis=-1)
    # The last state keeps those that go on counting.
    stays = jnp.concatenate([counter[..., :-1] + log_none[..., None], counter[..., -1:]], axis=-1)
    return jnp.logaddexp(stays, one_more + log_event[..., None])


def advance_run(
    counter: Float[Array, "*batch levels state"],
    log_event: Float[Array, "*batch"],
    log_none: Float[Array, "*batch"],
    thresholds: Float[Array, " levels"],
) -> Float[Array, "*batch levels state"]:
    """The same for runs; a severity is reached by a run that is longer than its threshold."""
    event, none = log_event[..., None, None], log_none[..., None, None]
    run = np.arange(counter.shape[-1] - 1)
    least = jnp.minimum(thresholds, len(run) - 0.5)  # a run at the limit is the longest that is told apart
    last = jnp.asarray(run + 1, thresholds.dtype)[None, :] > least[:, None]  # one more event is one too many
    going, reached = counter[..., :-1], counter[..., -1:]
    last = jnp.broadcast_to(last, going.shape)
    broken = jax.nn.logsumexp(going, axis=-1, keepdims=True) + none
    longer = jnp.where(last, NEVER, going + event)[..., :-1]
    now = jax.nn.logsumexp(jnp.where(last, going, NEVER), axis=-1, keepdims=True) + event
    return jnp.concatenate([broken, longer, jnp.logaddexp(reached, now)], axis=-1)
