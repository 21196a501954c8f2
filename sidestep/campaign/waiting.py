"""What every kind of campaign shares with its caller: its key, and what it shows."""

from collections.abc import Callable
from typing import Any

import jax

CAMPAIGN = 0xCA49  # folded into a seed's key: see certification.evaluation

Show = Callable[[str, dict[str, Any]], None]


def campaign_key(seed: int) -> jax.Array:
    return jax.random.fold_in(jax.random.key(seed), CAMPAIGN)
