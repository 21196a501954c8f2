"""The planner's methods, each with its own few options. Importable without JAX, for `--help`.

A method is described here and computed in the file of its name: the gradients of the reward in `pathwise.py`, `ppo.py`
and `exact.py`, those of the constraints in `pathwise.py` and `score.py`, the multiplier rules in `multipliers/`. What a
method needs of a model it says itself, in its `check`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from sidestep.core.errors import InputError
from sidestep.core.options import check_ranges, option, place_of

if TYPE_CHECKING:  # these import JAX
    from sidestep.planning.config import PlanConfig
    from sidestep.planning.problem import Problem

BATCH = "Trajectories per epoch."
NOISE_START = "Standard deviation of the raw action at the first epoch; PPO learns it from there."
RATE = "Step size of a multiplier; PID: the integral gain."
ENTROPY = "First weight of the entropy bonus."
ENTROPY_SHARE = "Share of the epochs over which the entropy bonus falls to zero."
START_SHARE = (
    "Finite models: share of the trajectories that start in a state drawn from all of them; with PPO it falls to zero "
    "at half of the epochs."
)


@dataclass(frozen=True, kw_only=True)
class Method:
    """What all methods share: options within their range, and a look at the problem."""

    kind: ClassVar[str]  # its name on the command line and in a run's config.json

    def __post_init__(self) -> None:
        check_ranges(self)

    def check(self, problem: "Problem", config: "PlanConfig") -> None:
        """Refuse a problem that the method cannot serve, with one that works instead."""


@dataclass(frozen=True, kw_only=True)
class RewardGradient(Method):
    """How the gradient of the return is obtained."""

    learns_noise: ClassVar[bool] = False  # whether the deviation of the actions is a parameter
    has_critic: ClassVar[bool] = False  # whether a value network is trained
    constrains: ClassVar[bool] = False  # whether it brings the constraints' gradients as well
    noiseless: ClassVar[bool] = False  # whether the latest feasible policy is the best one
    adam: ClassVar[dict[str, float]] = {"eps": 1e-6}


@dataclass(frozen=True, kw_only=True)
class Pathwise(RewardGradient):
    """The derivative of the return through policy and model."""

    kind: ClassVar[str] = "pathwise"
    batch: int = option(100, BATCH, least=1, most=10**6)
    noise_start: float = option(0.3, NOISE_START, above=0)
    noise_end: float = option(0.02, "Standard deviation at the last epoch; in between it falls geometrically.", above=0)
    discount: bool = option(False, "Train on the discounted return instead of the plain one.", flag="discount_training")

    def check(self, problem: "Problem", config: "PlanConfig") -> None:
        _require_differentiable(problem)


@dataclass(frozen=True, kw_only=True)
class PPO(RewardGradient):
    """Proximal policy optimisation, which needs no derivative of the model."""

    kind: ClassVar[str] = "ppo"
    learns_noise: ClassVar[bool] = True
    has_critic: ClassVar[bool] = True
    batch: int = option(100, BATCH, least=1, most=10**6)
    noise_start: float = option(0.3, NOISE_START, above=0)
    clip: float = option(0.2, "Clip of the probability ratio.", flag="ppo_clip", above=0)
    minibatch: int = option(100, "Steps in a minibatch.", flag="ppo_minibatch", least=1, most=10**7)
    passes: int = option(1, "Passes over the batch per epoch.", flag="ppo_passes", least=1, most=10**4)
    joint: bool = option(
        False,
        "Descend the constraints' gradients in every minibatch together with PPO's (eq. 8 of the paper), with "
        "multipliers in units of reward (see --balance); else in a step of their own before PPO (the paper's code).",
        flag="ppo_joint",
        constrained=True,
    )
    constraint_clip: float = option(
        0.5,
        "With --ppo-joint: largest norm of the constraints' gradients; their peaks must not undo what was learned.",
        above=0,
        constrained=True,
    )
    gae: float = option(1.0, "Lambda of generalised advantage estimation.", least=0, most=1)
    entropy: float = option(0.01, ENTROPY, least=0)
    entropy_in_reward: bool = option(
        False,
        "The entropy's weight is in units of reward, as it always is with the exact gradient; else in units of "
        "standardised advantages.",
    )
    entropy_share: float = option(0.25, ENTROPY_SHARE, least=0, most=1)
    learning_starts: int = option(0, "Epochs at the start that only feed the running statistics.", least=0)
    start_share: float = option(0.0, START_SHARE, least=0, most=1)

    def check(self, problem: "Problem", config: "PlanConfig") -> None:
        if self.start_share and not uses_tables(problem, config):
            raise InputError(
                "PPO can start anywhere only on finite models, with policies that see the state alone "
                "(--observe state); set it to 0",
                place=place_of("start_share"),
            )


@dataclass(frozen=True, kw_only=True)
class Exact(RewardGradient):
    """The exact gradient of a finite model, for the reward and for the constraints."""

    kind: ClassVar[str] = "exact"
    constrains: ClassVar[bool] = True
    noiseless: ClassVar[bool] = True
    # There is no noise to be averaged out, and the gradients of the last epochs are a thousandth of the first ones:
    # with a long memory of the latter, the choice between two almost equal ways would never be made.
    adam: ClassVar[dict[str, float]] = {"b2": 0.99, "eps": 1e-8}
    noise_start: ClassVar[float] = 1.0  # a policy that chooses among actions has no real-valued ones to add noise to
    entropy: float = option(1.0, ENTROPY, least=0)
    entropy_share: float = option(0.7, ENTROPY_SHARE, least=0, most=1)
    start_share: float = option(0.5, START_SHARE, least=0, most=1)
    least_chance: float = option(
        0.15,
        "An action that would do better than the policy counts with at least this probability (0: the plain gradient, "
        "which ignores an action whose probability has vanished).",
        least=0,
        most=1,
    )

    def check(self, problem: "Problem", config: "PlanConfig") -> None:
        if problem.finite is None:
            raise InputError(
                f"the exact gradient needs a finite model, and '{problem.model.spec.name}' is not finite; "
                "use --reward-gradient pathwise or ppo"
            )
        if problem.constraints and not problem.counts_steps:
            raise InputError(
                "the exact gradient needs a safety model of single steps (fitted with --kind markov), and this one is "
                "of whole trajectories; use --reward-gradient ppo with --constraint-gradient pathwise"
            )
        if config.observe != "state":
            raise InputError(
                "the exact gradient is of policies that see the state alone; set it to state", place=place_of("observe")
            )


@dataclass(frozen=True, kw_only=True)
class ConstraintGradient(Method):
    """How the gradient of a constraint's expected cost is obtained."""

    form: Literal["probability", "log"] = option(
        "log",
        "Differentiate E[C] itself, or E[-log(1 - C)], which does not vanish where a safety model is sure of harm. "
        "Costs that are counted step by step are always differentiated themselves.",
        flag="constraint_form",
        constrained=True,
    )
    cap: float = option(
        5.0,
        "With --constraint-form log: where -log(1 - C) of one trajectory begins to be damped, so that hopeless "
        "trajectories do not drown the others.",
        flag="log_cap",
        above=0,
        constrained=True,
    )


