"""The main job over several seeds: return, certificate and labels of `sidestep plan`, each in a fresh process.

    python benchmarks/campaign.py [--only navigation hvac ...] [--seeds 5] [--first-seed 11] [--runs FOLDER]

writes campaign.json and campaign.md into benchmarks/results. Finished runs found in the folder are not run again.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from sidestep.runtime.files import atomic_write

TRAJECTORIES = {
    "navigation": ("navigation", []),
    "hvac": ("hvac", []),
    "reservoir": ("reservoir", []),
    "greenhouse": ("examples/greenhouse.rddl", ["--rule", "examples/mould.py:rule", "--constraint", "none>=0.95"]),
    "boxpushing share": ("boxpushing", ["--rule", "share"]),
    "driving share": ("driving", ["--rule", "share"]),
}


def jobs(only: list[str], maps: Path | None) -> dict[str, tuple[str, list[str]]]:
    found: dict[str, tuple[str, list[str]]] = dict(TRAJECTORIES)
    for grid, budget in (("boxpushing", "2000"), ("driving", "3500")):
        references = {f"{grid} {number}": f"{grid}?map={number}" for number in range(1, 6)}
        suffix = {"boxpushing": "bp", "driving": "nav"}[grid]
        if maps is not None:
            references |= {f"{grid} {file.stem}": str(file) for file in sorted(maps.rglob(f"*.{suffix}"))}
        for name, reference in references.items():
            found[f"{name} exact"] = (reference, ["--labels", budget])
            found[f"{name} network"] = (reference, ["--labels", budget, "--method", "gradient"])
    return {name: job for name, job in found.items() if not only or any(name.startswith(word) for word in only)}


def run(name: str, reference: str, options: list[str], seed: int, folder: Path) -> dict[str, Any]:
    out = folder / f"{name.replace(' ', '-')}-{seed}"
    if not (out / "result.json").exists():
        start = ["resume", str(out)] if (out / "config.json").exists() else ["plan", reference, *options]
        rest = [] if start[0] == "resume" else ["--seed", str(seed), "--out", str(out)]
        done = subprocess.run(
            [sys.executable, "-m", "sidestep", *start, *rest, "--quiet", "--json"], capture_output=True, text=True
        )
        if done.returncode not in (0, 1):  # 1: finished, not certified
            raise RuntimeError(f"{name}, seed {seed}: {done.stderr}")
    return {"name": name, **json.loads((out / "result.json").read_text())}


def best_safe_return(reference: str) -> float:
    """The exact optimum without side effects."""
    from sidestep.finite.occupancy import Bound, occupancy_lp
    from sidestep.models import load_model

    model: Any = load_model(reference)
    return occupancy_lp(model.finite, [Bound(model.side_effect.astype(float), 0.0)]).value


def certified(row: dict[str, Any]) -> bool:
    return all(verdict["certified"] for verdict in row["constraints"])


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| problem | seeds | certified | return, mean (spread) | worst | limit | penalty | labels | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["name"] for row in rows):
        own = [row for row in rows if row["name"] == name]
        returns = np.array([row["return"]["mean"] for row in own])
        passed = sum(certified(row) for row in own)
        penalty = f"{np.mean([row['penalty']['mean'] for row in own]):.3f}" if "penalty" in own[0] else "-"
        limit = f"{own[0]['limit']:.3f}" if own[0].get("limit") is not None else "-"
        labels = np.mean([row["labels_used"] for row in own])
        lines.append(
            f"| {name} | {len(own)} | {passed} | {returns.mean():.6g} ({returns.std():.3g}) | {returns.min():.6g} "
            f"| {limit} | {penalty} | {labels:.0f} | {np.mean([row['seconds'] for row in own]):.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="problems whose names begin so")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=11)
    parser.add_argument("--maps", type=Path, help="a folder with further .bp and .nav files")
    parser.add_argument("--runs", type=Path, default=Path("runs/campaigns"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    file = options.out / "campaign.json"
    rows = json.loads(file.read_text()) if file.exists() else []
    order = list(jobs([], options.maps))

    def one(job: tuple[str, str, list[str], int]) -> dict[str, Any]:
        name, reference, extra, seed = job
        row = run(name, reference, extra, seed, options.runs)
        limit = best_safe_return(reference) if "penalty" in row else None
        return {"command": " ".join(["sidestep plan", reference, *extra]), "limit": limit, **row}

    wanted = [
        (name, *job, seed)
        for name, job in jobs(options.only, options.maps).items()
        for seed in range(options.first_seed, options.first_seed + options.seeds)
    ]
    with ThreadPoolExecutor(options.workers) as pool:
        for row in pool.map(one, wanted):
            rows = [old for old in rows if (old["name"], old["seed"]) != (row["name"], row["seed"])] + [row]
            rows.sort(key=lambda row: order.index(row["name"]) if row["name"] in order else len(order))
            print(table([row]).splitlines()[-1], flush=True)
            atomic_write(file, json.dumps(rows, indent=1))
            atomic_write(options.out / "campaign.md", table(rows))


if __name__ == "__main__":
    main()
