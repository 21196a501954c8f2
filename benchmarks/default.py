"""The default planner against a given safety model, five seeds at once, each certified on fresh rollouts.

    python benchmarks/default.py navigation=FILE hvac=FILE reservoir [--seeds 5] [--first-seed 71] [--out FOLDER]

writes default.json and default.md into the folder. FILE is a fitted safety model, such as the paper's classifier that
`sidestep reproduce continuous` leaves in its folder safety/; for a model without a file such a classifier is fitted in
the same way, with seed 1. Finished runs and classifiers found in --runs are not made again.
"""

import argparse
import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

from sidestep.reproduce.experiments import FULL, recurrent_job
from sidestep.reproduce.jobs import Jobs
from sidestep.reproduce.tables import write_table

CONSTRAINTS = {"reservoir": "none>=0.8"}


def study(model: str, safety: str, seeds: range, folder: Path) -> list[dict[str, Any]]:
    out = folder / f"{model}-{seeds[0]}"
    files = [out / f"seed-{seed}" / "result.json" for seed in seeds]
    if not all(file.is_file() for file in files):
        command = ["plan", model, "--safety", safety, "--constraint", CONSTRAINTS.get(model, "none>=0.95")]
        command += ["--seed", str(seeds[0]), "--seeds", str(len(seeds)), "--out", str(out)]
        if subprocess.run([sys.executable, "-m", "sidestep", *command]).returncode not in (0, 1):  # 1: not certified
            raise RuntimeError(f"{model}: planning failed")
    found = []
    for seed, file in zip(seeds, files, strict=True):
        result = json.loads(file.read_text(encoding="utf-8"))
        (verdict,) = result["constraints"]
        found.append(
            {
                "model": model,
                "seed": seed,
                "constraint": verdict["text"],
                "return": result["return"]["mean"],
                "none": result["side_effects"]["none"],
                "certified": verdict["certified"],
                "rollouts": result["rollouts"],
            }
        )
    return found


def classifier(model: str, folder: Path) -> str:
    jobs, job = Jobs(folder), recurrent_job(f"{model}-classifier-seed1", model, None, 1, FULL, model)
    if jobs.record(job) is None:
        jobs.do(job)
    return str(folder / job.settings["file"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("safety", nargs="+", metavar="MODEL[=FILE]")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=71)
    parser.add_argument("--runs", type=Path, default=Path("runs/default"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    files = dict(text.partition("=")[::2] for text in options.safety)
    rows = []
    for model, file in files.items():
        rows += study(model, file or classifier(model, options.runs), seeds, options.runs)
    given = " ".join(f"{model}=FILE" if file else model for model, file in files.items())
    about = {
        "title": "The default planner against the paper's classifier",
        "command": f"python benchmarks/default.py {given} --seeds {options.seeds} --first-seed {options.first_seed}",
        "date": date.today().isoformat(),
    }
    write_table(options.out, "default", rows, about)


if __name__ == "__main__":
    main()
