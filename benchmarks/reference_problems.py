"""The planner on small problems whose best policy is known from a dynamic program.

    python benchmarks/reference_problems.py [--seeds 5] [--first-seed 31] [--only NAME ...]

Each has two state entries. `zones` has slow zones with several ways round; in `integrator` a bounded force brings a
mass to rest; in `gate` it is best to wait until a gate opens; in `river` the best action is at its bounds nearly all
the way. In those that end in `, counted` some states are counted, and two counted steps are a side effect: the safety
model is then an oracle, so that only the planner is measured. Plans are those of the default preset with fewer epochs.
Returns are of the mean action, on 4,000 fresh rollouts; the gap is to the limit at the policy's own share without side
effects.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from dynamic_program import Greedy, Plane, counting, limit, solve
from jaxtyping import Array
from oracles import CounterOracle, Depth
from runner import parser, results, seeds_of

import sidestep
from sidestep.cluster.jobs import Figures, Job
from sidestep.core.model import Model, Space, Spec, Variable
from sidestep.planning.options import with_options
from sidestep.planning.plan import plan
from sidestep.planning.presets import preset
from sidestep.reproduce.tables import heading, write_table

ROLLOUTS = 4000
PRICES = (0.0, 2.0, 4.0, 7.0, 10.0, 15.0, 25.0, 50.0)
CONSTRAINT = "none>=0.9"
EPOCHS = 400
STEP, FINE_STEP = 0.05, 0.0125  # of the dynamic program's grids, in units of the ranges' tenth
NEAR_ZERO = 2.0  # a value below which a gap is judged in absolute terms: 0.02 of this and more is 1 %


class PlaneModel:
    """A `Plane` as a model."""

    def __init__(self, name: str, plane: Plane) -> None:
        self.plane = plane
        state = Space((Variable("x"), Variable("y")))
        action = Space((Variable("push", size=plane.entries, low=-1.0, high=1.0),))
        self.spec = Spec(name, state, action, horizon=plane.horizon, ends=False)

    def reset(self, key: Array) -> Array:
        return jnp.asarray(self.plane.start, jnp.float32)

    def step(self, state: Array, action: Array, key: Array) -> tuple[Array, Array, Array]:
        x, y = state[0], state[1]
        landing = jnp.stack(self.plane.landing(x, y, action))
        noise = jnp.asarray(self.plane.deviation, state.dtype) * jax.random.normal(key, (2,), state.dtype)
        return landing + noise, self.plane.reward(x, y, action), jnp.zeros((), bool)

    def action_bounds(self, state: Array) -> tuple[Array, Array]:
        ends = jnp.ones(self.plane.entries, state.dtype)
        return -ends, ends


def _bump(distance: Array) -> Array:
    return jnp.exp(-(distance**2))


def _zones_landing(x: Array, y: Array, action: Array) -> tuple[Array, Array]:
    """A slow zone in the way, and another beside it: a gap between them, and a way round each."""
    pace = 0.5 * (1.0 - 0.9 * _bump(jnp.hypot(x - 2.0, y - 2.2) / 0.7))
    pace = pace * (1.0 - 0.9 * _bump(jnp.hypot(x - 3.1, y - 0.9) / 0.5))
    return x + pace * action[0], y + pace * action[1]


ZONES = Plane(
    landing=_zones_landing,
    reward=lambda x, y, action: -jnp.hypot(x - 4.0, y - 4.0),
    deviation=(0.1, 0.1),
    start=(0.0, 0.0),
    horizon=15,
    x_range=(-1.0, 5.0),
    y_range=(-1.0, 5.0),
)
INTEGRATOR = Plane(
    landing=lambda x, y, action: (x + 0.3 * y, y + 0.3 * action[0]),
    reward=lambda x, y, action: -(x**2) - 0.1 * y**2,
    deviation=(0.08, 0.1),
    start=(1.5, 0.0),
    horizon=20,
    x_range=(-1.5, 2.5),
    y_range=(-2.0, 2.0),
    entries=1,
)


def _gate_reward(x: Array, y: Array, action: Array) -> Array:
    """Beyond the gate is where to be; in the gate before it opens (y is the time until then) it hurts."""
    closed = jax.nn.sigmoid(y / 0.05)
    return jax.nn.sigmoid((x - 1.6) / 0.1) - 3.0 * closed * _bump((x - 1.0) / 0.4) - 0.05 * action[0] ** 2


GATE = Plane(
    landing=lambda x, y, action: (x + 0.3 * action[0], y - 0.15),
    reward=_gate_reward,
    deviation=(0.08, 0.08),
    start=(0.0, 1.0),
    horizon=15,
    x_range=(-1.5, 3.0),
    y_range=(-2.0, 1.5),
    entries=1,
)
RIVER = Plane(
    landing=lambda x, y, action: (x + 0.3 * action[0], y + 0.3 * action[1] - 0.25 * _bump((x - 1.5) / 0.8)),
    reward=lambda x, y, action: -jnp.hypot(x - 3.0, y - 0.5),
    deviation=(0.08, 0.08),
    start=(0.0, 0.0),
    horizon=12,
    x_range=(-1.0, 4.0),
    y_range=(-2.5, 2.5),
)


@dataclass(frozen=True)
class Counted:
    """The region that is counted: how deep a state lies in it."""

    depth: Depth

    def counts(self, x: Array, y: Array) -> Array:
        return self.depth(jnp.stack([x, y], axis=-1), x) >= 0


_STRIP = Counted(lambda states, actions: jnp.minimum(states[..., 0] - 1.2, 2.0 - states[..., 0]))
_FAST = Counted(lambda states, actions: jnp.abs(states[..., 1]) - 0.7)
_BANK = Counted(lambda states, actions: -0.3 - states[..., 1])
PROBLEMS: dict[str, tuple[Plane, Counted | None]] = {
    "zones": (ZONES, None),
    "integrator": (INTEGRATOR, None),
    "gate": (GATE, None),
    "river": (RIVER, None),
    "zones, counted": (ZONES, _STRIP),
    "integrator, counted": (INTEGRATOR, _FAST),
    "river, counted": (RIVER, _BANK),
}


def _made(name: str) -> tuple[Plane, Counted | None]:
    plane, counted = PROBLEMS[name]
    return (plane, None) if counted is None else (replace(plane, automaton=counting(counted.counts)), counted)


def _measured(model: Model, policy: sidestep.Policy, safe: Callable[[Array], np.ndarray], seed: int) -> Figures:
    trajectory = sidestep.rollout(model, policy, jax.random.key(seed), ROLLOUTS)
    returns, free = np.asarray(trajectory.returns()), safe(trajectory.states)
    error = float(returns.std() / np.sqrt(ROLLOUTS))
    return {"return": float(returns.mean()), "error": error, "free": float(free.mean())}


def _safe(counted: Counted | None) -> Callable[[Array], np.ndarray]:
    """Whether trajectories are free of side effects, by their states."""
    if counted is None:
        return lambda states: np.ones(len(states), bool)
    return lambda states: np.asarray(jnp.sum(counted.counts(states[..., 0], states[..., 1]), axis=1)) < 2


@dataclass(frozen=True)
class Reference:
    """The policies of all prices by the dynamic program, on the grid and rolled out."""

    problem: str

    def run(self, out: Path) -> Figures:
        plane, counted = _made(self.problem)
        model = PlaneModel(self.problem, plane)
        unit = max(plane.x_range[1] - plane.x_range[0], plane.y_range[1] - plane.y_range[0]) / 5.0
        rows = []
        for price in PRICES if counted else (0.0,):
            total, share, expected = solve(plane, price, STEP * unit, FINE_STEP * unit)
            rolled = _measured(model, Greedy(expected, plane), _safe(counted), 7)
            row = {"price": price, "return": float(total), "free": 1.0 - float(share)}
            rows.append(row | {f"{what}, rolled out": value for what, value in rolled.items()})
            print(self.problem, rows[-1], flush=True)
        return {"policies": rows}


@dataclass(frozen=True)
class Planned:
    """The default planner with one seed."""

    problem: str
    seed: int
    epochs: int
    lookahead: int  # rounds

    def run(self, out: Path) -> Figures:
        plane, counted = _made(self.problem)
        model = PlaneModel(self.problem, plane)
        given = {"epochs": self.epochs, "lookahead_rounds": self.lookahead}
        key = jax.random.key(self.seed)
        if counted is None:
            config = with_options(preset("default"), given | {"constraint_gradient": "none"})
            policy = plan(model, None, (), config, key).policy
        else:
            config = with_options(preset("default"), given | {"observe": "memory", "margin": 0.1})
            constraints = sidestep.parse_constraints([CONSTRAINT], sidestep.Scale())
            oracle = CounterOracle(counted.depth, (2, 4), 2, plane.entries)
            policy = plan(model, oracle, constraints, config, key).policy
        return {"seed": self.seed} | _measured(model, policy.mean(), _safe(counted), 1000 + self.seed)


def gaps(reference: list[Figures], planned: list[Figures]) -> list[float]:
    """What each plan earns less than the limit at its own share without side effects."""
    return [limit(reference, one["free"]) - one["return"] for one in planned]


def summary(name: str, reference: list[Figures], planned: list[Figures]) -> Figures:
    counted = PROBLEMS[name][1] is not None
    best = limit(reference, float(CONSTRAINT.partition(">=")[2])) if counted else reference[0]["return"]
    found = gaps(reference, planned)
    allowed = 0.01 * max(abs(best), NEAR_ZERO)
    return {
        "problem": name,
        "best": best,
        "mean return": float(np.mean([one["return"] for one in planned])),
        "least free": min(one["free"] for one in planned) if counted else None,
        "gaps": " ".join(f"{gap:.3f}" for gap in found),
        "allowed": allowed,
        "within": f"{sum(gap <= allowed + 2 * one['error'] for gap, one in zip(found, planned, strict=True))} of "
        f"{len(planned)}",
    }


def main() -> None:
    made = parser(__doc__, "reference_problems", first_seed=31)
    made.add_argument("--only", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    made.add_argument("--epochs", type=int, default=EPOCHS)
    made.add_argument("--lookahead", type=int, default=6, help="rounds of lookahead; 0: none")
    asked = made.parse_args()
    rows = []
    for name in asked.only:
        jobs = [Job(f"{name}-reference", Reference(name), group=name)]
        jobs += [
            Job(f"{name}-{seed}-{asked.lookahead}", Planned(name, seed, asked.epochs, asked.lookahead), group=name)
            for seed in seeds_of(asked)
        ]
        reference, *planned = results(jobs, asked)
        rows.append(summary(name, reference["policies"], planned))
        print(rows[-1], flush=True)
    about = heading("Small problems: plans against a dynamic program", list(seeds_of(asked)))
    write_table(asked.out, "reference_problems", rows, about)


if __name__ == "__main__":
    main()
