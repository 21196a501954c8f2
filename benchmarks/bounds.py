"""How good HVAC and Reservoir can get: between what a simulated policy earns and what a linear program allows.

    python benchmarks/bounds.py [--only hvac reservoir]

At least: a policy that is simulated.

HVAC       air such that each room is expected at its target at the next step: 21.75 degrees, which is best for the
           reward, and in the server room a little below 21 where the constraint holds. With a probability that keeps
           the constraint, a run ignores it (the constraint is on the share of runs).
Reservoir  the best of the certified runs in results/campaign.json.

At most: a linear program that every policy's run obeys, for what is mean in all policies or known in advance.

HVAC       w = air (40 - temp) is relaxed to its convex envelope, so that cost is a convex function of the noise, and
           no policy costs less on average than the program with the mean noise (Jensen). That 24 room-steps are too
           cold is unavoidable (its chance to be otherwise is counted), and more cost more than all the rest. In a run
           without side effects the server room, once at 21 degrees, is below it at the next step, so it is never
           warmer than what cools down to 21 in one step without air. At least 95 % of the runs are of this kind; the
           mean noise of a share P of all runs is at most phi(z) / P deviations away, which is counted as well.
Reservoir  rain is known in advance, and water evaporates as one likes; the mean over sampled rain.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sparse
from runner import RESULTS, parser, results
from scipy.optimize import linprog
from scipy.stats import norm

import sidestep
from sidestep.cluster.jobs import Figures, Job
from sidestep.core.model import Policy, rollout
from sidestep.labels.rules import load_rule
from sidestep.models import load_model
from sidestep.models.domains.hvac.rule import SERVER_LIMIT
from sidestep.models.domains.reservoir.model import RESERVOIRS
from sidestep.reproduce.tables import heading, read_rows, write_table
from sidestep.runtime.files import atomic_write

DOMAINS = Path(sidestep.__file__).parent / "models" / "domains"

# HVAC, as in hvac.rddl
ROOMS, STEPS, SERVER = 6, 40, 1
HEATING, CAPACITY, AIR, BEST = 1.006 / 80.0, 80.0, 40.0, 21.75
COLDEST, WARMEST, PENALTY = 20.0, 23.5, 20_000.0
FREE = 0.95
OFFSETS = (-0.05, -0.04, -0.03, -0.02, -0.015, -0.01)  # of the server room's target
TRIALS = 5000  # rollouts with each


def outer(rooms: int = ROOMS) -> np.ndarray:
    """1 for rooms that touch the outside, the first and last of both rows; 0 for the others."""
    column = np.arange(rooms) % (rooms // 2)
    return np.where((column == 0) | (column == rooms // 2 - 1), 1.0, 0.0)


DEVIATION = np.sqrt(3.0 / 4.0 + outer() / 16.0) / CAPACITY  # of a step's noise


def cooling(rooms: int = ROOMS) -> tuple[np.ndarray, np.ndarray]:
    """A and b such that temperatures are expected at A temp + b at the next step without air."""
    columns = rooms // 2
    walls = [(room, room + 1) for room in range(rooms) if room % columns < columns - 1]
    walls += [(room, room + columns) for room in range(columns)]
    matrix = np.eye(rooms) - np.diag(outer(rooms) / 4.0 + 1.0 / 2.0) / CAPACITY
    for one, other in walls:
        for i, j in ((one, other), (other, one)):
            matrix[i, i] -= 1.0 / 1.5 / CAPACITY
            matrix[i, j] += 1.0 / 1.5 / CAPACITY
    return matrix, (outer(rooms) * 6.0 / 4.0 + 10.0 / 2.0) / CAPACITY


Outcome = tuple[np.ndarray, np.ndarray]  # returns of runs, and which of them are free of side effects


class Thermostat(Policy):
    """As much air as is expected to bring each room to its target."""

    target: jax.Array
    matrix: jax.Array
    offset: jax.Array

    def act(self, state, clock, memory, key):
        lacking = self.target - self.matrix @ state - self.offset
        air = jnp.clip(lacking / (HEATING * (AIR - state)), 0.0, 10.0)
        return jnp.where(clock < STEPS - 1, air, 0.0), memory  # what the last action does is never seen


class Program:
    """A linear program: min cost . x with blocks of variables, given by their shape, and rows of linear constraints."""

    def __init__(self) -> None:
        self.cost: list[np.ndarray] = []
        self.bounds: list[np.ndarray] = []
        self.size = 0
        self.rows: dict[bool, list[tuple[list[int], list[float], float]]] = {True: [], False: []}  # equality or not

    def variables(self, low: np.ndarray, high: np.ndarray, cost: float = 0.0) -> np.ndarray:
        """Indices of new variables, one for each entry of `low` and `high`."""
        self.bounds.append(np.stack([low.ravel(), high.ravel()], axis=1))
        self.cost.append(np.full(low.size, cost))
        self.size += low.size
        return np.arange(self.size - low.size, self.size).reshape(low.shape)

    def row(self, terms: list[tuple[float, int]], limit: float, *, equal: bool = False) -> None:
        """sum of weight * variable <= limit, or = limit."""
        self.rows[equal].append(([int(i) for _, i in terms], [weight for weight, _ in terms], limit))

    def solve(self) -> tuple[float, np.ndarray, np.ndarray]:
        """The least cost, the variables, and the derivative of the cost by the limits of the equalities."""
        parts = {}
        for equal, rows in self.rows.items():
            place = np.repeat(np.arange(len(rows)), [len(row[0]) for row in rows])
            columns, weights = (np.concatenate([row[part] for row in rows]) for part in (0, 1))
            shape = (len(rows), self.size)
            parts[equal] = sparse.csr_array((weights, (place, columns)), shape), np.array([row[2] for row in rows])
        found = linprog(np.concatenate(self.cost), *parts[False], *parts[True], np.concatenate(self.bounds))
        assert found.status == 0, found.message
        return found.fun, found.x, found.eqlin.marginals


def hvac_program(safe: bool) -> tuple[float, float]:
    """The least cost with the mean noise, and by how much it changes at most for noise one deviation away."""
    matrix, offset = cooling()
    shape = (STEPS, ROOMS)
    low, high = np.full(shape, COLDEST), np.full(shape, WARMEST)
    low[0] = high[0] = 10.0
    low[1:4] = 9.0
    warmest = [np.full(ROOMS, 10.0)]
    for t in range(3):
        warmest.append(matrix @ warmest[t] + offset + HEATING * 10.0 * (AIR - warmest[t]))
        high[t + 1] = warmest[t + 1] + 8 * np.sqrt(t + 1) * DEVIATION
    unavoidable = 4 * ROOMS - float(np.sum(norm.cdf((warmest[3] - COLDEST) / (np.sqrt(3) * DEVIATION))))
    program = Program()
    temp = program.variables(low, high)
    air = program.variables(np.zeros((STEPS - 1, ROOMS)), np.full((STEPS - 1, ROOMS), 10.0), cost=1.0)
    heat = program.variables(np.zeros((STEPS - 1, ROOMS)), np.full((STEPS - 1, ROOMS), 400.0))
    away = program.variables(np.zeros(shape), np.full(shape, 20.0), cost=10.0)
    for t in range(STEPS - 1):
        for r in range(ROOMS):
            flow = [(-matrix[r, i], temp[t, i]) for i in range(ROOMS)]
            program.row([(1.0, temp[t + 1, r]), *flow, (-HEATING, heat[t, r])], offset[r], equal=True)
            a, w, T = air[t, r], heat[t, r], temp[t, r]  # w = a (40 - T), a in [0, 10]
            least, most = AIR - high[t, r], AIR - low[t, r]
            program.row([(least, a), (-1.0, w)], 0.0)
            program.row([(most, a), (-10.0, T), (-1.0, w)], 10.0 * (most - AIR))
            program.row([(1.0, w), (-most, a)], 0.0)
            program.row([(1.0, w), (10.0, T), (-least, a)], 10.0 * (AIR - least))
            if safe and r == SERVER and t >= 4:
                warm = [(matrix[r, i], temp[t, i]) for i in range(ROOMS)]
                program.row(warm, SERVER_LIMIT - offset[r] + spared(matrix[r], offset[r]))
    for T, d in zip(temp.ravel(), away.ravel(), strict=True):
        program.row([(1.0, T), (-1.0, d)], BEST)
        program.row([(-1.0, T), (-1.0, d)], -BEST)
    cost, _, slopes = program.solve()
    return cost + unavoidable * PENALTY, float(np.linalg.norm(slopes * np.tile(DEVIATION, STEPS - 1)))


def spared(row: np.ndarray, offset: float) -> float:
    """Mean excess over 21 without air of a room below 21: only noise can bring it there, other rooms at 23.5."""
    others = row.copy()
    others[SERVER] = 0.0
    z = (SERVER_LIMIT - offset - row[SERVER] * SERVER_LIMIT - others.sum() * WARMEST) / DEVIATION[SERVER]
    return float(DEVIATION[SERVER] * (norm.pdf(z) - z * norm.sf(z)) / FREE)


@dataclass(frozen=True)
class HvacBounds:
    rollouts: int
    seed: int

    def run(self, out: Path) -> Figures:
        model = load_model("hvac")
        rule = load_rule(None, model)
        matrix, offset = (jnp.asarray(part, jnp.float32) for part in cooling())

        def worth(target: float, key: jax.Array, count: int) -> Outcome:
            targets = jnp.full(ROOMS, BEST).at[SERVER].set(target)
            trajectory = rollout(model, Thermostat(targets, matrix, offset), key, count)
            return np.asarray(trajectory.returns()), np.asarray(rule.label(trajectory)) == 0

        choose, judge = jax.random.split(jax.random.key(self.seed))
        tried = {move: worth(SERVER_LIMIT + move, choose, TRIALS) for move in OFFSETS}
        kept = {move: safe for move, safe in tried.items() if ignorable(safe) >= 0}
        best = worth(BEST, choose, TRIALS)
        move = max(kept, key=lambda move: mixed(kept[move], best, ignorable(kept[move]))[0].mean())
        free, safe = (worth(target, judge, self.rollouts) for target in (BEST, SERVER_LIMIT + move))
        ignored = ignorable(safe)
        (least, slope), (least_safe, slope_safe) = hvac_program(False), hvac_program(True)
        shift = float(norm.pdf(norm.ppf(FREE)))
        at_most = -(FREE * least_safe + (1 - FREE) * least - shift * (slope + slope_safe))
        return {
            "limits": {
                "": row(*free, -least),
                f"none>={FREE}": row(*mixed(safe, free, ignored), at_most),
            },
            "server room's target": SERVER_LIMIT + move,
            "runs that ignore the constraint": ignored,
        }


def ignorable(safe: Outcome) -> float:
    """The share of runs that may ignore the constraint so that it just holds, by three standard errors."""
    return float(1.0 - FREE / (safe[1].mean() - 3 * safe[1].std() / np.sqrt(len(safe[1]))))


def mixed(safe: Outcome, free: Outcome, ignored: float) -> Outcome:
    """What runs come to of which this share ignores the constraint, run by run in expectation."""
    return tuple((1 - ignored) * one + ignored * other for one, other in zip(safe, free, strict=True))


def row(returns: np.ndarray, free: np.ndarray, at_most: float) -> Figures:
    return {
        "at least": float(np.mean(returns)),
        "error": float(np.std(returns) / np.sqrt(len(returns))),
        "free of side effects": float(np.mean(free)),
        "at most": at_most,
        "error of at most": 0.0,
    }


LEVEL, SHAPE, SCALE, FULL, LOWER, UPPER = np.array(RESERVOIRS).T


def reservoir_program(level: np.ndarray, rain: np.ndarray, *, discard: bool) -> tuple[float, np.ndarray, np.ndarray]:
    """The least cost from here on for this rain (steps, reservoirs), its derivative by the rain, and the first
    outflows; nothing evaporates, but water may be discarded if `discard`."""
    steps, count = rain.shape
    lower, upper = np.resize(LOWER, count), np.resize(UPPER, count)  # a longer chain repeats the twenty
    shape, none, any_much = (steps, count), np.zeros(rain.shape), np.full(rain.shape, np.inf)
    program = Program()
    after, flow = program.variables(none, any_much), program.variables(none, any_much)  # `after`: at the next step
    short, over = program.variables(none, any_much, cost=5.0), program.variables(none, any_much, cost=10.0)
    gone = program.variables(none, any_much if discard else none)
    for t in range(steps):
        for r in range(count):
            known, now = (level[r], []) if t == 0 else (0.0, [(-1.0, after[t - 1, r])])
            upstream = [(-1.0, flow[t, r - 1])] if r else []
            lost = [(1.0, flow[t, r]), (1.0, gone[t, r])]
            program.row([(1.0, after[t, r]), *lost, *now, *upstream], known + rain[t, r], equal=True)
            program.row([(1.0, flow[t, r]), *now], known)
            program.row([(-1.0, after[t, r]), (-1.0, short[t, r])], -lower[r])
            program.row([(1.0, after[t, r]), (-1.0, over[t, r])], upper[r])
    cost, found, slopes = program.solve()
    return cost, slopes.reshape(shape), found[flow[0]]


@dataclass(frozen=True)
class ReservoirBounds:
    samples: int
    seed: int

    def run(self, out: Path) -> Figures:
        first = float(np.sum(5.0 * np.maximum(0.0, LOWER - LEVEL)))
        mean = np.tile(SHAPE * SCALE, (STEPS - 1, 1))
        least, slopes, _ = reservoir_program(LEVEL, mean, discard=True)
        rain = np.random.default_rng(self.seed).gamma(SHAPE, SCALE, (self.samples, STEPS - 1, len(LEVEL)))
        # The mean of what is subtracted is known to be 0, and what is left varies less.
        costs = [reservoir_program(LEVEL, one, discard=True)[0] - np.sum(slopes * (one - mean)) for one in rain]
        best = max(campaigns("reservoir"), key=lambda run: run["return"]["mean"])
        low, high = best["return"]["interval"]
        return {
            "limits": {
                "none>=0.8": {
                    "at least": best["return"]["mean"],
                    "error": (high - low) / 2 / norm.ppf(0.975),
                    "free of side effects": best["side_effects"]["none"],
                    "at most": -(first + float(np.mean(costs))),
                    "error of at most": float(np.std(costs) / np.sqrt(self.samples)),
                }
            },
            "at most, by the mean rain alone": -(first + least),
            "certified with seed": best["seed"],
        }


def campaigns(name: str) -> list[Figures]:
    """The certified runs of the main job on this model."""
    rows = json.loads((RESULTS / "campaign.json").read_text(encoding="utf-8"))["rows"]
    return [row for row in rows if row["name"] == name and all(v["certified"] for v in row["constraints"])]


def write_limits(domain: str, about: Figures, limits: dict[str, Figures]) -> None:
    """Where the domain keeps the best returns that are known of it."""
    file = DOMAINS / domain / "limits.json"
    atomic_write(file, json.dumps(about | limits, indent=1) + "\n")


TASKS = {"hvac": HvacBounds(rollouts=50_000, seed=0), "reservoir": ReservoirBounds(samples=300, seed=0)}


def main() -> None:
    made = parser(__doc__, "bounds")
    made.add_argument("--only", nargs="+", choices=list(TASKS), default=list(TASKS))
    options = made.parse_args()
    wanted = [Job(name, TASKS[name]) for name in options.only]
    about = heading("HVAC and Reservoir: reached, and exceeded by no policy", [0])
    file = RESULTS / "bounds.json"
    rows = [row for row in read_rows(file) if row["model"] not in options.only]
    for job, result in zip(wanted, results(wanted, options), strict=True):
        found = result["limits"]
        rows += [{"model": job.name, "constraint": constraint} | limit for constraint, limit in found.items()]
        best, most = ({c: round(limit[what], 1) for c, limit in found.items()} for what in ("at least", "at most"))
        write_limits(job.name, about, {"best": best, "at most": most})
    rows.sort(key=lambda row: row["model"])
    write_table(RESULTS, "bounds", rows, about)


if __name__ == "__main__":
    main()
