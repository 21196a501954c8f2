"""What an audit can be expected to prove, and at what price, before the first label is asked for: by simulation."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from sidestep.certification.bounds import annotator_bounds, flagged_bound
from sidestep.certification.opinions import CHOICES, Procedure, costly_categories, procedure
from sidestep.certification.records import Forecast, Premise, Price
from sidestep.certification.sequential import SequentialAudit
from sidestep.core.constraints import Constraint, cost_matrix

SIMULATED = 200  # audits
FORESEEN = 60  # of a campaign's forecast
LESS = 0.05  # chance of a certificate that fewer labels may cost
UNLIKELY, LIKELY = 0.5, 0.8  # chances of a certificate: below the first it is said what is provable with the second
WIDER = (1.2, 1.5, 2.0, 3.0, 5.0)  # tolerances that are tried then


@dataclass(frozen=True)
class Runs:
    """Kinds of runs of a policy: how frequent each is, its true category, and what the safety model flags."""

    chances: Float[np.ndarray, " kind"]
    categories: Int[np.ndarray, " kind"]
    flags: Bool[np.ndarray, "kind constraint"]

    def costs(self, constraints: tuple[Constraint, ...]) -> Float[np.ndarray, " constraint"]:
        """The true chance of each constraint's cost."""
        return cost_matrix(constraints)[:, self.categories].astype(float) @ self.chances

    @property
    def flagged(self) -> Float[np.ndarray, " constraint"]:
        return self.chances @ self.flags.astype(float)

    def labelled(self, answers: Procedure) -> "Labelled":
        """What becomes of runs when they are labelled: every kind with every label that it may get."""
        size = answers.chances.shape[1]
        chances = self.chances[:, None] * answers.chances[self.categories]
        kinds = np.repeat(np.arange(len(self.chances)), size)
        said = np.tile(np.arange(size), len(self.chances))
        return Labelled(chances.ravel(), said, self.flags[kinds], answers.opinions[self.categories][kinds])


@dataclass(frozen=True)
class Labelled:
    """Kinds of labelled runs: how frequent each is, its label, its flags, and the opinions that the label took."""

    chances: Float[np.ndarray, " kind"]
    said: Int[np.ndarray, " kind"]
    flags: Bool[np.ndarray, "kind constraint"]
    opinions: Float[np.ndarray, " kind"]

    def draw(self, shape: tuple[int, ...], random: np.random.Generator) -> Int[np.ndarray, "..."]:
        """Runs at random, by their kind."""
        edges = np.cumsum(self.chances)[:-1].astype(np.float32)
        return np.searchsorted(edges, random.random(shape, np.float32) * np.float32(self.chances.sum()), side="right")


@dataclass(frozen=True)
class Known:
    """Known cases hidden among the questions, for each constraint: so many costly ones, so many others."""

    harmful: int = 0
    harmless: int = 0

    def premises(
        self,
        constraints: tuple[Constraint, ...],
        runs: Runs,
        answers: Procedure,
        alpha: float,
        rollouts: int,
        random: np.random.Generator,
    ) -> tuple[Premise, ...]:
        """What an audit would know of each constraint, drawn at random; `rollouts` are predicted, 0 in a plain one."""
        made = []
        for number, constraint in enumerate(constraints):
            premise = Premise()
            if rollouts and runs.flagged[number] < constraint.tolerance:
                flagged = flagged_bound(random.binomial(rollouts, runs.flagged[number]), rollouts, alpha)
                premise = Premise(threshold=0.5, flagged=flagged)
            if self.harmful:
                missed, alarms = self._bounds(constraint, runs, answers, alpha, random)
                premise = Premise(premise.threshold, premise.flagged, missed, alarms)
            made.append(premise)
        return tuple(made)

    def labels(self, constraints: tuple[Constraint, ...], answers: Procedure) -> float:
        """What it takes to have each case settled: a costly one takes further opinions."""
        costly = np.array(costly_categories(constraints))
        of_costly, of_others = (
            float(answers.opinions[side].mean()) if side.any() else 0.0 for side in (costly, ~costly)
        )
        return self.harmful * of_costly + self.harmless * of_others

    def _bounds(
        self, constraint: Constraint, runs: Runs, answers: Procedure, alpha: float, random: np.random.Generator
    ) -> tuple[float, float]:
        """Known cases are as the policy's own runs of either side are; of any category, where there are none."""
        cost = np.asarray(constraint.cost_weights, bool)
        shares = np.bincount(runs.categories, runs.chances, len(cost)) + 1e-9
        said_costly = answers.chances[:, cost].sum(axis=1)
        seen, alarmed = (float(shares[side] @ said_costly[side]) / float(shares[side].sum()) for side in (cost, ~cost))
        missed = random.binomial(self.harmful, min(max(1.0 - seen, 0.0), 1.0))
        alarms = random.binomial(self.harmless, min(alarmed, 1.0))
        return annotator_bounds(missed, self.harmful, alarms, self.harmless, alpha)


