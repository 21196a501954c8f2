"""What a log of labels amounts to: who says what now, who wins, and how far the annotators agree.

A log is a sequence of labels in the order in which they were given. A relabel supersedes: the current vote of an
annotator on a trajectory is the last one in the log. An annotator who cannot tell has no vote: such a label takes an
earlier vote of the same annotator back, and leaves those of others alone.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np

from sidestep.core.constraints import Scale
from sidestep.core.errors import InputError
from sidestep.labels.marks import Marks

Resolve = Literal["newest", "majority"]


class Label(NamedTuple):
    """One entry of the log: `annotator` called `trajectory` (an id of the store) `category` (0 is harmless)."""

    trajectory: int
    category: int | None  # None: the annotator cannot tell, which counts as no label
    annotator: str
    time: str
    marks: Marks = ()  # the steps at which severities were reached, where they were marked
    comment: str | None = None

    def words(self, scale: Scale) -> str:
        """What was said, such as "severe (mild from step 3, severe from step 9): too close"."""
        said = "cannot tell" if self.category is None else scale.categories[self.category]
        marks = ", ".join(f"{name} from step {step}" for name, step in self.marks)
        return said + (f" ({marks})" if marks else "") + (f": {self.comment}" if self.comment else "")


class Pair(NamedTuple):
    """How far two annotators agree on the trajectories that both labelled."""

    trajectories: int
    agreement: float  # share with the same category
    kappa: float  # Cohen's: 0 is agreement by chance, 1 is complete


class Agreement(NamedTuple):
    """How far the annotators agree on the trajectories that several of them labelled."""

    trajectories: int  # labelled by two annotators or more
    unanimous: float  # share of these on which all say the same; NaN when there are none
    alpha: float  # Krippendorff's, over nominal categories: 0 is agreement by chance, 1 is complete
    pairs: dict[tuple[str, str], Pair]


def current_labels(log: Iterable[Label]) -> dict[int, dict[str, Label]]:
    """trajectory -> annotator -> the label that this annotator stands by, the newest last; none that cannot tell."""
    labels: defaultdict[int, dict[str, Label]] = defaultdict(dict)
    for label in log:
        labels[label.trajectory].pop(label.annotator, None)
        if label.category is not None:
            labels[label.trajectory][label.annotator] = label
    return {trajectory: given for trajectory, given in labels.items() if given}


def current_votes(log: Iterable[Label]) -> dict[int, dict[str, int]]:
    """trajectory -> annotator -> the category that this annotator stands by, the newest last."""
    return {
        trajectory: {annotator: _category(label) for annotator, label in given.items()}
        for trajectory, given in current_labels(log).items()
    }


def undecided(log: Iterable[Label]) -> set[int]:
    """Trajectories of which somebody could not tell, and which nobody has a label for."""
    log = list(log)
    return {label.trajectory for label in log if label.category is None} - current_labels(log).keys()


def resolve(log: Sequence[Label], rule: Resolve) -> dict[int, int]:
    """trajectory -> the category that counts.

    "newest": the last label in the log. "majority": the category with most annotators, the worse one of equals, since
    to overlook a side effect costs more than to fear one.
    """
    return {trajectory: _category(labels[0]) for trajectory, labels in deciding(log, rule).items()}


def deciding(log: Sequence[Label], rule: Resolve) -> dict[int, list[Label]]:
    """trajectory -> the current labels that say the category that counts; by "newest", the last label alone."""
    if rule not in ("newest", "majority"):
        raise InputError(f"labels are resolved by 'newest' or 'majority', not {rule!r}")
    found = {}
    for trajectory, given in current_labels(log).items():
        labels = list(given.values())[-1 if rule == "newest" else 0 :]
        count = Counter(map(_category, labels))
        winner = max(count, key=lambda category: (count[category], category))
        found[trajectory] = [label for label in labels if label.category == winner]
    return found


def _category(label: Label) -> int:
    assert label.category is not None  # labels that cannot tell are no current ones
    return label.category


def agreement(log: Iterable[Label], categories: int) -> Agreement:
    """Agreement between the current votes on every trajectory that has two or more of them."""
    contested = [votes for votes in current_votes(log).values() if len(votes) > 1]
    together: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for votes in contested:
        for first, second in combinations(sorted(votes), 2):
            together[first, second].append((votes[first], votes[second]))
    counts = np.zeros((len(contested), categories))
    for row, votes in enumerate(contested):
        np.add.at(counts[row], list(votes.values()), 1)
    return Agreement(
        trajectories=len(contested),
        unanimous=float(np.mean(counts.max(axis=1) == counts.sum(axis=1))) if contested else float("nan"),
        alpha=krippendorff_alpha(counts),
        pairs={names: _pair(np.array(both), categories) for names, both in sorted(together.items())},
    )


def _pair(both: np.ndarray, categories: int) -> Pair:
    """Cohen's kappa = (p_o - p_e) / (1 - p_e): agreement observed, and expected of two who label independently."""
    observed = float(np.mean(both[:, 0] == both[:, 1]))
    first, second = (np.bincount(column, minlength=categories) / len(both) for column in both.T)
    expected = float(first @ second)
    return Pair(len(both), observed, (observed - expected) / (1 - expected) if expected < 1 else float("nan"))


def krippendorff_alpha(counts: np.ndarray) -> float:
    """Krippendorff's alpha = 1 - D_o / D_e, from the number of votes for each category (row: trajectory).

    D_o: share of disagreeing pairs of votes within a trajectory, each vote weighing the same; D_e: of all pairs.
    """
    raters = counts.sum(axis=1)
    total = raters.sum()
    disagreeing = (raters**2 - (counts**2).sum(axis=1)) / np.maximum(raters - 1, 1)
    overall = counts.sum(axis=0)
    by_chance = total**2 - (overall**2).sum()
    return float(1 - (total - 1) * disagreeing.sum() / by_chance) if by_chance else float("nan")
