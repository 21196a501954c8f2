"""Labels to a certificate when annotators err: whole campaigns with simulated people, and audits alone.

    python benchmarks/annotators.py                      600 labels with marks, two people who err in 5 %, five seeds
    python benchmarks/annotators.py --models greenhouse --labels 2000 --people 1
    python benchmarks/annotators.py --what audits        labels of an audit against the error

A simulated person says what the model's rule says, but with the given chance another category; marks are up to two
steps off. Every question is answered by the next person in turn. What is certified is compared with the rule itself on
fresh rollouts. Runs are in --runs; finished ones are not run again. The picture shows both tables.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
import matplotlib
import numpy as np
from runner import commits, merged, parser, results, seeds_of

from sidestep.campaign.job import Job as Asked
from sidestep.campaign.job import begin
from sidestep.certification.evaluation import certification_key, evaluate
from sidestep.certification.forecast import Known, plan_opinions
from sidestep.certification.ledger import Ledger
from sidestep.certification.records import result_to_json, split_confidence
from sidestep.cluster.jobs import LOG, Figures, Job
from sidestep.core.constraints import Scale, parse_constraints
from sidestep.core.errors import LabelsNeeded
from sidestep.deploy.solve import work_on
from sidestep.labels.experts import RuleExpert, rule_marks
from sidestep.labels.rules import load_rule
from sidestep.labels.store import Store
from sidestep.models import load_model
from sidestep.reproduce.tables import heading, read_rows, write_table
from sidestep.runs.loaded import LoadedRun
from sidestep.runtime.compilation_cache import keep_compiled_programs

matplotlib.use("svg")
MODELS = {
    "navigation": ("navigation", None),
    "hvac": ("hvac", None),
    "greenhouse": ("examples/greenhouse.rddl", "examples/mould.py:rule"),
}
OFF = 2  # steps that a mark may be away
OFTEN = 0.9  # share of audits that end in a certificate, from which on a point is filled
SHOWN = 600  # labels of the campaigns in the picture
TRUE_ROLLOUTS = 20_000  # by which the true rate of an answer is known


class Person:
    """Says what the rule says, but for some slips. Those on a question follow from the seed and the question."""

    def __init__(self, name: str, rule: RuleExpert, error: float, seed: tuple[int, int]) -> None:
        self.name, self.rule, self.error, self.seed = name, rule, error, seed

    def label(self, store: Store, ids: list[int]) -> None:
        runs, random = store.get(ids), np.random.default_rng([*self.seed, ids[0]])
        assert self.rule.label is not None
        truth, size = np.asarray(self.rule.label(runs)), len(self.rule.scale)
        other = (truth + random.integers(1, size, len(truth))) % size
        said = np.where(random.random(len(truth)) < self.error, other, truth)
        length = np.asarray(runs.length)
        marks = np.asarray(rule_marks(self.rule, runs))
        anywhere = random.integers(0, length[:, None], marks.shape)
        moved = np.where(marks >= 0, marks + random.integers(-OFF, OFF + 1, marks.shape), anywhere)
        moved = np.maximum.accumulate(np.clip(moved, 0, length[:, None] - 1), axis=1)
        reached = np.arange(1, size)[None, :] <= said[:, None]
        store.label(ids, said, annotator=self.name, marks=np.where(reached, moved, -1))


@dataclass(frozen=True)
class People:
    """A campaign whose labels come from simulated people."""

    model: str
    labels: int
    people: int
    error: float
    seed: int

    def run(self, out: Path) -> Figures:
        reference, rule_name = MODELS[self.model]
        model = load_model(reference)
        rule = RuleExpert(load_rule(rule_name, model))
        folder = out / f"{self.model}-{self.labels}-{self.people}-{round(1000 * self.error)}-{self.seed}"
        persons = [Person(f"person {n}", rule, self.error, (self.seed, n)) for n in range(self.people)]
        scale = " < ".join(rule.scale.categories)
        asked = Asked(
            model=reference,
            people=True,
            categories=scale,
            constraints=(rule.default_constraint or "none>=0.95",),
            seed=self.seed,
            out=folder,
            campaign={"labels": self.labels, "marks": True},
        )
        loaded = LoadedRun(folder) if folder.exists() else begin(asked)
        stops = 0

        def answer(needed: LabelsNeeded) -> bool:
            nonlocal stops
            stops += 1
            with Store.open(folder / "labels.store") as store:
                turn = len(store.log())
                for number, person in enumerate(persons):
                    own = needed.ids[(turn + number) % self.people :: self.people]
                    if own:
                        person.label(store, own)
            return True

        keep_compiled_programs()
        (result,) = work_on(loaded, lambda stage, record: LOG.info("%s", stage), answer)
        policy = LoadedRun(folder).policy_of(model).mean()
        true = evaluate(model, policy, rule, jax.random.fold_in(certification_key(self.seed), 99), TRUE_ROLLOUTS)
        told, first = result_to_json(result), Ledger(loaded.run).of_run[0].design.forecast
        return {
            "certified": result.certified,
            "true rate": true.figures.side_effects[rule.scale.categories[0]],
            "return": true.figures.returns.mean,
            "labels": result.labels_used,
            "audit labels": result.audit_labels,
            "audits": result.audits,
            "foreseen chance": None if first is None else first.certified,
            "foreseen labels": None if first is None else first.labels,
            "stops": stops,
            "basis": told.get("basis"),
        }


@dataclass(frozen=True)
class AuditPrice:
    """Labels of a run's first audit of 0.95, by annotators with this error."""

    cost: float
    error: float
    people: int
    kind: Literal["both"] = "both"

    def run(self, out: Path) -> Figures:
        constraints = parse_constraints(["none>=0.95"], Scale())
        errors = [self.error] if self.people == 1 else [0.5 * self.error, 1.5 * self.error]
        said = np.array([np.eye(3) * (1 - 1.5 * e) + e / 2 for e in errors])
        found = plan_opinions(constraints, split_confidence(0.95, 1), 2000, np.array([self.cost]), said, Known(40, 10))
        return {"opinions": found.opinions, "labels": found.labels, "certified": found.certified}


