"""From hazards to categories.

Each step t carries non-negative hazards c_t^1 >= c_t^2 >= ... of category k or worse. Their sums over the real steps,
H^k = sum_t c_t^k, give P(category < k) = exp(-H^k): ordered, summing to one, and linear in log space, so that a
hopeless trajectory still says which way is better. Differences of neighbours, G^k = H^k - H^{k+1}, come as sums of
their own because subtracting would lose the digits that a likelihood needs.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sidestep.safety.base import Calibration
from sidestep.safety.recurrent import PRECISION

TINY = 1e-30  # a hazard below this is taken as this, so that its logarithm is finite
LOG_TWO = 0.6931471805599453


class Hazards(NamedTuple):
    """Of one step, or summed over steps."""

    worse: Float[Array, "*batch levels"]  # c^k: category k or worse, k = 1, ..., K - 1
    gaps: Float[Array, "*batch gaps"]  # c^k - c^{k+1}, k = 1, ..., K - 2


class Stretch(Calibration):
    """Calibration of cumulative hazards: H -> scale * H^power, the same for all severities, so that order stays.

    In the complementary log-log link, log(-log P(category < k)) = log H^k, it is an affine map, as Platt scaling is
    in the logistic link: a power below one makes it less sure at both ends, and the scale shifts the threshold.
    """

    log_scale: Float[Array, "*grid"]
    log_power: Float[Array, "*grid"]

    @classmethod
    def grid(cls) -> "Stretch":
        scale, power = jnp.meshgrid(
            jnp.linspace(-1.0, 1.0, 5), jnp.log(jnp.asarray((1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1)))
        )
        return cls(scale.ravel().astype(PRECISION), power.ravel().astype(PRECISION))

    def __call__(self, hazards: Hazards) -> Hazards:
        power = jnp.exp(self.log_power)
        worse = jnp.maximum(hazards.worse, TINY)
        stretched = jnp.exp(self.log_scale + power * jnp.log(worse))
        # H^k - H^{k+1} after the map, with H^{k+1} / H^k = 1 - G^k / H^k.
        share = jnp.clip(hazards.gaps / worse[..., :-1], 0.0, 1.0 - 1e-6)
        return Hazards(stretched, stretched[..., :-1] * -jnp.expm1(power * jnp.log1p(-share)))


def nested(raw: Float[Array, "*batch levels"]) -> Hazards:
    """c^1 = softplus(raw_1) and c^k = c^{k-1} * sigmoid(raw_k): not negative, and ordered, whatever the numbers."""
    worse, gaps = [jax.nn.softplus(raw[..., 0])], []
    for k in range(1, raw.shape[-1]):
        gaps.append(worse[-1] * jax.nn.sigmoid(-raw[..., k]))
        worse.append(worse[-1] * jax.nn.sigmoid(raw[..., k]))
    return Hazards(jnp.stack(worse, axis=-1), jnp.stack(gaps, axis=-1) if gaps else raw[..., :0])


def category_log_probabilities(total: Hazards) -> Float[Array, "*batch categories"]:
    """log P(k) = log(exp(-H^{k+1}) - exp(-H^k)) with H^0 = infinity and H^K = 0."""
    worse = jnp.maximum(total.worse, TINY)
    best = -worse[..., :1]
    between = -worse[..., 1:] + log_one_minus_exp(total.gaps)
    worst = log_one_minus_exp(worse[..., -1:])
    return jnp.concatenate([best, between, worst], axis=-1)


def log_one_minus_exp(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """log(1 - exp(-x)) for x > 0, to full precision at both ends (Maechler 2012)."""
    x = jnp.maximum(x, TINY)
    small = jnp.log(-jnp.expm1(-jnp.minimum(x, LOG_TWO)))
    large = jnp.log1p(-jnp.exp(-jnp.maximum(x, LOG_TWO)))
    return jnp.where(x < LOG_TWO, small, large)
