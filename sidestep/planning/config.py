"""How a policy is trained: the chosen methods and what all of them share. Importable without JAX, for `--help`."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sidestep.core.errors import InputError
from sidestep.core.options import check_ranges, option, place_of
from sidestep.planning.methods import (
    PID,
    PPO,
    Exact,
    LogAdam,
    Lookahead,
    Pathwise,
    PathwiseCost,
    Projected,
    Relative,
    Score,
    Search,
)

if TYPE_CHECKING:  # this imports JAX
    from sidestep.planning.problem import Problem

MOST_LAYERS = 16


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """How a policy is trained: maximise the return subject to E[C_i] <= d_i for every constraint i."""

    reward: Pathwise | PPO | Exact = field(default_factory=Pathwise)
    # None where there are no constraints, or where the reward's method brings their gradients.
    constraint: PathwiseCost | Score | None = field(default_factory=PathwiseCost)
    multiplier: Relative | Projected | LogAdam | PID = field(default_factory=Relative)
    search: Search | None = field(default_factory=Search)
    lookahead: Lookahead | None = None

    epochs: int = option(1000, "Learning epochs.", least=1, most=10**7)
    learning_rate: float = option(3e-3, "Adam's step size.", above=0)
    learning_rate_end: float = option(
        0.02, "Share of the step size that is left at the end of a cosine decay (1: constant).", least=0, most=1
    )
    gradient_clip: float = option(1.0, "Largest norm of the gradient.", above=0)
    balance: bool = option(
        True,
        "Measure the reward's gradient in units of its running norm and each constraint's in units of the largest norm "
        "it had, so that multipliers mean the same on every model; with --ppo-joint, in standard deviations of the "
        "return.",
    )
    divide_by_multipliers: bool = option(True, "Divide the loss by 1 + sum of multipliers.", constrained=True)
    margin: float = option(
        0.65,
        "Part of the tolerance that is kept free: train for (1 - margin) * d_i. A planner finds where its safety model "
        "is too optimistic, and a certificate asks for more than the bare tolerance.",
        least=0,
        most=1,
        constrained=True,
    )
    widths: tuple[int, ...] = option(
        (64, 64), "Hidden layers of the policy and of the value network.", least=1, most=10_000
    )
    observe: Literal["state", "clock", "memory"] = option(
        "clock", "The policy sees the state; the state and the clock; or these and the safety model's memory."
    )
    squash: Literal["tanh", "clip"] = option("tanh", "How a real action is kept within its bounds.")
    test_every: int = option(
        50, "Epochs between two tests, which are also the points at which a run is saved.", least=1, most=10**7
    )
    test_batch: int = option(500, "Trajectories of a test, drawn apart from those of training.", least=1, most=10**6)
    network: str = ""  # a registered network, in place of the one of `widths`; for Python alone

    def __post_init__(self) -> None:
        check_ranges(self)
        if len(self.widths) > MOST_LAYERS:
            raise InputError(f"must be at most {MOST_LAYERS} layers, not {len(self.widths)}", place=place_of("widths"))
        if self.epochs % self.test_every:
            raise InputError(
                f"{self.epochs} is not a multiple of {self.test_every}, the number of epochs between tests "
                "(--test-every)",
                place=place_of("epochs"),
            )
        if self.reward.constrains and self.constraint is not None:
            raise InputError(
                f"the {self.reward.kind} reward gradient brings the constraints' gradients as well; leave it out",
                place=place_of("constraint_gradient"),
            )

    @property
    def constrains(self) -> bool:
        """Whether constraints have a gradient."""
        return self.reward.constrains or self.constraint is not None

    def check(self, problem: "Problem") -> None:
        """Refuse a problem that one of the methods cannot serve."""
        self.reward.check(problem, self)
        if self.lookahead is not None:
            self.lookahead.check(problem, self)
        if not problem.constraints:
            return
        if not self.constrains:
            raise InputError(
                "there are constraints and no gradient for them; choose pathwise or score, or leave the constraints "
                "out",
                place=place_of("constraint_gradient"),
            )
        if self.constraint is not None:
            self.constraint.check(problem, self)
