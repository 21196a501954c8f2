"""An expert whose marks are as a person's: off by a step or two, and missing for some."""

import numpy as np

from sidestep.labels.experts import RuleExpert, rule_marks


class NoisyExpert(RuleExpert):
    """A rule's categories; of its marks some are missing, and the others up to `off` steps away."""

    def __init__(self, rule, seed, off=2, missing=0.2):
        super().__init__(rule)
        object.__setattr__(self, "noise", (seed, off, missing))

    def answer(self, store, ids, marks=False):
        missing = [i for i in ids if i not in store.categories()]
        trajectories = store.get(missing)
        noisy = noisy_marks(rule_marks(self, trajectories), trajectories.length, *self.noise) if marks else None
        store.label(missing, np.asarray(self.label(trajectories)), annotator="noisy", marks=noisy)
        return {i: store.categories()[i] for i in ids}


def noisy_marks(marks, length, seed, off=2, missing=0.2):
    """Each mark moved by -off, ..., off steps, in the order of severities; some of them left out."""
    random = np.random.default_rng(seed)
    moved = np.clip(marks + random.integers(-off, off + 1, marks.shape), 0, np.asarray(length)[:, None] - 1)
    moved = np.maximum.accumulate(np.where(marks >= 0, moved, -1), axis=1)
    return np.where((marks >= 0) & (random.random(marks.shape) >= missing), moved, -1)
