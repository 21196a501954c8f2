"""Tables from the jobs' files: rows as dictionaries, written as Markdown, CSV and JSON."""

import csv
import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from sidestep.cluster.jobs import Figures, Jobs, command, commit
from sidestep.models.domains import all_domains
from sidestep.reproduce.experiments import (
    CONTINUOUS_METHODS,
    GRID_METHODS,
    GRIDS,
    MOSTLY_FREE,
    NON_MARKOV_METHODS,
    GridMap,
    Size,
    approval_job,
    continuous_job,
    grid_job,
    limit_job,
    non_markov_job,
)
from sidestep.reproduce.printed import CONTINUOUS, TABLE_1
from sidestep.runtime.files import atomic_write

Row = Figures
LAST_EPOCHS = 200  # of a continuous run that the paper looks at
APPROVAL = {"Markov-HA-S": "choice", "Markov-HA-S, slack in total": "total"}
ACTIONS = {"sampled": "sampled", "likeliest": "most likely"}


def table1_rows(jobs: Jobs, maps: Sequence[GridMap], seeds: Sequence[int], size: Size) -> list[Row]:
    """One row per domain, method and way of acting; figures are over maps, seeds and (Markov-HA-S) budgets."""
    rows = []
    for domain in GRIDS:
        own = [grid for grid in maps if grid.domain == domain]
        if own:
            limit = _mean_limit(jobs, own)
            for method, actions in _grid_rows():
                runs = [run for grid in own for run in grid_runs(jobs, grid, method, actions, seeds, size)]
                rows.append(_table1_row(domain, method, actions, runs, limit))
    return rows


def table1_by_map(jobs: Jobs, maps: Sequence[GridMap], seeds: Sequence[int], size: Size) -> list[Row]:
    """The same, one row per map."""
    return [
        {"map": grid.name, **_table1_row(grid.domain, method, actions, runs, _mean_limit(jobs, [grid]))}
        for grid in maps
        for method, actions in _grid_rows()
        for runs in [grid_runs(jobs, grid, method, actions, seeds, size)]
    ]


def grid_runs(
    jobs: Jobs, grid: GridMap, method: str, actions: str, seeds: Sequence[int], size: Size
) -> list[dict[str, float]]:
    """The judged policies of a method on one map."""
    if method in APPROVAL:
        done = [jobs.result(approval_job(grid, seed)) for seed in seeds]
        return [run[APPROVAL[method]] for result in done for run in result["budgets"]]
    return [jobs.result(grid_job(grid, method, seed, size))[actions] for seed in seeds]


def _grid_rows() -> list[tuple[str, str]]:
    approval = [(method, "likeliest") for method in APPROVAL]
    return [*approval, *((method, actions) for method in GRID_METHODS for actions in ACTIONS)]


def _mean_limit(jobs: Jobs, maps: Sequence[GridMap]) -> dict[str, dict[str, float]]:
    found = [jobs.result(limit_job(grid)) for grid in maps]
    return {
        name: {scale: float(np.mean([limit[name][scale] for limit in found])) for scale in ("return", "discounted")}
        for name in ("unconstrained", "safe")
    }


def _table1_row(
    domain: str, method: str, actions: str, runs: list[dict[str, float]], limit: dict[str, dict[str, float]]
) -> Row:
    reward, penalty = TABLE_1.get((domain, method), (None, None))
    own = {key: np.array([run[key] for run in runs]) for key in ("discounted", "return", "penalty", "ended")}
    return {
        "domain": domain,
        "method": method,
        "actions": ACTIONS[actions],
        "reward (discounted)": float(own["discounted"].mean()),
        "deviation (discounted)": float(own["discounted"].std()),
        "paper's reward": None if reward is None else str(reward),
        "limit without side effects (discounted)": limit["safe"]["discounted"],
        "limit (discounted)": limit["unconstrained"]["discounted"],
        "reward": float(own["return"].mean()),
        "deviation": float(own["return"].std()),
        "limit without side effects": limit["safe"]["return"],
        "limit": limit["unconstrained"]["return"],
        "penalty": float(own["penalty"].mean()),
        "penalty's deviation": float(own["penalty"].std()),
        "paper's penalty": None if penalty is None else str(penalty),
        "reached the end": float(own["ended"].mean()),
        "runs": len(runs),
    }


