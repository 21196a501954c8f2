"""How often an audit certifies what is not so, and what it costs: simulated audits through the product's own functions.

    python benchmarks/audits.py                 10,000 repetitions of each case; some minutes
    python benchmarks/audits.py --what strata   by strata, with annotators that err; half an hour
    python benchmarks/audits.py --what labels   labels of an audit, plain and by strata

Every simulated policy costs exactly what each constraint tolerates, which is where a certificate is just false. A
repetition counts as false when any of its audits certifies any of the constraints. At most 5 % may be, whatever the
number of audits and constraints, the safety model and the annotators.
"""

import argparse
import json
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
from sidestep.certification.forecast import Known, Runs, forecast
from sidestep.certification.ledger import Ledger
from sidestep.certification.opinions import Procedure, costly_categories, procedure
from sidestep.certification.records import Premise, split_confidence
from sidestep.certification.sequential import SequentialAudit, Walk, cross, walks_of
from sidestep.cluster.jobs import Figures, Job, commit
from sidestep.core.constraints import Constraint, Scale, parse_constraints
from sidestep.core.model import FunctionPolicy, Space, Spec, Variable
from sidestep.labels.experts import RuleExpert
from sidestep.labels.rules import Rule
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


SafetyName = Literal["good", "useless", "adversarial"]
ErrorName = Literal["none", "both", "misses", "alarms"]
PREDICTED = 200_000  # rollouts that the safety model looks at
KNOWN = Known(harmful=80, harmless=40)
OPINIONS = 5
LABELLED = 500  # at most, in these audits


def runs_of(shares: np.ndarray, constraints: tuple[Constraint, ...], safety: SafetyName, missed: float = 0.4) -> Runs:
    """Runs of a policy whose categories have these shares, by a safety model that

    - good: flags no harmless run, and all costly ones but a share `missed`. Then the bound by strata is exact. (It
      misses much here, since what flags more than the tolerance leaves the bound by all labels alone.)
    - useless: flags runs with a chance that has nothing to do with their cost, 60 % of the tolerance;
    - adversarial: flags harmless runs alone, .5 % of them, and no costly one.
    """
    costs = np.array([constraint.cost_weights for constraint in constraints], bool)
    kinds = []
    for category, share in enumerate(shares):
        for flag in (False, True):
            if safety == "useless":
                chance = 0.6 * min(constraint.tolerance for constraint in constraints)
                flags = np.full(len(constraints), flag)
            elif safety == "good":
                chance = 1.0 - missed if costs[:, category].any() else 0.0
                flags = flag & costs[:, category]
            else:
                chance = 0.005 if not costs[:, category].any() else 0.0
                flags = np.full(len(constraints), flag)
            kinds.append((share * (chance if flag else 1.0 - chance), category, flags))
    chances, categories, flags = zip(*kinds, strict=True)
    return Runs(np.array(chances), np.array(categories), np.array(flags))


def confusion(error: float, kind: ErrorName) -> np.ndarray:
    """P(said | true) of somebody who errs with this chance: to any other category, or to the next milder or worse."""
    said = np.eye(3) * (1.0 - error)
    for true in range(3):
        others = {
            "none": [true],
            "both": [other for other in range(3) if other != true],
            "misses": [max(true - 1, 0)],
            "alarms": [min(true + 1, 2)],
        }[kind]
        said[true, others] += error / len(others)
    return said


def answers_of(error: float, kind: ErrorName, annotators: int, costly: tuple[bool, ...]) -> Procedure:
    """One annotator with this error, or two who take turns, one with half as much, the other with one and a half."""
    errors = [error] if annotators == 1 else [0.5 * error, 1.5 * error]
    return procedure([confusion(one, kind) for one in errors], costly, OPINIONS if kind != "none" else 1)