@dataclass(frozen=True, kw_only=True)
class PathwiseCost(ConstraintGradient):
    """The derivative of the cost through policy, model and safety model (MBGE)."""

    kind: ClassVar[str] = "pathwise"
    discount: bool = option(
        False, "On finite models, with PPO: train on the discounted cost.", flag="discount_training", constrained=True
    )

    def check(self, problem: "Problem", config: "PlanConfig") -> None:
        _require_differentiable(problem)
        if self.discount and not uses_tables(problem, config):
            raise InputError(
                "constraints are discounted only on finite models, with PPO and policies that see the state alone; "
                "leave it out",
                place=place_of("discount_training"),
            )


@dataclass(frozen=True, kw_only=True)
class Score(ConstraintGradient):
    """The score function, which needs no derivative of the model (MFGE)."""

    kind: ClassVar[str] = "score"

    def check(self, problem: "Problem", config: "PlanConfig") -> None:
        if self.form == "log" and uses_tables(problem, config):
            raise InputError(
                "the score function on finite models knows only the form 'probability'; choose it",
                place=place_of("constraint_form"),
            )


@dataclass(frozen=True, kw_only=True)
class MultiplierRule(Method):
    """How a Lagrange multiplier lambda follows its constraint's violation v = E[C] - d."""

    start: float = option(1.0, "First value of every multiplier.", flag="multiplier_start", above=0, constrained=True)
    rate: float = option(
        0.03,
        RATE,
        flag="multiplier_rate",
        least=0,
        constrained=True,
    )
    max: float = option(100.0, "Largest value of a multiplier.", flag="multiplier_max", above=0, constrained=True)
    never: float = option(
        0.01,
        "Expected cost at which a tolerance of zero counts as met; the relative and log-adam rules treat every "
        "tolerance below it as this one.",
        above=0,
        constrained=True,
    )

    @property
    def least_start(self) -> float:
        """The smallest first value of a multiplier that is aimed at a tolerance of its own."""
        return 0.01


