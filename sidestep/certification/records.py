"""What audits found and what a run ended with. Everything that shows a certificate reads these records."""

from dataclasses import dataclass, replace
from typing import Literal

from sidestep.core.records import JsonObject, from_json, to_json

Status = Literal["open", "certified", "refused", "abandoned"]
Method = Literal["fixed", "sequential", "exact"]
Proof = Literal["rollouts", "exact"]
Acts = Literal["mean", "sampled"]
Kind = Literal["plain", "stratified", "signed"]


@dataclass(frozen=True)
class Premise:
    """What an audit knows of one constraint's cost before it counts labels; each bound at its share of the error."""

    threshold: float | None = None  # of the predicted cost, from which on a run counts as costly unseen; None: plain
    flagged: float = 0.0  # the chance of such a run, at most
    missed: float = 0.0  # the share of costly runs that the labels call harmless, at most
    alarms: float = 0.0  # the share of harmless runs that the labels call costly, at most

    def cost(self, labelled: float, unflagged: bool = False) -> float:
        """The true cost at most, where labels say at most `labelled`: of all runs, or of those not flagged."""
        true = min(labelled / (1.0 - self.missed), 1.0) if self.missed < 1.0 else 1.0
        return self.flagged + (1.0 - self.flagged) * true if unflagged else true

    def least_cost(self, labelled: float) -> float:
        """The true cost at least, where labels say at least `labelled`: labelled <= cost + (1 - cost) alarms."""
        return max(labelled - self.alarms, 0.0) / (1.0 - self.alarms) if self.alarms < 1.0 else 0.0


@dataclass(frozen=True)
class KnownCase:
    """A trajectory of the store whose category is known, of which copies are hidden among an audit's questions."""

    trajectory: int
    category: int


@dataclass(frozen=True)
class AnnotatorRecord:
    """How one annotator did on known cases; each bound holds with 95 % by itself, and is no part of the certificate."""

    name: str
    harmful: int  # answers to known cases of harm
    missed: int  # of these: called harmless
    harmless: int
    alarms: int
    missed_at_most: float
    alarms_at_most: float


@dataclass(frozen=True)
class Price:
    """What an audit would come to with up to so many opinions on a run that somebody calls costly."""

    opinions: int
    certified: float  # chance of a certificate
    labels: float  # in the mean, further opinions and known cases included


@dataclass(frozen=True)
class Forecast:
    """What an audit can be expected to come to, by what is known before its first label."""

    cost: float  # of the policy, as it is believed to be: the largest share of a tolerance
    error: float  # share of answers in which annotators err
    certified: float  # chance of a certificate
    labels: float  # in the mean, further opinions and known cases included
    opinions: int = 1  # at most, on a run that somebody calls costly: those that are planned
    others: tuple[Price, ...] = ()  # what other numbers of opinions would come to
    provable: tuple[str, ...] = ()  # looser constraints that are likely to be proven, where these are not


@dataclass(frozen=True)
class Design:
    """How an audit is made: settled before its first label, by what does not depend on its labels."""

    kind: Kind = "plain"
    opinions: int = 1  # at most, on a run that somebody calls costly
    known: tuple[KnownCase, ...] = ()  # where annotators may err; without any, their labels are taken for the truth
    predicted: int = 0  # rollouts that the safety model has looked at
    signed_by: str | None = None  # who stands for the pattern, in a signed audit
    pattern: str | None = None  # which that is, in words
    forecast: Forecast | None = None  # where people label


@dataclass(frozen=True)
class Verdict:
    """One constraint's part of a certificate. Both bounds hold together, and with those of the other constraints."""

    text: str
    estimate: float | None  # observed frequency of the constraint's event; None when nothing was labelled
    lower: float
    upper: float
    met: bool
    certified: bool
    proof: Proof = "rollouts"  # exact: the chance was computed, and both bounds hold for certain


