"""Who labels: a rule, which answers at once, or people, who answer through the label store when they have time."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Array, Int

from sidestep.core.constraints import Scale
from sidestep.core.errors import InputError, LabelsNeeded
from sidestep.core.model import Model, Trajectory
from sidestep.labels.rules import Rule, find_rule, scale_of
from sidestep.labels.store import Store
from sidestep.models.trust import GIVEN, Files

PEOPLE = "people"


@dataclass(frozen=True)
class Expert(ABC):
    """Nothing but its expert knows who labels."""

    name: str
    scale: Scale
    default_constraint: str = ""  # what is meant when no constraint is given; "" for 0.95 of the best category
    labels_steps: bool = False  # a trajectory is as bad as its worst step, so that single steps can be labelled
    label: Callable[[Trajectory], Int[Array, " batch"]] | None = None  # at no cost; None where labels are expensive
    jittable: bool = False  # `label` may be called inside jit
    penalty: Callable[[Trajectory], Array] | None = None  # sum of step penalties, where there are numbers for them

    @abstractmethod
    def answer(self, store: Store, ids: Sequence[int]) -> dict[int, int]:
        """The category of each of these trajectories of the store; raises LabelsNeeded where some have none yet."""


class RuleExpert(Expert):
    """A rule that plays the expert."""

    def __init__(self, rule: Rule) -> None:
        penalty = rule.penalty if rule.penalties else None
        super().__init__(
            rule.name, rule.scale, rule.default_constraint, rule.markovian, rule.label, rule.jittable, penalty
        )

    def answer(self, store: Store, ids: Sequence[int]) -> dict[int, int]:
        assert self.label is not None
        known, missing = _known(store, ids)
        if missing:
            store.label(missing, np.asarray(self.label(store.get(missing))), annotator=self.name)
            known, _ = _known(store, ids)
        return known


class PeopleExpert(Expert):
    """People, with the store as their letter box."""

    def __init__(self, scale: Scale, labels_steps: bool = False) -> None:
        super().__init__(PEOPLE, scale, labels_steps=labels_steps)

    def answer(self, store: Store, ids: Sequence[int]) -> dict[int, int]:
        known, missing = _known(store, ids)
        if missing:
            raise LabelsNeeded(missing)
        return known


def expert_of(rule: str | None, people: bool, model: Model, scale: Scale | None = None, files: Files = GIVEN) -> Expert:
    """Who labels: the rule of this name or the model's own; people where there is none, or where they are asked for."""
    if people and rule:
        raise InputError("either a rule labels or people do; leave out --rule or --people", place=f"--rule {rule}")
    found = None if people else find_rule(rule, model, files)
    return RuleExpert(found) if found else PeopleExpert(scale or scale_of(None, model))


def _known(store: Store, ids: Sequence[int]) -> tuple[dict[int, int], list[int]]:
    """Those of these trajectories that have a label, with its category; and those that have none, each once."""
    category_of, wanted = store.categories(), dict.fromkeys(ids)
    return {i: category_of[i] for i in wanted if i in category_of}, [i for i in wanted if i not in category_of]