class Prospect(NamedTuple):
    certified: float  # chance of a certificate
    labels: float  # answers in the mean, opinions and known cases included


def forecast(
    constraints: tuple[Constraint, ...],
    confidence: float,
    most: int,
    runs: Runs,
    answers: Procedure,
    known: Known,
    rollouts: int,
    seed: int = 0,
    audits: int = SIMULATED,
) -> Prospect:
    """Simulated audits of a policy with such runs, labelled by such annotators."""
    certified, labels, labelled = 0, 0.0, runs.labelled(answers)
    for repetition in range(audits):
        random = np.random.default_rng([seed, repetition])
        alpha = (1.0 - confidence) / max(len(constraints), 1)
        premises = known.premises(constraints, runs, answers, alpha, rollouts, random)
        audit = SequentialAudit(constraints, confidence, most, premises)
        drawn = labelled.draw((most,), random)
        status, used, _ = audit.decide(labelled.said[drawn], labelled.flags[drawn])
        certified += status == "certified"
        labels += float(labelled.opinions[drawn[:used]].sum()) + known.labels(constraints, answers)
    return Prospect(certified / audits, labels / audits)


def prospects(
    constraints: tuple[Constraint, ...],
    confidence: float,
    most: int,
    costs: Float[np.ndarray, " constraint"],
    confusions: Float[np.ndarray, "annotator true said"],
    opinions: int,
    known: Known,
) -> Forecast:
    """Of a plain audit of a policy that is believed to have these costs, by annotators who err so."""
    matrix = cost_matrix(constraints) > 0
    shares = np.zeros(matrix.shape[1])
    for cost, own in zip(costs, matrix, strict=True):  # the mildest category of each constraint's cost
        mildest = int(np.argmax(own))
        shares[mildest] = max(shares[mildest], cost)
    free = int(np.argmin(matrix.sum(axis=0)))
    shares[free] += max(1.0 - shares.sum(), 0.0)
    runs = Runs(shares / shares.sum(), np.arange(len(shares)), np.zeros((len(shares), len(constraints)), bool))
    answers = procedure(list(confusions), costly_categories(constraints), opinions)
    found = forecast(constraints, confidence, most, runs, answers, known, 0, audits=FORESEEN)
    worst = float(np.max(np.asarray(costs) / np.array([max(one.tolerance, 1e-9) for one in constraints])))
    error = float(1.0 - np.mean([np.mean(np.diag(one)) for one in confusions]))
    return Forecast(worst, error, found.certified, found.labels, opinions)


def plan_opinions(
    constraints: tuple[Constraint, ...],
    confidence: float,
    most: int,
    costs: Float[np.ndarray, " constraint"],
    confusions: Float[np.ndarray, "annotator true said"],
    known: Known,
) -> Forecast:
    """The forecast with the number of opinions that proves the most, and of those the one that takes the fewest labels.

    More opinions clear more false alarms, and a known case of harm takes more labels. The number is settled before the
    first label of the audit, and known cases go through the same procedure, so that m bounds what this very procedure
    misses: the certificate holds whichever number is chosen. Without known cases nobody is asked again.
    """
    about = (costs, confusions)
    choices = CHOICES if known.harmful else (1,)
    found = [prospects(constraints, confidence, most, *about, number, known) for number in choices]
    enough = max(one.certified for one in found) - LESS
    best = min((one for one in found if one.certified >= enough), key=lambda one: one.labels)
    others = tuple(Price(one.opinions, one.certified, one.labels) for one in found if one is not best)
    looser: tuple[str, ...] = ()
    if best.certified < UNLIKELY:
        looser = _provable(constraints, confidence, most, *about, best.opinions, known)
    return replace(best, others=others, provable=looser)


def _provable(
    constraints: tuple[Constraint, ...],
    confidence: float,
    most: int,
    costs: Float[np.ndarray, " constraint"],
    confusions: Float[np.ndarray, "annotator true said"],
    opinions: int,
    known: Known,
) -> tuple[str, ...]:
    """The same constraints with wider tolerances, as little wider as makes a certificate likely; none if none do."""
    for factor in WIDER:
        looser = tuple(_widened(constraint, factor) for constraint in constraints)
        if all(one.tolerance < 0.5 for one in looser):
            found = prospects(looser, confidence, most, costs, confusions, opinions, known)
            if found.certified >= LIKELY:
                return tuple(one.text for one in looser)
    return ()


def _widened(constraint: Constraint, factor: float) -> Constraint:
    """With a tolerance so many times as wide, in three digits."""
    tolerance = Fraction(f"{factor * constraint.tolerance:.3g}")
    bound = tolerance if constraint.sense == "<=" else 1 - tolerance
    text = f"{constraint.text.partition(constraint.sense)[0]}{constraint.sense}{float(bound):.6g}"
    return replace(constraint, text=text, exact_bound=bound)