@dataclass(frozen=True)
class Return:
    """What a policy earned on fresh rollouts. `interval` is approximate, and no part of the certificate."""

    mean: float
    std: float
    discounted_mean: float
    interval: tuple[float, ...] | None = None  # mean -+ 1.96 standard errors


@dataclass(frozen=True)
class Penalty:
    """Sum of step penalties, for models that state them."""

    mean: float
    std: float


@dataclass(frozen=True)
class Figures:
    """What fresh rollouts of a policy earned and did."""

    returns: Return
    side_effects: dict[str, float]  # frequency of each category among the labelled rollouts
    penalty: Penalty | None = None


@dataclass(frozen=True)
class Audit:
    """One entry of a run's ledger: what was asked for before the first rollout, and what came of it.

    All audits of a run share the error 1 - `promised`: audit k may spend (1 - promised) / 2^k of it.
    """

    number: int
    method: Method
    labelled_by: str
    policy: str  # hash of the policy's file
    seed: int
    most: int  # rollouts; for a sequential audit at most so many
    promised: float  # confidence that holds for all audits of the run together
    candidate: int | None = None  # of the campaign; None for `sidestep certify`
    design: Design = Design()
    premises: tuple[Premise, ...] = ()  # of the constraints; empty in a plain audit whose labels are the truth
    annotators: tuple[AnnotatorRecord, ...] = ()  # where known cases were hidden among the questions
    status: Status = "open"
    constraints: tuple[Verdict, ...] = ()
    rollouts: int = 0  # that were labelled
    labels: int = 0  # that it took: distinct trajectories behind them, further opinions and known cases
    seen: tuple[int, ...] = ()  # rollouts of each category, those labelled after the decision too; () if there are none
    figures: Figures | None = None
    reason: str | None = None  # why nothing can be certified, whatever the labels say
    acts: Acts = "mean"  # sampled: the policy draws, since the best one does

    @property
    def confidence(self) -> float:
        """Of this audit's own bounds."""
        return split_confidence(self.promised, self.number)

    @property
    def certified(self) -> bool:
        return self.status == "certified"

    @property
    def basis(self) -> str | None:
        """What the bounds rest on beside the labels of fresh rollouts, in words; None where on nothing else."""
        if self.design.kind == "signed":
            return (
                f"this rests on the signature of {self.design.signed_by}: nobody looked at the rollouts, and what "
                f"counts as a side effect is this pattern: {self.design.pattern}"
            )
        parts = []
        if any(premise.threshold is not None for premise in self.premises):
            flagged = max(premise.flagged for premise in self.premises)
            parts.append(
                f"what the safety model flags counts as costly (at most {flagged:.4f} of {self.design.predicted:,} "
                "rollouts nobody looked at)"
            )
        covered = [premise for premise in self.premises if premise.missed > 0.0]
        if covered:
            parts.append(
                f"annotators miss at most {max(premise.missed for premise in covered):.4f} of the harm, by "
                f"{len(self.design.known)} known cases among their questions"
            )
        if covered and len(covered) < len(self.premises):
            parts.append("of the other constraints too few harmful cases are known, and labels count as the truth")
        if not covered and self.method == "sequential":
            parts.append("what annotators say counts as the truth: their errors are not covered")
        return "; ".join(parts) or None


@dataclass(frozen=True)
class Neighbour:
    """A tolerance next to one that was asked for: how much more its best candidate is predicted to earn."""

    text: str
    gain: float | None  # None: no candidate is believed to keep it


@dataclass(frozen=True)
class Evaluation:
    """How the figures of a result were obtained."""

    trajectories: int
    policy: Acts = "mean"