def continuous_rows(jobs: Jobs, seeds: Sequence[int], size: Size) -> list[Row]:
    """One row per domain and method, over the tests of the last epochs of all runs."""
    rows = []
    for domain, methods in CONTINUOUS_METHODS.items():
        for method in methods:
            tests = last_tests(jobs, domain, method, seeds, size)
            of = {key: np.array([test[key] for test in tests]) for key in ("sampled_return", "sampled_free")}
            mean = {key: np.array([test[key] for test in tests]) for key in ("mean_return", "mean_free")}
            rows.append(
                {
                    "domain": domain,
                    "method": method,
                    "reward": float(of["sampled_return"].mean()),
                    "deviation": float(of["sampled_return"].std()),
                    "median reward": float(np.median(of["sampled_return"])),
                    "free of side effects": float(of["sampled_free"].mean()),
                    "tests that meet the constraint": float(np.mean(of["sampled_free"] >= 0.95)),
                    "reward (mean action)": float(mean["mean_return"].mean()),
                    "free of side effects (mean action)": float(mean["mean_free"].mean()),
                    "paper": CONTINUOUS[domain, method],
                    "best known": best_known(domain)[method != "PPO"],
                    "runs": len(seeds),
                    "tests": len(tests),
                }
            )
    return rows


def best_known(domain: str) -> tuple[float, float]:
    """The best return without a constraint, and with the paper's."""
    found = all_domains()[domain].best_known
    return found[""], found[MOSTLY_FREE]


def last_tests(jobs: Jobs, domain: str, method: str, seeds: Sequence[int], size: Size) -> list[Row]:
    """The tests of the last 200 epochs of every run."""
    result = jobs.result(continuous_job(domain, method, seeds, size))
    return [test for run in result["runs"] for test in run if test["epoch"] > result["epochs"] - LAST_EPOCHS]


def non_markov_rows(jobs: Jobs, maps: Sequence[GridMap], seeds: Sequence[int], size: Size) -> list[Row]:
    """One row per map, method and way of acting."""
    rows = []
    for grid in maps:
        for method in NON_MARKOV_METHODS:
            done = [jobs.result(non_markov_job(grid, method, seed, seeds, size)) for seed in seeds]
            for actions in ("likeliest",) if method in APPROVAL else ACTIONS:
                if method in APPROVAL:
                    runs = [run[APPROVAL[method]] for result in done for run in result["budgets"]]
                else:
                    runs = [result[actions] for result in done]
                rows.append(
                    {
                        "domain": grid.domain,
                        "map": grid.name,
                        "method": method,
                        "actions": ACTIONS[actions],
                        "reward (discounted)": float(np.mean([run["discounted"] for run in runs])),
                        "reward": float(np.mean([run["return"] for run in runs])),
                        "safe": float(np.mean([run["shares"]["safe"] for run in runs])),
                        "lowest safe": float(np.min([run["shares"]["safe"] for run in runs])),
                        "runs that meet safe>=0.95": int(sum(run["shares"]["safe"] >= 0.95 for run in runs)),
                        "penalty": float(np.mean([run["penalty"] for run in runs])),
                        "runs": len(runs),
                    }
                )
    return rows


def heading(title: str, seeds: Sequence[int], typed: str = "") -> Figures:
    """How a table came about: the command (`typed`, or that of this process), its seeds, the date, the commit."""
    return {
        "title": title,
        "command": typed or command(),
        "seeds": ", ".join(map(str, seeds)),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
    }


def read_rows(file: Path) -> list[Row]:
    """The rows of a table that was written earlier, if there is one."""
    return json.loads(file.read_text(encoding="utf-8"))["rows"] if file.is_file() else []


def write_table(folder: Path, name: str, rows: list[Row], about: Figures, shown: list[Row] | None = None) -> Figures:
    """The table as name.json and name.md, and as name.csv unless other rows are `shown`; `about` is its heading."""
    document = {**about, "rows": rows}
    folder.mkdir(parents=True, exist_ok=True)
    if shown is None:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        atomic_write(folder / f"{name}.csv", text.getvalue())
    atomic_write(folder / f"{name}.json", json.dumps(document, indent=1, allow_nan=False) + "\n")
    atomic_write(folder / f"{name}.md", markdown(rows if shown is None else shown, about))
    return document


def markdown(rows: list[Row], about: Figures) -> str:
    lines = [f"# {about['title']}", "", *(f"{key}: {value}  " for key, value in about.items() if key != "title"), ""]
    return "\n".join([*lines, markdown_table(rows)]) + "\n"


def markdown_table(rows: list[Row]) -> str:
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([_cell(row[column]) for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)