def draw(rows: list[Figures], whole: list[Figures], path: Path) -> None:
    """Labels against the error, one line per cost; solid for one annotator, dashed and small for two.

    Hollow where fewer than nine audits in ten end in a certificate; crosses are whole campaigns.
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    for number, cost in enumerate(sorted({row["cost"] for row in rows})):
        for people, style in ((1, "-"), (2, "--")):
            own = [row for row in rows if (row["cost"], row["people"]) == (cost, people)]
            errors, labels = [100 * row["error"] for row in own], [row["labels"] for row in own]
            label = f"true cost {cost:g}, {'one annotator' if people == 1 else 'two'}"
            axes.plot(errors, labels, style, color=f"C{number}", label=label)
            fills = [f"C{number}" if row["certified"] >= OFTEN else "none" for row in own]
            axes.scatter(errors, labels, s=40 / people**2, facecolors=fills, edgecolors=f"C{number}", zorder=3)
    if whole:
        points = [100 * row["error"] for row in whole], [row["audit labels"] for row in whole]
        axes.scatter(*points, marker="x", color="black", label=f"campaigns with {SHOWN} labels, all audits")
    axes.set_xlabel("wrong answers of the annotators, %")
    axes.set_ylabel("labels of an audit of none>=0.95")
    axes.set_ylim(0)
    figure.legend(frameon=False, loc="outside right upper")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def audits(options: argparse.Namespace) -> None:
    wanted = [
        AuditPrice(cost, error, people)
        for cost in (0.0, 0.01, 0.02)
        for error in (0.0, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1)
        for people in (1, 2)
    ]
    found = results([Job(f"audit-{number}", task) for number, task in enumerate(wanted)], options)
    rows = [vars(task) | result for task, result in zip(wanted, found, strict=True)]
    about = heading("Labels of a run's first audit against the annotators' error", [0]) | {
        "labels": "mean of 60 simulated plain audits of none>=0.95, known cases and further opinions included",
        "opinions": "at most, on a run that somebody calls costly: the number that the product plans",
        "two annotators": "take turns; one errs half as often as said, the other one and a half times as often",
    }
    write_table(options.out, "annotators-audits", rows, about)
    picture(options)


def picture(options: argparse.Namespace) -> None:
    """Of both tables."""
    rows, whole = (read_rows(options.out / f"{name}.json") for name in ("annotators-audits", "annotators"))
    draw(rows, [row for row in whole if row["labels"] == SHOWN], options.picture)


def campaigns(options: argparse.Namespace) -> None:
    wanted = [
        People(model, options.labels, options.people, options.error, seed)
        for model in options.models
        for seed in seeds_of(options)
    ]
    jobs = [Job("-".join(str(value) for value in vars(task).values()).replace(".", ""), task) for task in wanted]
    found = results(jobs, options)
    made = zip(wanted, found, commits(jobs, options), strict=True)
    new = [vars(task) | result | {"commit": commit} for task, result, commit in made]
    old = read_rows(options.out / "annotators.json")
    rows = merged(old, new, ["model", "labels", "people", "error", "seed"])
    about = heading("Campaigns with people who err", sorted({row["seed"] for row in rows})) | {
        "people": "simulated: the rule's category, wrong with the given chance; marks up to two steps off",
        "true rate": f"of the best category by the rule itself, {TRUE_ROLLOUTS:,} fresh rollouts",
        "audit labels": "known cases and further opinions included",
        "foreseen": "what was said before the first audit: chance of a certificate, and labels of that audit",
    }
    del about["commit"]  # each row has its own
    write_table(options.out, "annotators", rows, about)
    picture(options)


def main() -> None:
    made = parser(__doc__, "annotators", first_seed=81)
    made.add_argument("--what", choices=("campaigns", "audits"), default="campaigns")
    made.add_argument("--models", nargs="*", choices=tuple(MODELS), default=["navigation", "hvac"])
    made.add_argument("--labels", type=int, default=600)
    made.add_argument("--people", type=int, default=2)
    made.add_argument("--error", type=float, default=0.05)
    made.add_argument("--picture", type=Path, default=Path("docs/pictures/annotators.svg"))
    options = made.parse_args()
    (audits if options.what == "audits" else campaigns)(options)


if __name__ == "__main__":
    main()