@dataclass(frozen=True)
class Strata:
    """How often an audit, the only one of its run, certifies what is not so."""

    audit: Literal["plain", "stratified"]
    method: Literal["fixed", "sequential"]
    safety: SafetyName
    error: float
    kind: ErrorName
    annotators: int
    constraints: Literal["one", "three"]
    repetitions: int

    def run(self, out: Path) -> Figures:
        constraints = parse_constraints(CASES[self.constraints], Scale())
        runs = runs_of(chances(constraints), constraints, self.safety)
        answers = answers_of(self.error, self.kind, self.annotators, costly_categories(constraints))
        random = np.random.default_rng(17)
        premises = [self._premises(constraints, runs, answers, random) for _ in range(self.repetitions)]
        rows: dict[tuple[Premise, ...], list[int]] = {}
        for row, one in enumerate(premises):
            rows.setdefault(one, []).append(row)
        labelled = runs.labelled(answers)
        drawn = labelled.draw((self.repetitions, LABELLED), random)
        known = [own for own, repetitions in rows.items() for _ in repetitions]
        decide = self._sequential if self.method == "sequential" else self._fixed
        wrong = int(decide(constraints, known, labelled.said, labelled.flags, drawn).sum())
        error = float(np.sqrt(0.05 * 0.95 / self.repetitions))
        return {"false": wrong / self.repetitions, "allowed": 0.05 + 3 * error}

    def _premises(
        self, constraints: tuple[Constraint, ...], runs: Runs, answers: Procedure, random: np.random.Generator
    ) -> tuple[Premise, ...]:
        known = KNOWN if self.kind != "none" else Known()
        predicted = PREDICTED if self.audit == "stratified" else 0
        alpha = (1.0 - CONFIDENCE) / len(constraints)
        return known.premises(constraints, runs, answers, alpha, predicted, random)

    def _sequential(
        self,
        constraints: tuple[Constraint, ...],
        premises: list[tuple[Premise, ...]],
        said: np.ndarray,
        flags: np.ndarray,
        drawn: np.ndarray,
    ) -> np.ndarray:
        """Which of the audits, one per row of drawn runs, certify any constraint."""
        alpha = (1.0 - CONFIDENCE) / len(constraints)
        certified = np.zeros(len(drawn), bool)
        for number, constraint in enumerate(constraints):
            cost, flagged = np.array(constraint.cost_weights, bool)[said], flags[:, number]
            rows: dict[Walk, list[int]] = {}
            for row, one in enumerate(premises):
                for walk in walks_of(constraint.tolerance, one[number], alpha):
                    rows.setdefault(walk, []).append(row)
            for walk, own in rows.items():
                crossed = cross(walk, cost[drawn[own]], flagged[drawn[own]], LABELLED)
                certified[own] |= (crossed.certified <= LABELLED) & (crossed.certified <= crossed.refused)
        return certified

    def _fixed(
        self,
        constraints: tuple[Constraint, ...],
        premises: list[tuple[Premise, ...]],
        said: np.ndarray,
        flags: np.ndarray,
        drawn: np.ndarray,
    ) -> np.ndarray:
        costs = np.array([constraint.cost_weights for constraint in constraints], bool)[:, said].T  # (kind, constraint)
        counts = np.stack([(said[drawn] == category).sum(axis=1) for category in range(3)], axis=1)
        rest = np.stack([(costs & ~flags)[drawn].sum(axis=1), (~flags)[drawn].sum(axis=1)], axis=-1)
        return np.array(
            [
                any(one.certified for one in judge(constraints, count, CONFIDENCE, known, [tuple(n) for n in own]))
                for known, count, own in zip(premises, counts.tolist(), rest.tolist(), strict=True)
            ]
        )


@dataclass(frozen=True)
class Labels:
    """Labels of a run's first audit of 0.95, by one annotator who never errs."""

    cost: float  # of the policy, in truth
    safety: Literal["plain", "good, none missed", "good, 0.1 % missed", "useless", "adversarial"]
    audits: int

    def run(self, out: Path) -> Figures:
        constraints = parse_constraints(CASES["one"], Scale())
        shares = np.array([1.0 - self.cost, self.cost, 0.0])
        name, _, how = self.safety.partition(",")
        missed = min(0.001 / max(self.cost, 0.001), 1.0) if "0.1" in how else 0.0
        runs = runs_of(shares, constraints, "useless" if name == "plain" else name, missed)
        predicted = 0 if name == "plain" else PREDICTED
        answers = answers_of(0.0, "none", 1, costly_categories(constraints))
        first = split_confidence(CONFIDENCE, 1)
        found = forecast(constraints, first, ROLLOUTS, runs, answers, Known(), predicted, audits=self.audits)
        return {"labels": found.labels, "certified": found.certified}


def strata_tasks(repetitions: int) -> list[Strata]:
    errors: list[tuple[float, ErrorName, int]] = [(0.0, "none", 1)]
    errors += [(e, kind, n) for e in (0.02, 0.05, 0.1) for kind in ("both", "misses", "alarms") for n in (1, 2)]
    audits = [("plain", "good"), *(("stratified", safety) for safety in ("good", "useless", "adversarial"))]
    return [
        Strata(audit, method, safety, error, kind, annotators, case, repetitions)
        for case in CASES
        for method in ("fixed", "sequential")
        for audit, safety in audits
        for error, kind, annotators in errors
    ]


