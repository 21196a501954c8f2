"""Presets: methods and settings that work together."""

from dataclasses import replace

from sidestep.core.errors import InputError
from sidestep.core.model import Model, finite_part
from sidestep.models.domains import find_domain
from sidestep.planning.config import PlanConfig
from sidestep.planning.methods import PPO, Exact, LogAdam, Lookahead, PathwiseCost, Projected, Relative, Score, Search
from sidestep.planning.options import with_options
from sidestep.planning.zero_gradient import has_zero_gradient

PRESETS = ("default", "gradient", "paper", "paper-mfge", "ppo")

# Finite models with costs of single steps.
_EXACT = PlanConfig(
    reward=Exact(entropy=1.0, entropy_share=0.7, start_share=0.5, least_chance=0.15),
    constraint=None,
    multiplier=Projected(start=2.0, rate=8.0, max=500.0, violation_max=0.05),
    search=None,
    epochs=1000,
    learning_rate=0.01,
    learning_rate_end=0.1,
    balance=False,
    margin=0.0,
    observe="state",
)
# Models without derivatives: the search needs none, and PPO and the score function continue from where it ends. Both
# act in every minibatch, or the reward leaves what is safe before the constraint is heard.
_MODEL_FREE = PlanConfig(
    reward=PPO(noise_start=0.3, joint=True, constraint_clip=1.0, learning_starts=10),
    constraint=Score(form="log"),
    # A policy that nothing holds back crosses the border of what is safe, and the score function is slow to return:
    # hence the least multiplier of 0.5.
    multiplier=Relative(start=2.0, rate=0.03, min=0.5, max=100.0),
    search=Search(),
    epochs=2000,
    learning_rate=3e-4,
    learning_rate_end=1.0,
    gradient_clip=0.5,
    divide_by_multipliers=False,
    observe="clock",
    squash="clip",
    test_every=25,
    test_batch=100,
)

# The settings of the paper and of its code.
_PAPER_PPO = PPO(noise_start=0.6, learning_starts=10)
_PAPER_MULTIPLIER = LogAdam(start=1.0, rate=0.003, max=1e6)
_PAPER = PlanConfig(
    reward=_PAPER_PPO,
    constraint=PathwiseCost(form="probability"),
    multiplier=_PAPER_MULTIPLIER,
    search=None,
    epochs=5000,
    learning_rate=3e-4,
    learning_rate_end=1.0,
    gradient_clip=0.5,
    balance=False,
    margin=0.0,
    observe="state",
    squash="clip",
    test_every=25,
    test_batch=100,
)
# Against constraints, what follows differs from the paper; docs/reproduce.md says what its own settings lead to. Its
# code makes one step against the constraint per up to 500 minibatches of PPO, so that the constraint hardly pulls until
# the multiplier has run away; and its multiplier of 1.0 has no unit. Here each minibatch descends both, as in the
# paper's text, and a multiplier is a price in reward.
_PAPER_CONTINUOUS = replace(
    _PAPER,
    reward=replace(
        _PAPER_PPO,
        joint=True,
        constraint_clip=2.0,
        entropy=0.05,  # without noise all trajectories of a batch look alike to the classifier
    ),
    constraint=PathwiseCost(form="log"),  # a classifier with an accuracy of 98 % is saturated on most trajectories
    multiplier=replace(_PAPER_MULTIPLIER, start=2.0, max=200.0),
    learning_rate_end=0.02,
    divide_by_multipliers=False,
    margin=0.7,  # the classifier is too sure where the planner takes it, by 0.01 to 0.06
)
_PAPER_GRID_PPO = replace(
    _PAPER_PPO,
    joint=True,
    # An entropy bonus of 0.005 over half of the epochs leaves no choices to learn from; and a policy without any
    # forgets what to do in states that it meets by chance, unless its steps shrink as well.
    entropy=0.5,
    entropy_in_reward=True,
    entropy_share=0.7,
    # With multipliers this high an agent that always begins at the start learns not to load the box before it has found
    # the goal, or stays with the first way that it found; one that begins anywhere knows the ways around.
    start_share=0.95,
)
# High enough from the first epoch on that no way over a side effect is worth learning, not so high that every way near
# one is closed before it is known; and bounded: side effects by chance never cease altogether, and under a multiplier
# without bound their noise drowns the reward.
_PAPER_GRID_MULTIPLIER = LogAdam(start=20.0, rate=0.005, max=100.0)
_PAPER_GRID = replace(
    _PAPER,
    reward=_PAPER_GRID_PPO,
    constraint=PathwiseCost(form="probability", discount=True),
    multiplier=_PAPER_GRID_MULTIPLIER,
    epochs=1000,
    learning_rate_end=0.02,
    widths=(32, 32),
    test_every=50,
)
# Where side effects are of whole trajectories the classifier is too optimistic where the planner takes it, as above.
_PAPER_GRID_TRAJECTORIES = replace(
    _PAPER_GRID,
    reward=replace(_PAPER_GRID_PPO, entropy=0.3),
    constraint=PathwiseCost(form="log", discount=True),
    multiplier=replace(_PAPER_GRID_MULTIPLIER, start=4.0, rate=0.01),
    epochs=500,
    margin=0.6,
)


def _paper_settings(family: str, *, finite: bool, per_step: bool) -> PlanConfig:
    """The paper's settings for its domains, by the model's family, and for others like them."""
    if finite and not per_step:
        return _PAPER_GRID_TRAJECTORIES
    domain = find_domain(family) if family else None
    return with_options(_PAPER_GRID if finite else _PAPER_CONTINUOUS, dict(domain.paper.planner) if domain else {})


def preset(
    name: str, *, family: str = "", finite: bool = False, gradient: str = "exact", per_step: bool = True
) -> PlanConfig:
    """The settings of this name for a model: those of the paper where it has some for the model's family.

    `gradient` is the model's, "none" where it has no derivatives. `per_step`: on finite models, side effects are of
    single steps, as on the paper's grids, and not of trajectories.
    """
    if name in ("default", "gradient"):
        if finite:
            return _EXACT
        return _MODEL_FREE if gradient == "none" else PlanConfig(lookahead=Lookahead())
    settings = _paper_settings(family, finite=finite, per_step=per_step)
    if name == "ppo":
        return replace(settings if finite else _PAPER, constraint=None)
    if name == "paper":
        return settings
    if name == "paper-mfge":
        return replace(settings, constraint=Score(form="probability"))
    raise InputError(f"expected one of {', '.join(PRESETS)}", place=f"--method {name}")


def preset_for(model: Model, name: str, *, per_step: bool = True) -> PlanConfig:
    """The settings of this name for this model; `per_step` as in `preset`."""
    spec, finite = model.spec, finite_part(model) is not None
    gradient = spec.gradient
    if name in ("default", "gradient") and not finite and gradient != "none" and has_zero_gradient(model):
        gradient = "none"
    return preset(name, family=spec.family, finite=finite, gradient=gradient, per_step=per_step)
