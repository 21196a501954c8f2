"""How good a fitted safety model is, in numbers: plain NumPy on probabilities and true categories."""

from dataclasses import dataclass

import numpy as np

BINS = 15


@dataclass(frozen=True)
class Scores:
    """Measured on trajectories that the fit's gradient never saw."""

    trajectories: int
    accuracy: float
    best_or_not_accuracy: float  # of "best category" against "any other"
    log_loss: float
    calibration_error: float  # of the most probable category
    best_or_not_calibration_error: float  # of the probability of the best category
    precision: tuple[float | None, ...]  # of each category; None where it was never predicted
    recall: tuple[float | None, ...]  # of each category; None where it never occurred
    confusion: tuple[tuple[int, ...], ...]  # rows: true category, columns: predicted


@dataclass(frozen=True)
class FitReport:
    """What a fit did and how well it turned out."""

    train: int  # trajectories
    held_out: int
    marks: int  # steps that were marked, in trajectories of either kind
    category_counts: tuple[int, ...]
    steps: int  # minibatches done
    best_steps: tuple[int, ...]  # of each member: the minibatches behind the parameters that were kept
    epochs: float  # passes over the training trajectories
    seconds: float
    parameters: int
    train_loss: tuple[float, ...]  # at each look, mean over members
    held_out_loss: tuple[float, ...]
    before_calibration: Scores | None
    scores: Scores | None  # on the held-out trajectories, which also chose when to stop and the temperature
    calibration: dict[str, float]


def scores(probabilities: np.ndarray, categories: np.ndarray) -> Scores:
    """`probabilities` (N, K) against true `categories` (N,)."""
    probabilities = np.asarray(probabilities, float)
    categories = np.asarray(categories)
    count = probabilities.shape[1]
    predicted = probabilities.argmax(axis=1)
    confusion = np.zeros((count, count), int)
    np.add.at(confusion, (categories, predicted), 1)
    right = np.diag(confusion)
    of_truth = np.maximum(probabilities[np.arange(len(categories)), categories], 1e-38)
    best, is_best = probabilities[:, 0], categories == 0
    return Scores(
        trajectories=len(categories),
        accuracy=float(np.mean(predicted == categories)),
        best_or_not_accuracy=float(np.mean((best > 0.5) == is_best)),
        log_loss=float(-np.mean(np.log(of_truth))),
        calibration_error=calibration_error(probabilities.max(axis=1), predicted == categories),
        best_or_not_calibration_error=calibration_error(best, is_best),
        precision=_ratios(right, confusion.sum(axis=0)),
        recall=_ratios(right, confusion.sum(axis=1)),
        confusion=tuple(tuple(int(n) for n in row) for row in confusion),
    )


def reliability(confidence: np.ndarray, correct: np.ndarray) -> list[tuple[float, float, int]]:
    """(mean confidence, share correct, count) of every bin of [0, 1] that is not empty."""
    confidence, correct = np.asarray(confidence, float), np.asarray(correct, float)
    where = np.clip((confidence * BINS).astype(int), 0, BINS - 1)
    return [
        (float(confidence[where == b].mean()), float(correct[where == b].mean()), int((where == b).sum()))
        for b in range(BINS)
        if (where == b).any()
    ]


def calibration_error(confidence: np.ndarray, correct: np.ndarray) -> float:
    """Expected calibration error: sum_b n_b / N |confidence_b - share correct_b| (Guo et al. 2017)."""
    curve = reliability(confidence, correct)
    return sum(count * abs(mean - share) for mean, share, count in curve) / max(len(confidence), 1)


def _ratios(numerators: np.ndarray, denominators: np.ndarray) -> tuple[float | None, ...]:
    return tuple(float(n / d) if d > 0 else None for n, d in zip(numerators, denominators, strict=True))
