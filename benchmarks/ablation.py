"""What each heuristic of a campaign buys: the same campaigns with one heuristic at a time left out.

    python benchmarks/ablation.py [--seeds 3] [--first-seed 61] [--only navigation ...] [--without "challenger" ...]

writes ablation.json and ablation.md into benchmarks/results. Campaigns have few labels, with marks. Heuristics that act
after the last planning share everything up to it: their campaigns continue from a copy of the whole one's folder. A
heuristic that never acted in the whole campaign leaves it as it is when it is taken away, so that campaign is not run
again.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
from few_labels import PROBLEMS as FEW_LABELS
from runner import parser, results, seeds_of

from sidestep.campaign import campaign, choice, evidence, trajectories
from sidestep.cli.main import main as sidestep_main
from sidestep.cluster.jobs import Figures, Job
from sidestep.reproduce.tables import heading, write_table

PROBLEMS = {
    name: (FEW_LABELS[f"{name}, {labels} marked"][0], *FEW_LABELS[f"{name}, {labels} marked"][1])
    for name, labels in (("navigation", 300), ("hvac", 300), ("greenhouse", 500))
}
WHOLE = "whole"
# What is put in place of each heuristic.
PLANNING: dict[str, tuple[object, str, object]] = {
    "optimism": (evidence, "optimism", lambda gaps: 1.0),
    "fresh search when lost": (trajectories, "lost", lambda state: False),
}
CHOOSING: dict[str, tuple[object, str, object]] = {
    "challenger": (campaign, "challenger", lambda *given: None),
    "trust in audited predictions": (choice, "AUDITED_TRUST", 0.0),
    "a safer last audit": (campaign, "LAST_AIM", 1.0),
    "labels for verification": (campaign.Campaign, "_unverified", lambda self, evidence: None),
}


@dataclass(frozen=True)
class Ablation:
    """A campaign without one heuristic, or the whole one."""

    problem: str
    without: str
    seed: int

    def run(self, out: Path) -> Figures:
        whole = _folder(out, self.problem, WHOLE, self.seed)
        folder = _folder(out, self.problem, self.without, self.seed)
        acted = True
        if self.without in PLANNING:
            acted = json.loads((whole / "acted.json").read_text(encoding="utf-8"))[self.without]
        if not acted:
            folder = whole
        elif not (folder / "result.json").exists():
            shutil.rmtree(folder, ignore_errors=True)
            begin = ["plan", *PROBLEMS[self.problem], "--seed", str(self.seed), "--out", str(folder)]
            if self.without in CHOOSING:
                shutil.copytree(_before_verifying(whole), folder)
                begin = ["resume", str(folder)]
            said = subprocess.run([sys.executable, __file__, "--child", self.without, *begin, "--quiet"])
            if said.returncode not in (0, 1):
                raise RuntimeError(f"{folder} ended with {said.returncode}")
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        return {"problem": self.problem, "without": self.without, "acted": acted, **result}


def _folder(out: Path, problem: str, without: str, seed: int) -> Path:
    return out / f"{problem}-{seed}-{without.replace(' ', '-')}"


def _before_verifying(folder: Path) -> Path:
    return folder.with_name(folder.name + "-before-verifying")


def child(without: str, arguments: list[str]) -> int:
    """The command line in this process, without a heuristic."""
    if without == WHOLE:
        return _watched(arguments)
    with mock.patch.object(*(PLANNING | CHOOSING)[without]):
        return sidestep_main(arguments)


def _watched(arguments: list[str]) -> int:
    """The whole campaign. A copy of its folder is kept as it is before candidates are verified, and beside its result
    whether heuristics of its rounds ever acted."""
    folder = Path(arguments[arguments.index("--out") + 1])
    acted = dict.fromkeys(PLANNING, False)
    lost, optimism, save = trajectories.lost, evidence.optimism, campaign.Campaign._save

    def watched_lost(state: object) -> bool:
        found = lost(state)  # type: ignore[arg-type]
        acted["fresh search when lost"] |= found
        return found

    def watched_optimism(gaps: list[tuple[float, float]]) -> float:
        found = optimism(gaps)
        acted["optimism"] |= found > 1.0
        return found

    def watched_save(self: campaign.Campaign, state: campaign.State) -> None:
        save(self, state)
        if state.stage == "verify" and not _before_verifying(folder).exists():
            shutil.copytree(folder, _before_verifying(folder), ignore=shutil.ignore_patterns("run.lock"))

    with (
        mock.patch.object(trajectories, "lost", watched_lost),
        mock.patch.object(evidence, "optimism", watched_optimism),
        mock.patch.object(campaign.Campaign, "_save", watched_save),
    ):
        status = sidestep_main(arguments)
    (folder / "acted.json").write_text(json.dumps(acted), encoding="utf-8")
    return status


def summary(rows: list[Figures]) -> list[Figures]:
    """One row per problem and heuristic; differences are against the whole campaign of the same seed."""
    whole = {(row["problem"], row["seed"]): row for row in rows if row["without"] == WHOLE}
    found = []
    for problem, without in dict.fromkeys((row["problem"], row["without"]) for row in rows):
        own = [row for row in rows if (row["problem"], row["without"]) == (problem, without)]
        differences = [row["return"]["mean"] - whole[problem, row["seed"]]["return"]["mean"] for row in own]
        mean: Callable[[str], float] = lambda name, own=own: float(np.mean([row[name] for row in own]))  # noqa: E731
        found.append(
            {
                "problem": problem,
                "without": without,
                "seeds": len(own),
                "acted in": sum(row["acted"] for row in own),
                "certified": sum(all(verdict["certified"] for verdict in row["constraints"]) for row in own),
                "return": float(np.mean([row["return"]["mean"] for row in own])),
                "difference, mean": float(np.mean(differences)),
                "smallest": float(np.min(differences)),
                "largest": float(np.max(differences)),
                "labels": mean("labels_used"),
                "labels of audits": mean("audit_labels"),
            }
        )
    return found


def main() -> None:
    heuristics = [*PLANNING, *CHOOSING]
    made = parser(__doc__, "ablation", first_seed=61, seeds=3)
    made.add_argument("--only", nargs="*", default=list(PROBLEMS), choices=list(PROBLEMS))
    made.add_argument("--without", nargs="*", default=heuristics, choices=heuristics, help="one of these at a time")
    options = made.parse_args()
    jobs = []
    for seed in seeds_of(options):
        for problem in options.only:
            first = f"{problem}-{seed}-{WHOLE}"
            for without in (WHOLE, *options.without):
                name = f"{problem}-{seed}-{without.replace(' ', '-')}"
                needs = () if without == WHOLE else (first,)
                jobs.append(Job(name, Ablation(problem, without, seed), group=f"{problem}-{seed}", needs=needs))
    rows = results(jobs, options)
    about = heading("What each heuristic of a campaign buys", list(seeds_of(options)))
    write_table(options.out, "ablation", rows, about, shown=summary(rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.exit(child(sys.argv[2], sys.argv[3:]))
    main()
