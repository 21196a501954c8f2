"""Asking people about runs until each is settled, through blind copies in the label store.

Nothing is remembered: copies follow from the trajectory, the audit and their number, and the store knows them by their
content. So a hearing that goes on after a stop asks for what is still missing, and for nothing twice.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sidestep.certification.opinions import Settled, settle
from sidestep.core.model import Trajectory
from sidestep.labels.copies import blind_copies
from sidestep.labels.packing import pack
from sidestep.labels.store import Store

SOURCE = "audit"  # what the store says of the policy whose runs these are


def first_copies(store: Store, runs: Trajectory, audit: int) -> list[int]:
    """The copies that a hearing begins with, if these are the first runs that it hears and no two are alike: people may
    look at them before the audit."""
    return store.add(blind_copies(runs, np.zeros(len(runs), int), audit), policy=SOURCE).ids.tolist()


@dataclass
class Hearing:
    """The opinions that one audit has heard; runs that are alike are heard anew each time."""

    store: Store
    audit: int
    costly: tuple[bool, ...]  # which categories count for any constraint
    most: int  # opinions
    category_of: Mapping[int, int]  # of the labelled trajectories of the store
    asked: list[int] = field(default_factory=list)  # copies that need a label
    labels: int = 0  # that were given
    heard: list[tuple[int, int]] = field(default_factory=list)  # (run, copy) of the last hearing, where it has a label
    _occurrences: Counter[bytes] = field(default_factory=Counter)

    def hear(self, runs: Trajectory) -> list[int | None]:
        """The category of each run by the opinions on its copies, in this order; None where more are needed."""
        blobs = pack(runs, self.store.state_names, self.store.action_names)
        first = np.array([self._next(blob) for blob in blobs], int)
        heard: list[list[int]] = [[] for _ in blobs]
        self.heard = []
        settled: list[Settled | None] = [None] * len(blobs)
        waiting = np.arange(len(blobs))
        for opinion in range(self.most):
            if not len(waiting):
                break
            copies = blind_copies(runs[waiting], first[waiting] + opinion, self.audit)
            ids = self.store.add(copies, policy=SOURCE).ids.tolist()
            given = [self.category_of.get(i) for i in ids]
            for row, category, trajectory in zip(waiting.tolist(), given, ids, strict=True):
                if category is None:
                    self.asked.append(trajectory)
                    continue
                self.labels += 1
                self.heard.append((row, trajectory))
                heard[row].append(category)
                settled[row] = settle(heard[row], self.costly, self.most)
            going_on = [row for row, category in zip(waiting.tolist(), given, strict=True) if category is not None]
            waiting = np.array([row for row in going_on if settled[row] is None], int)
        return [None if one is None else one.category for one in settled]

    def _next(self, blob: bytes) -> int:
        """The number of the first copy for this run: runs that are alike have different ones."""
        self._occurrences[blob] += 1
        return (self._occurrences[blob] - 1) * self.most
