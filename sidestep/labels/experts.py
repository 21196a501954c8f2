"""Who labels: a rule, which answers at once, or people, who answer through the label store when they have time."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array, Int

from sidestep.core.constraints import Scale
from sidestep.core.errors import InputError, LabelsNeeded
from sidestep.core.model import Model, Trajectory
from sidestep.labels.collect import explore
from sidestep.labels.marks import MarksArray
from sidestep.labels.prefixes import marks_from_prefixes, prefix_categories, taken_back_in_words
from sidestep.labels.rules import Rule, find_rule, load_rule, scale_of
from sidestep.labels.store import Store
from sidestep.labels.votes import undecided
from sidestep.models.trust import GIVEN, Files

PEOPLE = "people"
TRIED = 64  # trajectories of explorers on which a rule is tried before it is asked for marks


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
    def answer(self, store: Store, ids: Sequence[int], marks: bool = False) -> dict[int, int]:
        """The category of each of these trajectories of the store; raises LabelsNeeded where some have none yet.

        Those of which people cannot tell are left out.
        `marks`: the step at which each severity was reached is wanted too, and goes into the store where it is known.
        """


class RuleExpert(Expert):
    """A rule that plays the expert; its marks come from labelling prefixes."""

    def __init__(self, rule: Rule) -> None:
        penalty = rule.penalty if rule.penalties else None
        super().__init__(
            rule.name, rule.scale, rule.default_constraint, rule.markovian, rule.label, rule.jittable, penalty
        )

    def answer(self, store: Store, ids: Sequence[int], marks: bool = False) -> dict[int, int]:
        assert self.label is not None
        known, missing = _known(store, ids)
        if missing:
            trajectories = store.get(missing)
            steps = rule_marks(self, trajectories) if marks else None
            store.label(missing, np.asarray(self.label(trajectories)), annotator=self.name, marks=steps)
            known, _ = _known(store, ids)
        return known


class PeopleExpert(Expert):
    """People, with the store as their letter box. Steps of which they cannot tell are taken as the worst."""

    def __init__(self, scale: Scale, labels_steps: bool = False) -> None:
        super().__init__(PEOPLE, scale, labels_steps=labels_steps)

    def answer(self, store: Store, ids: Sequence[int], marks: bool = False) -> dict[int, int]:
        known, missing = _known(store, ids)
        cannot_tell = undecided(store.log()) if missing else set()
        if needed := [i for i in missing if i not in cannot_tell]:
            raise LabelsNeeded(needed)
        worst = len(self.scale) - 1
        return known | dict.fromkeys(missing, worst) if self.labels_steps else known


def expert_of(rule: str | None, people: bool, model: Model, scale: Scale | None = None, files: Files = GIVEN) -> Expert:
    """Who labels: the rule of this name or the model's own; people where there is none, or where they are asked for."""
    if people and rule:
        raise InputError("either a rule labels or people do; leave out --rule or --people", place=f"--rule {rule}")
    found = None if people else find_rule(rule, model, files)
    return RuleExpert(found) if found else PeopleExpert(scale or scale_of(None, model))


def expert_from(given: object, model: Model) -> Expert:
    """Who labels, from what a user of Python gives: an expert, a label store, a rule, its name or its function."""
    if isinstance(given, Expert):
        return given
    if isinstance(given, Store):
        return PeopleExpert(given.scale)
    if given is None or isinstance(given, str):
        return expert_of(None if given == PEOPLE else given, given == PEOPLE, model)
    if not callable(given) and not isinstance(given, Rule):
        raise InputError(
            f"an expert is a function of trajectories, a rule's name, or a label store, not a {type(given).__name__}",
            place="expert",
        )
    return RuleExpert(load_rule(given, model))


def rule_marks(rule: Expert, trajectories: Trajectory) -> MarksArray:
    """The marks of a rule that plays the expert."""
    assert rule.label is not None
    return marks_from_prefixes(prefix_categories(rule.label, rule.jittable, trajectories), len(rule.scale) - 1)


def why_no_marks(expert: Expert, model: Model) -> str | None:
    """Why marks have no meaning with this expert, in a sentence; None where they have. People know what they mark."""
    if expert.label is None:
        return None
    tried = explore(model, jax.random.key(0), TRIED)
    return taken_back_in_words(prefix_categories(expert.label, expert.jittable, tried), expert.scale)


def _known(store: Store, ids: Sequence[int]) -> tuple[dict[int, int], list[int]]:
    """Those of these trajectories that have a label, with its category; and those that have none, each once."""
    category_of, wanted = store.categories("majority"), dict.fromkeys(ids)
    return {i: category_of[i] for i in wanted if i in category_of}, [i for i in wanted if i not in category_of]
