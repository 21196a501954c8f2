"""What marks teach: hazard models from a few labels, without marks, with them, and with marks as people set them.

    python benchmarks/marks.py [--labels 50 100 200] [--domains navigation hvac] [--seeds 3] [--first-seed 11]

adds to marks.json and marks.md in benchmarks/results. Labels and tests are those of benchmarks/safety.py: trajectories
of policies of different skill, each with its own targets. The rule labels them, and marks them by labelling prefixes.
Marks of people are these, moved by up to two steps either way, with one in five left out. Scores are on 10,000 fresh
trajectories.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np
from runner import merged, parser, results, seeds_of
from safety import figures, gather, sizes

from sidestep.cluster.jobs import Figures, Job
from sidestep.labels.experts import RuleExpert, rule_marks
from sidestep.labels.rules import load_rule
from sidestep.models import load_model
from sidestep.reproduce.tables import heading, read_rows, write_table
from sidestep.safety.base import predict
from sidestep.safety.config import fit_settings
from sidestep.safety.fit import fit
from sidestep.safety.io import make_safety
from sidestep.safety.report import scores

TESTS, TEST_SEED = 10_000, 999_999
MEMBERS, ROOM = 2, 256
OFF, MISSING = 2, 0.2  # steps by which a person's marks may be off, and the share that is not set
WAYS = ("without marks", "with marks", "marks of people")


@dataclass(frozen=True)
class Marked:
    """Hazard models of the same labels, without and with marks."""

    domain: str
    labels: int
    seed: int
    slack: int

    def run(self, out: Path) -> Figures:
        model = load_model(self.domain)
        (trajectory, categories), test = (
            gather(self.domain, self.labels, self.seed),
            gather(self.domain, TESTS, TEST_SEED),
        )
        exact = rule_marks(RuleExpert(load_rule(None, model)), trajectory)
        marks = dict(zip(WAYS, (None, exact, as_people(exact, np.asarray(trajectory.length), self.seed)), strict=True))
        found: Figures = vars(self) | {"marks": int((exact >= 0).sum())}
        for way, given in marks.items():
            safety = make_safety("hazard", *sizes(model), key=jax.random.key(self.seed), members=MEMBERS)
            config, key = replace(fit_settings("hazard"), slack=self.slack), jax.random.key(1000 + self.seed)
            safety, report = fit(safety, trajectory, categories, config, key, marks=given, room=ROOM)
            measured = scores(np.asarray(predict(safety, test[0])), test[1])
            found[way] = figures(measured) | {"steps": report.steps, "seconds": report.seconds}
        return found


def as_people(marks: np.ndarray, length: np.ndarray, seed: int) -> np.ndarray:
    """Each mark moved by at most OFF steps, in the order of severities; some of them left out."""
    random = np.random.default_rng(seed)
    moved = np.clip(marks + random.integers(-OFF, OFF + 1, marks.shape), 0, length[:, None] - 1)
    moved = np.maximum.accumulate(np.where(marks >= 0, moved, -1), axis=1)
    return np.where((marks >= 0) & (random.random(marks.shape) >= MISSING), moved, -1)


def summary(rows: list[Figures]) -> list[Figures]:
    """One row for each domain and number of labels: means over the seeds."""
    found = []
    for domain, labels in dict.fromkeys((row["domain"], row["labels"]) for row in rows):
        own = [row for row in rows if (row["domain"], row["labels"]) == (domain, labels)]
        shown: Figures = {"domain": domain, "labels": labels, "seeds": len(own)}
        for way in WAYS:
            for name, key in (("none or not", "none_or_not"), ("right", "accuracy"), ("log loss", "log_loss")):
                shown[f"{name}, {way}"] = float(np.mean([row[way][key] for row in own]))
        found.append(shown)
    return found


def main() -> None:
    made = parser(__doc__, "marks", first_seed=11, seeds=3)
    made.add_argument("--labels", type=int, nargs="*", default=[50, 100, 200])
    made.add_argument("--domains", nargs="*", default=["navigation", "hvac"])
    made.add_argument("--slack", type=int, default=fit_settings("hazard").slack)
    options = made.parse_args()
    tasks = [
        Marked(domain, labels, seed, options.slack)
        for domain in options.domains
        for labels in options.labels
        for seed in seeds_of(options)
    ]
    new = results([Job(f"{t.domain}-{t.labels}-{t.seed}-{t.slack}", t) for t in tasks], options)
    rows = merged(read_rows(options.out / "marks.json"), new, by=("domain", "labels", "seed", "slack"))
    rows.sort(key=lambda row: (row["domain"], row["labels"], row["seed"]))
    about = heading("What marks teach: hazard models on fresh trajectories", sorted({row["seed"] for row in rows}))
    write_table(options.out, "marks", rows, about, shown=summary(rows))


if __name__ == "__main__":
    main()
