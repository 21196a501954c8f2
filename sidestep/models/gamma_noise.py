"""Gamma noise from normal noise, for shapes that are known before anything is run.

Rejection samplers draw until they accept, which is slow in a compiled loop. With Q the quantile function of
Gamma(shape, 1) and Phi the normal distribution function,

    x = Q(Phi(z)),  z ~ Normal(0, 1)

needs one normal number. log x is a smooth function of z, so a table of cubic pieces holds it.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import gammainccinv, gammaincinv, gammaln, ndtr

REACH = 8.0  # P(|z| > 8) is 1e-15
PIECES = 512  # log x is then off by less than 2e-8 at shape 0.05 and by less than 1e-9 from shape 1 on


def gamma_from_normal(
    shape: Float[np.ndarray, "*entries"],
) -> Callable[[Float[Array, "*entries"]], Float[Array, "*entries"]] | None:
    """The function z -> x, entry by entry; None where a shape is so small that x leaves the floating-point numbers."""
    pieces = _cubic_pieces(np.ravel(np.asarray(shape, float)))
    if not np.isfinite(pieces).all():
        return None
    rows = np.arange(np.size(shape)).reshape(np.shape(shape))

    def gamma(z):
        position = (jnp.clip(z, -REACH, REACH) + REACH) * (PIECES / (2 * REACH))
        piece = jnp.minimum(jnp.floor(position), PIECES - 1)
        t = position - piece
        c = jnp.asarray(pieces, z.dtype)[rows, piece.astype(int)]
        return jnp.exp(c[..., 0] + t * (c[..., 1] + t * (c[..., 2] + t * c[..., 3])))

    return gamma


def _cubic_pieces(shapes: Float[np.ndarray, " shape"]) -> Float[np.ndarray, "shape piece 4"]:
    """Coefficients of log x in powers of t in [0, 1], matching value and slope at both ends of each piece."""
    z, a = np.linspace(-REACH, REACH, PIECES + 1)[None, :], shapes[:, None]
    with np.errstate(all="ignore"):
        log_x = np.log(np.where(z < 0, gammaincinv(a, ndtr(z)), gammainccinv(a, ndtr(-z))))
        # d(log x)/dz = phi(z) / (x f(x)), with phi and f the densities of z and x
        log_slope = -0.5 * z**2 - 0.5 * np.log(2 * np.pi) - (a * log_x - np.exp(log_x) - gammaln(a))
        slope = np.exp(log_slope) * (2 * REACH / PIECES)
        left, right, rise = slope[:, :-1], slope[:, 1:], np.diff(log_x)
        return np.stack([log_x[:, :-1], left, 3 * rise - 2 * left - right, left + right - 2 * rise], axis=-1)
