"""The end of a campaign: audits of its favourites on rollouts that no decision has seen, and the answer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from sidestep.campaign.waiting import Waiting
from sidestep.certification.evaluation import audit, certification_key, fresh_return
from sidestep.certification.sequential import people_audit, split_confidence
from sidestep.constraints import Constraint, cost_matrix
from sidestep.labels.rules import Rule
from sidestep.labels.store import Store
from sidestep.model import Model, Policy


@dataclass(frozen=True)
class Auditor:
    """Audits policies one after the other; the confidence is split over the audits, whatever their number becomes."""

    model: Model
    rule: Rule | None  # None: people label
    constraints: tuple[Constraint, ...]
    store: Store
    seed: int
    rollouts: int
    confidence: float

    def __call__(self, policy: Policy, number: int) -> dict[str, Any]:
        """Audit `number` (1, 2, ...) of this campaign, in the form of result.json."""
        key = jax.random.fold_in(certification_key(self.seed), number)
        confidence = split_confidence(self.confidence, number)
        if self.rule is None:
            return self._by_people(policy, number, confidence)
        result = audit(
            self.model, policy, self.rule, self.constraints, key, rollouts=self.rollouts, confidence=confidence
        )
        return result | {"audit_labels": self.rollouts}

    def _by_people(self, policy: Policy, number: int, confidence: float) -> dict[str, Any]:
        key = certification_key(self.seed)
        state = people_audit(
            self.store,
            self.model,
            policy,
            self.constraints,
            key,
            number=number,
            confidence=confidence,
            most=self.rollouts,
        )
        if state.asked:
            raise Waiting(list(state.asked))
        shares = {name: n / state.used for name, n in zip(self.store.scale.categories, state.counts, strict=True)}
        return {
            "model": self.model.spec.name,
            "constraints": [vars(verdict) for verdict in state.verdicts],
            "return": fresh_return(self.model, policy, jax.random.fold_in(key, number)),
            "side_effects": shares,
            "rollouts": state.used,
            "audit_labels": state.labels,
            "evaluation": {"trajectories": state.used, "policy": "mean", "confidence": confidence},
        }


def audited(
    auditor: Auditor,
    audits: list[dict[str, Any]],
    most: int,
    favourite: Callable[[], int],
    policy_of: Callable[[int], Policy],
    learn: Callable[[int, dict[str, Any]], None],
) -> tuple[int, dict[str, Any]]:
    """The first favourite that an audit certifies; the least bad one when none of `most` audits does.

    `audits` holds those made before and grows; `learn` is told what an audit found, before the next favourite is named.
    """
    while not any(_certified(one) for one in audits) and len(audits) < most:
        index = favourite()
        result = auditor(policy_of(index), len(audits) + 1)
        audits.append({"candidate": index, **result})
        learn(index, result)
    best = max(audits, key=lambda one: (_certified(one), _slack(one, auditor.constraints)))
    result = {name: value for name, value in best.items() if name != "candidate"}
    result["audit_labels"] = int(sum(one["audit_labels"] for one in audits))
    result["audits"] = len(audits)
    return best["candidate"], result


def _certified(result: dict[str, Any]) -> bool:
    return all(verdict["certified"] for verdict in result["constraints"])


def _slack(result: dict[str, Any], constraints: tuple[Constraint, ...]) -> float:
    """How far the bound of the worst constraint is on its right side."""
    rooms = [
        verdict["lower"] - constraint.bound if constraint.sense == ">=" else constraint.bound - verdict["upper"]
        for verdict, constraint in zip(result["constraints"], constraints, strict=True)
    ]
    return min(rooms)


def costly_of(constraints: tuple[Constraint, ...], result: dict[str, Any], categories: tuple[str, ...]) -> np.ndarray:
    """How many of an audit's rollouts count for each constraint."""
    shares = np.array([result["side_effects"][name] for name in categories])
    return cost_matrix(constraints) @ shares * result["rollouts"]
