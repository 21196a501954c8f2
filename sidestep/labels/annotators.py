"""How often each annotator errs, and what the truth is likely to be: Dawid and Skene's model.

    truth_i ~ prior_i                       the safety model's prediction, or the shares of the categories
    P(a says s | truth t) = C_a[t, s]       one confusion matrix for each annotator

Expectation maximisation takes turns: the truth given the matrices, P(t | said) ~ prior_i[t] prod_a C_a[t, said_a], and
the matrices given the truth, C_a[t, s] ~ sum of P(t) over what a called s.

Where every trajectory has one vote, an error of an annotator and an error of a prediction look the same. So some
questions are asked twice, blind: two answers that err independently with chance e differ with chance 2 e or so,
whatever the safety model thinks. Imagined answers with that error are what the estimate begins with.

Answers to copies of one trajectory are further opinions on one truth: their likelihoods multiply.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

IMAGINED = 200.0  # answers for each true category
ERROR = 0.02  # of the imagined answers, where no question was asked twice
DIFFERING = 2  # pairs of answers to one question that differ, before anybody is said to err
ROUNDS = 30  # of expectation maximisation
# Share of a prediction that is spread over all categories. With little of it a safety model that is sure and wrong
# turns right labels into slips, and no label shows that it is wrong.
DOUBT = 0.1


@dataclass(frozen=True)
class Annotators:
    """What a log of labels says of those who gave them, and of the truth behind them."""

    names: tuple[str, ...]
    confusion: Float[np.ndarray, "annotator true said"]
    likelihood: Float[np.ndarray, "trajectory true"]  # P(all that was said | truth), up to a factor
    truth: Float[np.ndarray, "trajectory true"]  # P(truth | all that was said)


def estimate_annotators(
    votes: Sequence[Mapping[str, int]],
    categories: int,
    prior: Float[np.ndarray, "trajectory true"] | None = None,
    error: float = ERROR,
    about: Sequence[int] | None = None,
) -> Annotators:
    """From the current votes on each trajectory; `prior` are predictions, `error` is what repeated questions showed.

    Rows with the same number in `about` are of one trajectory: the first, and its copies.
    """
    names = tuple(sorted({name for one in votes for name in one}))
    said = np.full((len(votes), len(names)), -1)
    for row, one in enumerate(votes):
        for name, category in one.items():
            said[row, names.index(name)] = category
    chances = prior
    if chances is None:
        counts = np.array([np.bincount(list(one.values()), minlength=categories) for one in votes], float)
        chances = np.broadcast_to((counts.sum(axis=0) + 1.0) / (counts.sum() + categories), (len(votes), categories))
    chances = (1.0 - DOUBT) * chances + DOUBT / categories
    _, first, same = np.unique(
        np.arange(len(votes)) if about is None else about, return_index=True, return_inverse=True
    )
    imagined = _imagined(categories, error)
    confusion = np.broadcast_to(imagined / imagined.sum(axis=1, keepdims=True), (len(names), categories, categories))
    likelihood = _likelihood(said, confusion)
    truth = _truth(chances[first], likelihood, same)
    for _ in range(ROUNDS):
        confusion = np.array([_confusion(said[:, number], truth, imagined) for number in range(len(names))])
        confusion = confusion.reshape(len(names), categories, categories)
        likelihood = _likelihood(said, confusion)
        truth = _truth(chances[first], likelihood, same)
    return Annotators(names, confusion, likelihood / likelihood.max(axis=1, keepdims=True), truth)


def repeated_error(answers: Sequence[tuple[int, int]]) -> float | None:
    """The share of wrong answers, by pairs of answers to the same question; None where next to none of them differ."""
    differing = sum(first != second for first, second in answers)
    return differing / (2.0 * len(answers)) if differing >= DIFFERING else None


def _imagined(categories: int, error: float) -> np.ndarray:
    wrong = error / max(categories - 1, 1)
    return IMAGINED * (wrong + (1.0 - error - wrong) * np.eye(categories))


def _confusion(said: np.ndarray, truth: np.ndarray, imagined: np.ndarray) -> np.ndarray:
    counts = imagined.copy()
    for category in range(len(imagined)):
        counts[:, category] += truth[said == category].sum(axis=0)
    return counts / counts.sum(axis=1, keepdims=True)


def _likelihood(said: np.ndarray, confusion: np.ndarray) -> np.ndarray:
    """prod_a C_a[t, said_a] over those who said something."""
    found = np.ones((len(said), confusion.shape[1] if len(confusion) else 1))
    for number, matrix in enumerate(confusion):
        spoke = said[:, number] >= 0
        found[spoke] *= matrix[:, said[spoke, number]].T
    return found


def _truth(chances: np.ndarray, likelihood: np.ndarray, same: np.ndarray) -> np.ndarray:
    """P(t | said) ~ prior[t] times the likelihoods of all rows that are of the same trajectory."""
    found = np.log(chances)
    np.add.at(found, same, np.log(likelihood))
    return _normalised(np.exp(found - found.max(axis=1, keepdims=True)))[same]


def _normalised(rows: np.ndarray) -> np.ndarray:
    return rows / rows.sum(axis=1, keepdims=True)