@dataclass(frozen=True, kw_only=True)
class Relative(MultiplierRule):
    """Multiply lambda by exp(rate * relative violation)."""

    kind: ClassVar[str] = "relative"
    min: float = option(0.01, "Smallest value of a multiplier.", flag="multiplier_min", least=0, constrained=True)

    @property
    def least_start(self) -> float:
        return self.min


@dataclass(frozen=True, kw_only=True)
class Projected(MultiplierRule):
    """Add rate * violation to lambda and keep it in [0, max]."""

    kind: ClassVar[str] = "projected"
    violation_max: float = option(
        1e6,
        "Largest violation that counts: the first policies, which know nothing, must not drive a multiplier so high "
        "that every way near a side effect is closed before it is known.",
        above=0,
        constrained=True,
    )


@dataclass(frozen=True, kw_only=True)
class LogAdam(MultiplierRule):
    """Ascent by Adam on log lambda (the paper's code)."""

    kind: ClassVar[str] = "log-adam"


@dataclass(frozen=True, kw_only=True)
class PID(MultiplierRule):
    """A PID controller of the violation."""

    kind: ClassVar[str] = "pid"
    rate: float = option(0.03, RATE, flag="multiplier_rate", above=0, constrained=True)
    proportional: float = option(
        0.5, "Gain on the present violation.", flag="pid_proportional", least=0, constrained=True
    )
    derivative: float = option(
        0.1, "Gain on the growth of the violation.", flag="pid_derivative", least=0, constrained=True
    )


@dataclass(frozen=True, kw_only=True)
class Search(Method):
    """The search for a start of the gradients, which breeds sequences of actions."""

    kind: ClassVar[str] = "search"
    rounds: int = option(
        25,
        "Generations of the search for a start of the gradients, which breeds sequences of actions (0: no search).",
        flag="search_rounds",
        least=1,
        most=10**5,
    )
    population: int = option(2000, "Trajectories of a generation.", flag="search_population", least=256, most=10**6)


@dataclass(frozen=True, kw_only=True)
class Lookahead(Method):
    """Improvement of the policy by lookahead from states that it visits, which needs no gradient."""

    kind: ClassVar[str] = "lookahead"
    rounds: int = option(
        6,
        "Rounds of improvement by lookahead from visited states at most, after each quarter of the epochs if that has "
        "25 or more (0: none). They end when no more gain can be proven.",
        flag="lookahead_rounds",
        least=1,
        most=10**5,
    )

    def check(self, problem: "Problem", config: "PlanConfig") -> None:
        if problem.finite is not None:
            raise InputError(
                f"lookahead is not for finite models, and '{problem.model.spec.name}' is one; set it to 0",
                place=place_of("lookahead_rounds"),
            )


def uses_tables(problem: "Problem", config: "PlanConfig") -> bool:
    """Whether PPO's epochs run over tables: a finite model, and a policy that sees the state alone."""
    return problem.finite is not None and config.observe == "state" and isinstance(config.reward, PPO)


def _require_differentiable(problem: "Problem") -> None:
    spec = problem.model.spec
    if spec.gradient == "none":
        reason = spec.notes[0] if spec.notes else "its author says so"
        raise InputError(
            f"the pathwise gradient needs a differentiable model, and '{spec.name}' is not differentiable ({reason}); "
            "use --reward-gradient ppo with --constraint-gradient score"
        )
