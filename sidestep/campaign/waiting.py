"""What every kind of campaign shares with its caller: its key, what it shows, how it says that people have to label."""

from collections.abc import Callable
from typing import Any

import jax

CAMPAIGN = 0xCA49  # folded into a seed's key: see evaluation.CERTIFICATION

Show = Callable[[str, dict[str, Any]], None]


def campaign_key(seed: int) -> jax.Array:
    return jax.random.fold_in(jax.random.key(seed), CAMPAIGN)


class Waiting(Exception):
    """These trajectories of the store need a label."""

    def __init__(self, ids: list[int]) -> None:
        super().__init__(f"{len(ids)} trajectories wait for a label")
        self.ids = ids
