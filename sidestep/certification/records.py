"""What audits found and what a run ended with. Everything that shows a certificate reads these records."""

from dataclasses import dataclass, replace
from typing import Literal

from sidestep.core.records import JsonObject, from_json, to_json

Status = Literal["open", "certified", "refused", "abandoned"]
Method = Literal["fixed", "sequential"]


@dataclass(frozen=True)
class Verdict:
    """One constraint's part of a certificate. Both bounds hold together, and with those of the other constraints."""

    text: str
    estimate: float | None  # observed frequency of the constraint's event; None when nothing was labelled
    lower: float
    upper: float
    met: bool
    certified: bool


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
    status: Status = "open"
    constraints: tuple[Verdict, ...] = ()
    rollouts: int = 0  # that were labelled
    labels: int = 0  # distinct trajectories behind them
    figures: Figures | None = None
    reason: str | None = None  # why nothing can be certified, whatever the labels say

    @property
    def confidence(self) -> float:
        """Of this audit's own bounds."""
        return split_confidence(self.promised, self.number)

    @property
    def certified(self) -> bool:
        return self.status == "certified"


@dataclass(frozen=True)
class Evaluation:
    """How the figures of a result were obtained."""

    trajectories: int
    policy: Literal["mean", "sampled"] = "mean"


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
    diagnosis: str | None = None
    harmless_return: float | None = None
    sampled: Figures | None = None  # the same policy with its noise: figures, no claim
    candidate: dict[str, object] | None = None

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
            evaluation=Evaluation(audit.rollouts),
            reason=audit.reason,
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
