"""How often an audit certifies what is not so: simulated audits through the product's own functions.

    python benchmarks/audits.py                 10,000 repetitions of each case; some minutes

Every simulated policy costs exactly what each constraint tolerates, which is where a certificate is just false. A
repetition counts as false when any of its audits certifies any of the constraints. At most 5 % may be, whatever the
number of audits and constraints.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from datetime import date
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from sidestep.certification.auditor import Auditor
from sidestep.certification.bounds import judge
from sidestep.certification.ledger import Ledger
from sidestep.certification.records import split_confidence
from sidestep.certification.sequential import SequentialAudit
from sidestep.core.constraints import Constraint, Scale, parse_constraints
from sidestep.core.model import FunctionPolicy, Space, Spec, Variable
from sidestep.labels.rules import Rule
from sidestep.runs.folder import Run

RESULTS = Path(__file__).parent / "results"
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
            run = Run.create(Path(folder) / str(repetition), {"kind": "plan"})
            auditor = Auditor(Ledger(run), model, constraints, rule)
            for number in range(audits):
                seed = repetition * audits + number
                audit = auditor.begin("", seed=seed, most=COINS, promised=CONFIDENCE)
                if auditor.finish(audit, policy).certified:
                    wrong += 1
                    break
    return wrong / repetitions


def study(repetitions: int, product: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []

    def add(method: str, case: str, audits: int, number: int, share: float) -> None:
        error = float(np.sqrt(0.05 * 0.95 / number))
        row = {"audit": method, "constraints": case, "audits": audits, "repetitions": number, "false": share}
        rows.append(row | {"allowed": 0.05 + 3 * error})
        print(rows[-1], flush=True)

    for case, texts in CASES.items():
        constraints = parse_constraints(texts, Scale())
        for method, make in (("fixed", fixed), ("sequential", sequential)):
            certifies = make(constraints)
            for audits in (*AUDITS, *(CERTIFY if case == "one" else ())):
                add(method, case, audits, repetitions, false_share(certifies, audits, repetitions, audits))
    add("fixed, the whole product", "one", 5, product, whole_product(5, product))
    return rows


def table(rows: list[dict[str, object]], command: str) -> str:
    lines = [
        "# False certificates in simulated audits",
        "",
        f"`{command}`, {date.today()}, seeds 0 on. Policies exactly at every tolerance, {ROLLOUTS:,} rollouts an audit",
        f"({COINS} for the whole product), confidence 95 %. A run counts as false when any of its audits certifies any",
        "constraint; five and twenty audits are `sidestep certify` repeated until it passes. Allowed: 5 % and three",
        "standard errors of the simulation.",
        "",
        "| audit | constraints | audits of a run | repetitions | false certificates | allowed |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['audit']} | {row['constraints']} | {row['audits']} | {row['repetitions']:,} | "
            f"{100 * row['false']:.2f} % | {100 * row['allowed']:.2f} % |"  # type: ignore[operator]
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=10_000)
    parser.add_argument("--product", type=int, default=2_000, help="repetitions with the whole product")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = study(options.repetitions, options.product)
    command = "python benchmarks/audits.py"
    (options.out / "audits.md").write_text(table(rows, command), encoding="utf-8")
    about = {"command": command, "date": str(date.today()), "rows": rows}
    (options.out / "audits.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    assert all(row["false"] <= row["allowed"] for row in rows), "more false certificates than promised"  # type: ignore


if __name__ == "__main__":
    main()
