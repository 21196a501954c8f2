"""The default planner against a given safety model, five seeds at once, each certified on fresh rollouts.

    python benchmarks/default.py navigation=FILE hvac=FILE reservoir [--seeds 5] [--first-seed 71] [--out FOLDER]

writes default.json and default.md into the folder. FILE is a fitted safety model, such as the paper's classifier that
`sidestep reproduce continuous` leaves in its folder safety/; for a model without a file such a classifier is fitted in
the same way, with seed 1. Finished runs and classifiers found in --runs are not made again.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from runner import parser, results, seeds_of

from sidestep.cluster.jobs import Figures, Job
from sidestep.reproduce.experiments import FULL, classifier_job
from sidestep.reproduce.tables import heading, write_table

CONSTRAINTS = {"reservoir": "none>=0.8"}


@dataclass(frozen=True)
class Default:
    """`sidestep plan` with this safety model, all seeds at once."""

    model: str
    safety: str  # a file, or one of the jobs' folder
    seeds: tuple[int, ...]

    def run(self, out: Path) -> Figures:
        folder = out / f"{self.model}-{self.seeds[0]}"
        files = [folder / f"seed-{seed}" / "result.json" for seed in self.seeds]
        if not all(file.is_file() for file in files):
            safety = out / self.safety  # an absolute path stays what it is
            given = ["--safety", str(safety), "--constraint", CONSTRAINTS.get(self.model, "none>=0.95")]
            seeds = ["--seed", str(self.seeds[0]), "--seeds", str(len(self.seeds)), "--out", str(folder)]
            command = [sys.executable, "-m", "sidestep", "plan", self.model, *given, *seeds]
            if subprocess.run(command).returncode not in (0, 1):  # 1: not certified
                raise RuntimeError(f"{self.model}: planning failed")
        return {"rows": [self._row(seed, file) for seed, file in zip(self.seeds, files, strict=True)]}

    def _row(self, seed: int, file: Path) -> Figures:
        result = json.loads(file.read_text(encoding="utf-8"))
        (verdict,) = result["constraints"]
        return {
            "model": self.model,
            "seed": seed,
            "constraint": verdict["text"],
            "return": result["return"]["mean"],
            "none": result["side_effects"]["none"],
            "certified": verdict["certified"],
            "rollouts": result["rollouts"],
        }


def main() -> None:
    made = parser(__doc__, "default", first_seed=71)
    made.add_argument("safety", nargs="+", metavar="MODEL[=FILE]")
    options = made.parse_args()
    seeds = tuple(seeds_of(options))
    files = dict(text.partition("=")[::2] for text in options.safety)
    fitted = {model: classifier_job(model, 1, FULL) for model, file in files.items() if not file}
    results(list(fitted.values()), options)
    plans = []
    for model, file in files.items():
        safety = str(Path(file).resolve()) if file else f"safety/{fitted[model].name}.safetensors"
        plans.append(Job(f"{model}-{seeds[0]}", Default(model, safety, seeds)))
    rows = [row for found in results(plans, options) for row in found["rows"]]
    given = " ".join(f"{model}=FILE" if file else model for model, file in files.items())
    typed = f"python benchmarks/default.py {given} --seeds {len(seeds)} --first-seed {seeds[0]}"
    about = heading("The default planner against the paper's classifier", seeds, typed)
    write_table(options.out, "default", rows, about)


if __name__ == "__main__":
    main()
