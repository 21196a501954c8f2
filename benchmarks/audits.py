"""How often an audit certifies what is not so: simulated audits through the product's own functions.

    python benchmarks/audits.py                 10,000 repetitions of each case; some minutes

Every simulated policy costs exactly what each constraint tolerates, which is where a certificate is just false. A
repetition counts as false when any of its audits certifies any of the constraints. At most 5 % may be, whatever the
number of audits and constraints.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from runner import parser, results

from sidestep.certification.auditor import Auditor
from sidestep.certification.bounds import judge
from sidestep.certification.ledger import Ledger
from sidestep.certification.records import split_confidence
from sidestep.certification.sequential import SequentialAudit
from sidestep.core.constraints import Constraint, Scale, parse_constraints
from sidestep.core.model import FunctionPolicy, Space, Spec, Variable
from sidestep.labels.experts import RuleExpert
from sidestep.labels.rules import Rule
from sidestep.reproduce.jobs import Figures, Job
from sidestep.reproduce.tables import heading, write_table
from sidestep.runs.folder import Run
from sidestep.runs.records import RunConfig

ROLLOUTS = 2000
CONFIDENCE = 0.95
CASES = {"one": ["none>=0.95"], "three": ["none>=0.9", "severe<=0.02", "mild<=0.08"]}
AUDITS = (1, 3, 10)
CERTIFY = (5, 20)  # times that `sidestep certify` is repeated until it passes
COINS = 400  # rollouts of an audit by the whole product


def chances(constraints: tuple[Constraint, ...]) -> np.ndarray:
    """Of the categories, so that every constraint is exactly at its tolerance."""
    weights = np.array([constraint.cost_weights for constraint in constraints], float)
    tolerances = np.array([constraint.tolerance for constraint in constraints])
    found = np.linalg.lstsq(np.vstack([weights, np.ones(3)]), np.append(tolerances, 1.0), rcond=None)[0]
    assert np.allclose(weights @ found, tolerances)
    return found


def fixed(constraints: tuple[Constraint, ...]) -> Callable[[np.random.Generator, int], bool]:
    """Does audit k of a run certify, by a fixed number of rollouts?"""
    chance = chances(constraints)

    @cache
    def certifies(counts: tuple[int, ...], number: int) -> bool:
        return any(v.certified for v in judge(constraints, counts, split_confidence(CONFIDENCE, number)))

    return lambda generator, number: certifies(tuple(generator.multinomial(ROLLOUTS, chance).tolist()), number)


def sequential(constraints: tuple[Constraint, ...]) -> Callable[[np.random.Generator, int], bool]:
    """The same, label by label until it is decided."""
    chance = np.cumsum(chances(constraints))

    def certifies(generator: np.random.Generator, number: int) -> bool:
        audit = SequentialAudit(constraints, split_confidence(CONFIDENCE, number), ROLLOUTS)
        state = audit.read(np.searchsorted(chance, generator.random(ROLLOUTS)))
        return any(verdict.certified for verdict in state.verdicts)

    return certifies


def false_share(
    certifies: Callable[[np.random.Generator, int], bool], audits: int, repetitions: int, seed: int
) -> float:
    """The share of runs with any false certificate; a run stops at its first, as a campaign and a user would."""
    wrong = 0
    for repetition in range(repetitions):
        generator = np.random.default_rng([seed, repetition])
        wrong += any(certifies(generator, number) for number in range(1, audits + 1))
    return wrong / repetitions


class Coin:
    """A trajectory of one step whose category is drawn when it begins."""

    spec = Spec("coin", Space((Variable("draw"),)), Space((Variable("push", low=-1.0, high=1.0),)), 1, ends=False)

    def reset(self, key):
        return jax.random.uniform(key, (1,))

    def step(self, state, action, key):
        return state, jnp.zeros(()), jnp.asarray(False)

    def action_bounds(self, state):
        return -jnp.ones(1), jnp.ones(1)


def whole_product(audits: int, repetitions: int) -> float:
    """The same with rollouts, rule, auditor and a ledger on disk, again and again until it passes."""
    constraints = parse_constraints(["none>=0.95"], Scale())
    rule = Rule("coin", Scale(), lambda trajectory: jnp.where(trajectory.states[:, 0, 0] < 0.05, 2, 0))
    model, policy = Coin(), FunctionPolicy(lambda state, clock, key: jnp.zeros(1))
    wrong = 0
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        for repetition in range(repetitions):
            run = Run.create(Path(folder) / str(repetition), RunConfig(model="coin"))
            auditor = Auditor(Ledger(run), model, constraints, RuleExpert(rule))
            for number in range(audits):
                seed = repetition * audits + number
                audit = auditor.begin("", seed=seed, most=COINS, promised=CONFIDENCE)
                if auditor.finish(audit, policy).certified:
                    wrong += 1
                    break
    return wrong / repetitions


@dataclass(frozen=True)
class FalseCertificates:
    """How often any of so many audits of a run certifies what is not so."""

    audit: Literal["fixed", "sequential", "fixed, the whole product"]
    constraints: Literal["one", "three"]
    audits: int
    repetitions: int

    def run(self, out: Path) -> Figures:
        constraints = parse_constraints(CASES[self.constraints], Scale())
        if self.audit == "fixed, the whole product":
            share = whole_product(self.audits, self.repetitions)
        else:
            certifies = (fixed if self.audit == "fixed" else sequential)(constraints)
            share = false_share(certifies, self.audits, self.repetitions, self.audits)
        error = float(np.sqrt(0.05 * 0.95 / self.repetitions))
        return {"false": share, "allowed": 0.05 + 3 * error}


def tasks(repetitions: int, product: int) -> list[FalseCertificates]:
    simulated = [
        FalseCertificates(audit, case, audits, repetitions)
        for case in CASES
        for audit in ("fixed", "sequential")
        for audits in (*AUDITS, *(CERTIFY if case == "one" else ()))
    ]
    return [*simulated, FalseCertificates("fixed, the whole product", "one", 5, product)]


def main() -> None:
    made = parser(__doc__, "audits")
    made.add_argument("--repetitions", type=int, default=10_000)
    made.add_argument("--product", type=int, default=2_000, help="repetitions with the whole product")
    options = made.parse_args()
    wanted = tasks(options.repetitions, options.product)
    found = results([Job(f"{t.audit}-{t.constraints}-{t.audits}", t) for t in wanted], options)
    rows = [vars(task) | result for task, result in zip(wanted, found, strict=True)]
    about = heading("False certificates in simulated audits", [0]) | {
        "policies": "exactly at every tolerance",
        "rollouts of an audit": f"{ROLLOUTS:,} ({COINS} for the whole product)",
        "false": "share of the runs of which any audit certifies any constraint; confidence 95 %",
        "five and twenty audits": "`sidestep certify` repeated until it passes",
        "allowed": "5 % and three standard errors of the simulation",
    }
    percent = [{k: f"{100 * v:.2f} %" if isinstance(v, float) else v for k, v in row.items()} for row in rows]
    write_table(options.out, "audits", rows, about, shown=percent)
    assert all(row["false"] <= row["allowed"] for row in rows), "more false certificates than promised"


if __name__ == "__main__":
    main()
