"""Who labels: a rule, which answers at once, or people, who answer through the label store when they have time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Array, Int

from sidestep.core.constraints import Scale
from sidestep.core.errors import InputError, LabelsNeeded
from sidestep.core.model import Model, Trajectory
from sidestep.labels.rules import Rule, find_rule, scale_of
from sidestep.labels.store import Store
from sidestep.models.trust import GIVEN, Files

Label = Callable[[Trajectory], Int[Array, " batch"]]
PEOPLE = "people"


class Expert(Protocol):
    """Nothing but its expert knows who labels."""

    @property
    def name(self) -> str: ...

    @property
    def scale(self) -> Scale: ...

    @property
    def default_constraint(self) -> str:
        """What is meant when no constraint is given; "" for 0.95 of the best category."""
        ...

    @property
    def labels_steps(self) -> bool:
        """Whether a trajectory is as bad as its worst step, so that single steps can be labelled."""
        ...

    @property
    def label(self) -> Label | None:
        """Gives the categories of any trajectories at no cost; None where labels are dear."""
        ...

    @property
    def jittable(self) -> bool:
        """Whether `label` may be called inside jit."""
        ...

    @property
    def penalty(self) -> Callable[[Trajectory], Array] | None:
        """Sum of step penalties, where there are numbers for them."""
        ...

    def answer(self, store: Store, ids: Sequence[int]) -> dict[int, int]:
        """The category of each of these trajectories of the store; raises LabelsNeeded where some have none yet."""
        ...


@dataclass(frozen=True)
class RuleExpert:
    """A rule that plays the expert."""

    rule: Rule

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def scale(self) -> Scale:
        return self.rule.scale

    @property
    def default_constraint(self) -> str:
        return self.rule.default_constraint

    @property
    def labels_steps(self) -> bool:
        return self.rule.markovian

    @property
    def jittable(self) -> bool:
        return self.rule.jittable

    @property
    def label(self) -> Label:
        return self.rule.label

    @property
    def penalty(self) -> Callable[[Trajectory], Array] | None:
        return self.rule.penalty if self.rule.penalties else None

    def answer(self, store: Store, ids: Sequence[int]) -> dict[int, int]:
        known, missing = _known(store, ids)
        if missing:
            store.label(missing, np.asarray(self.rule.label(store.get(missing))), annotator=self.name)
            known, _ = _known(store, ids)
        return known


@dataclass(frozen=True)
class PeopleExpert:
    """People, with the store as their letter box."""

    scale: Scale
    name: str = PEOPLE
    default_constraint: str = ""
    labels_steps: bool = False
    jittable: bool = False
    label: None = None
    penalty: None = None

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
    if found is not None:
        return RuleExpert(found)
    return PeopleExpert(scale or scale_of(None, model))


def _known(store: Store, ids: Sequence[int]) -> tuple[dict[int, int], list[int]]:
    """Those of these trajectories that have a label, with its category; and those that have none, each once."""
    category_of = store.categories()
    wanted = dict.fromkeys(ids)
    return {i: category_of[i] for i in wanted if i in category_of}, [i for i in wanted if i not in category_of]