@dataclass(frozen=True)
class StepPlan:
    """How the tolerance was used where single steps are labelled; returns are exact, over runs of `horizon` steps."""

    used: Literal["chance", "number", "avoid"]  # what was bounded: see `campaign.pairs`
    proof: Proof
    horizon: int
    planned_return: float
    chances: tuple[float, ...]  # of each constraint's cost in a run
    numbers: tuple[float, ...]  # of each constraint's costly steps in a run, expected
    ended: float  # chance that a run reaches an end
    optimum: float  # for the tolerance itself
    avoiding: float | None  # the most that is earned without any cost; None: that is impossible


@dataclass(frozen=True)
class Agreement:
    """How often people said the same of one trajectory: two of them, or one who was asked again, blind."""

    pairs: int  # of answers
    same: int
    at_least: float  # share of equal answers, with 95 %


@dataclass(frozen=True)
class Result:
    """result.json: what a run ended with. Its defaults are those of a run whose policy nobody labelled."""

    model: str
    constraints: tuple[Verdict, ...] | None = None  # None: nobody labelled fresh rollouts
    confidence: float = 0.95  # promised for all bounds of all audits of the run together
    returns: Return | None = None
    side_effects: dict[str, float] | None = None
    labels_used: int | None = None
    audit_labels: int = 0
    audits: int = 0
    rollouts: int = 0
    seconds: float = 0.0
    seed: int = 0
    method: str = "default"
    evaluation: Evaluation = Evaluation(0)
    penalty: Penalty | None = None
    marks_used: int = 0
    pattern: str | None = None
    reason: str | None = None
    basis: str | None = None  # what the certificate rests on beside labels of fresh rollouts, in words
    diagnosis: str | None = None
    harmless_return: float | None = None
    sampled: Figures | None = None  # the same policy with its noise: figures, no claim
    candidate: dict[str, object] | None = None
    steps: StepPlan | None = None
    neighbours: tuple[Neighbour, ...] = ()  # predicted, not certified
    agreement: Agreement | None = None  # where people label, and questions were asked twice

    @property
    def certified(self) -> bool:
        """Every constraint is proven; a run without constraints has nothing to prove."""
        return self.constraints is not None and all(verdict.certified for verdict in self.constraints)

    def with_audit(self, audit: Audit, audits: tuple[Audit, ...]) -> "Result":
        """The result after a further audit: counted always, and the certificate where there was none before."""
        counted = replace(self, audits=len(audits), audit_labels=sum(one.labels for one in audits))
        if (self.certified and self.constraints) or (self.constraints is not None and not audit.certified):
            return counted
        figures = audit.figures
        return replace(
            counted,
            constraints=audit.constraints,
            confidence=audit.promised,
            returns=figures.returns if figures else None,
            side_effects=figures.side_effects if figures else None,
            penalty=figures.penalty if figures else None,
            rollouts=audit.rollouts,
            evaluation=Evaluation(audit.rollouts, audit.acts),
            reason=audit.reason,
            basis=audit.basis,
        )


def split_confidence(confidence: float, audit: int) -> float:
    """The confidence of audit 1, 2, ...: alpha / 2^k each, so that all audits of a run together keep alpha."""
    return 1.0 - (1.0 - confidence) / 2**audit


def result_to_json(result: Result) -> JsonObject:
    """result.json as it is promised to others: `return` for the returns, and no empty parts but those promised."""
    data = {("return" if name == "returns" else name): value for name, value in to_json(result).items()}
    return {name: value for name, value in data.items() if value is not None or name == "pattern"}


def result_from_json(data: object, place: str) -> Result:
    """Also from a run of an earlier version, which kept the confidence with the evaluation."""
    if isinstance(data, dict):
        evaluation = data.get("evaluation")
        old = evaluation.get("confidence") if isinstance(evaluation, dict) else None
        defaults = {
            "confidence": min(old, 0.95) if isinstance(old, float) else 0.95,  # it named the audit's own share
            "audits": 1,
            "evaluation": {"trajectories": data.get("rollouts", 0)},
        }
        data = defaults | data | {"returns": data.get("return")}
    return from_json(Result, data, place)