def label_tasks(audits: int) -> list[Labels]:
    safety = ("plain", "good, none missed", "good, 0.1 % missed", "useless", "adversarial")
    return [Labels(cost, one, audits) for cost in (0.0, 0.01, 0.02, 0.03, 0.04) for one in safety]


def tasks(repetitions: int, product: int) -> list[FalseCertificates]:
    simulated = [
        FalseCertificates(audit, case, audits, repetitions)
        for case in CASES
        for audit in ("fixed", "sequential")
        for audits in (*AUDITS, *(CERTIFY if case == "one" else ()))
    ]
    return [*simulated, FalseCertificates("fixed, the whole product", "one", 5, product)]


def percents(rows: list[Figures]) -> list[Figures]:
    return [{k: f"{100 * v:.2f} %" if isinstance(v, float) else v for k, v in row.items()} for row in rows]


def main() -> None:
    made = parser(__doc__, "audits")
    made.add_argument("--what", choices=("runs", "strata", "labels"), default="runs")
    made.add_argument("--repetitions", type=int, default=10_000)
    made.add_argument("--product", type=int, default=2_000, help="repetitions with the whole product")
    options = made.parse_args()
    {"runs": runs_table, "strata": strata_table, "labels": labels_table}[options.what](options)


def strata_table(options: argparse.Namespace) -> None:
    """Cases that the table has already are not simulated again, unless --again says so."""
    file = options.out / "audits-strata.json"
    before = json.loads(file.read_text()) if file.is_file() and not options.again else {"rows": [], "commit": ""}
    wanted = strata_tasks(options.repetitions)
    done = {tuple(row[name] for name in vars(wanted[0])): row for row in before["rows"]}
    missing = [task for task in wanted if tuple(vars(task).values()) not in done]
    names = ["-".join(str(value) for value in vars(t).values()).replace(".", "") for t in missing]
    found = results([Job(name, task) for name, task in zip(names, missing, strict=True)], options)
    done |= {tuple(vars(task).values()): vars(task) | result for task, result in zip(missing, found, strict=True)}
    rows = [done[tuple(vars(task).values())] for task in wanted]
    about = heading("False certificates: strata, and annotators that err", [0]) | {
        "commit": ", ".join(filter(None, [before["commit"], f"{commit()} ({len(missing)} cases)" if missing else ""])),
        "policies": "exactly at every tolerance",
        "rollouts": f"{PREDICTED:,} predicted, {LABELLED:,} labelled, or fewer in a sequential audit",
        "annotators": f"up to {OPINIONS} opinions on what is called costly; {KNOWN.harmful} known costly cases, "
        f"{KNOWN.harmless} others; of two, one errs half as often as said, the other one and a half times",
        "false": "share of the audits that certify any constraint; confidence 95 %",
        "allowed": "5 % and three standard errors of the simulation",
    }
    write_table(options.out, "audits-strata", rows, about, shown=percents(rows))
    assert all(row["false"] <= row["allowed"] for row in rows), "more false certificates than promised"


def labels_table(options: argparse.Namespace) -> None:
    wanted = label_tasks(options.repetitions)
    found = results([Job(f"labels-{number}", task) for number, task in enumerate(wanted)], options)
    rows = [vars(task) | result for task, result in zip(wanted, found, strict=True)]
    plain = {row["cost"]: row["labels"] for row in rows if row["safety"] == "plain"}
    rows = [row | {"of plain": row["labels"] / plain[row["cost"]]} for row in rows]
    about = heading("Labels of a run's first audit of none>=0.95", [0]) | {
        "labels": f"mean of simulated audits, at most {ROLLOUTS:,}; {PREDICTED:,} rollouts are predicted",
        "certified": "share of these audits that end with a certificate",
        "of plain": "labels as a multiple of the plain audit's",
    }
    shown = [row | {"labels": f"{row['labels']:.0f}", "certified": f"{100 * row['certified']:.1f} %"} for row in rows]
    shown = [row | {"of plain": f"{row['of plain']:.2f}"} for row in shown]
    write_table(options.out, "audits-labels", rows, about, shown=shown)
    useless = [row["of plain"] for row in rows if row["safety"] in ("useless", "adversarial")]
    assert max(useless) <= 1.2, "a useless safety model costs more than promised"


def runs_table(options: argparse.Namespace) -> None:
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
    write_table(options.out, "audits", rows, about, shown=percents(rows))
    assert all(row["false"] <= row["allowed"] for row in rows), "more false certificates than promised"


if __name__ == "__main__":
    main()
