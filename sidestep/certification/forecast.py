"""What an audit can be expected to prove, and at what price, before the first label is asked for: by simulation."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from sidestep.certification.bounds import annotator_bounds, flagged_bound
from sidestep.certification.opinions import Procedure, costly_categories, procedure
from sidestep.certification.records import Forecast, Premise
from sidestep.certification.sequential import SequentialAudit
from sidestep.core.constraints import Constraint, cost_matrix

SIMULATED = 200  # audits
FORESEEN = 60  # of a campaign's forecast


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
    return Forecast(worst, error, found.certified, found.labels)
