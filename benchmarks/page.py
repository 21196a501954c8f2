"""The results page: docs/results.md from the files that `sidestep reproduce` and other benchmarks wrote.

    sidestep reproduce table1 --out docs/results/our-maps
    sidestep reproduce continuous --out docs/results/continuous
    python benchmarks/page.py

Every folder of docs/results with a table of a known name becomes a section; tables that are not there are left out.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from sidestep.reproduce.tables import best_known, markdown_table, read_rows
from sidestep.runtime.files import atomic_write

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
BENCHMARKS = ROOT / "benchmarks" / "results"
FOLDERS = {"our-maps": "our ten maps", "their-maps": "five of the paper's maps"}
Table = dict[str, Any]
HEAD = """# Results

What the paper prints, what our runs gave, and the best that is possible, side by side. `reward` is the plain sum,
`discounted` with a discount of 0.99; the paper's rewards fit only the latter (see [reproduce](reproduce.md)). The rows
*Sidestep, campaign* are this package's main job, which asks for its own labels and certifies its answer. Networks are
judged by sampled actions, as the paper does. This page is written by `python benchmarks/page.py` from the files in
`docs/results/` and from [campaign.json](../benchmarks/results/campaign.json) and its neighbours.
"""
DIFFERENCES = """## Where text, code and our results differ

[This list](reproduce.md#where-the-papers-text-its-published-code-and-ours-differ) says what the paper's text,
its published code and our presets do differently, and what happened with theirs.
"""


def read(file: Path) -> Table | None:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def how(table: Table) -> str:
    minutes = table["seconds of all jobs, added up"] / 60
    return (
        f"`{table['command']}`, seeds {table['seeds']}, {table['date']}; "
        f"its jobs took {minutes:.0f} minutes of one core altogether.\n"
    )


def markdown(columns: list[str], rows: list[list[Any]]) -> str:
    return markdown_table([dict(zip(columns, map(_cell, row), strict=True)) for row in rows]) + "\n"


def _cell(value: Any) -> Any:
    """Two decimals are enough on this page."""
    return f"{value:.2f}" if isinstance(value, float) and abs(value) < 1000 else value


def campaign(name: str) -> list[Table]:
    return [row for row in read_rows(BENCHMARKS / "campaign.json") if row["name"] == name]


def table1(folder: Path, what: str) -> str:
    table, by_map = read(folder / "table1.json"), read(folder / "table1-by-map.json")
    if table is None or by_map is None:
        return ""
    columns = ["domain", "method", "discounted", "paper", "limit", "reward", "limit ", "penalty", "paper ", "runs"]
    rows = []
    for row in table["rows"]:
        if row["actions"] == "sampled" or row["method"].startswith("Markov"):
            rows.append(
                [
                    row["domain"],
                    row["method"],
                    _spread(row["reward (discounted)"], row["deviation (discounted)"]),
                    row["paper's reward"],
                    row["limit without side effects (discounted)"],
                    _spread(row["reward"], row["deviation"]),
                    row["limit without side effects"],
                    _spread(row["penalty"], row["penalty's deviation"]),
                    row["paper's penalty"],
                    row["runs"],
                ]
            )
    for domain in dict.fromkeys(row["domain"] for row in table["rows"]):
        maps = dict.fromkeys(row["map"] for row in by_map["rows"] if row["domain"] == domain)
        limit = next(row for row in rows if row[0] == domain)
        rows.append(_campaign_row(domain, list(maps), limit))
    rows.sort(key=lambda row: row[0])
    text = f"## Table 1 on {what}\n\n{how(table)}\n{markdown(columns, rows)}\n"
    return text + f"Map by map: [table1-by-map.md](results/{folder.name}/table1-by-map.md).\n"


def _campaign_row(domain: str, maps: list[str], limit: list[Any]) -> list[Any]:
    runs = [run for name in maps for run in campaign(f"{name.replace('-', ' ', 1)} exact")]
    plain = [run["return"]["mean"] for run in runs]
    discounted = [run["return"]["discounted_mean"] for run in runs]
    penalty = [run["penalty"]["mean"] for run in runs]
    spread = [_spread(float(np.mean(x)), float(np.std(x))) if x else None for x in (discounted, plain, penalty)]
    return [domain, "Sidestep, campaign", spread[0], None, limit[4], spread[1], limit[6], spread[2], None, len(runs)]


def _spread(mean: float, deviation: float) -> str:
    return f"{mean:.2f} ± {deviation:.2f}"


def continuous(folder: Path) -> str:
    table = read(folder / "continuous.json")
    if table is None:
        return ""
    columns = ["model", "method", "reward", "free", "reward (mean action)", "free (mean action)", "paper", "best known"]
    rows = [
        [
            row["domain"],
            row["method"],
            row["reward"],
            row["free of side effects"],
            row["reward (mean action)"],
            row["free of side effects (mean action)"],
            row["paper"],
            best_known(row["domain"])[row["method"] != "PPO"],
        ]
        for row in table["rows"]
    ]
    for domain in ("navigation", "hvac"):
        runs = campaign(domain)
        mean = float(np.mean([run["return"]["mean"] for run in runs]))
        free = float(np.mean([run["side_effects"]["none"] for run in runs]))
        best = best_known(domain)[1]
        rows.append([domain, f"Sidestep, campaign ({len(runs)} runs)", None, None, mean, free, None, best])
    rows.sort(key=lambda row: row[0], reverse=True)
    picture = f"![reward and share of free trajectories](results/{folder.name}/continuous.svg)"
    title = "## Navigation and HVAC: tests of the last 200 epochs"
    return f"{title}\n\n{how(table)}\n{picture}\n\n{markdown(columns, rows)}\n{limits()}\n"


def limits() -> str:
    """Where the best known returns come from, and how much better they could be at most."""
    error = max(row["error"] for row in read_rows(BENCHMARKS / "frontier.json"))
    said = [
        f"Best known: Navigation's by a dynamic program, with an error of {error:.2f} "
        "(`python benchmarks/frontier.py`, [frontier.md](../benchmarks/results/frontier.md)). "
        "HVAC's and Reservoir's are reached, and a linear program says what no policy exceeds "
        "(`python benchmarks/bounds.py`, [bounds.md](../benchmarks/results/bounds.md)):"
    ]
    for row in read_rows(BENCHMARKS / "bounds.json"):
        within = f"with {row['constraint']}" if row["constraint"] else "without constraint"
        said.append(f"- {row['model']} {within}: at least {row['at least']:,.0f}, at most {row['at most']:,.0f}")
    return "\n".join([said[0], "", *said[1:]])


def curves(folder: Path) -> str:
    table = read(folder / "curves.json")
    if table is None:
        return ""
    pictures = [f"![{name}](results/{folder.name}/{name})" for name in table["figures"] if name.endswith(".svg")]
    return f"## One MBGE run each\n\n{how(table)}\n" + "\n\n".join(pictures) + "\n"


def non_markov(folder: Path) -> str:
    table = read(folder / "nonmarkov-grid.json")
    if table is None:
        return ""
    columns = ["map", "method", "actions", "reward", "safe", "lowest safe", "runs that meet safe>=0.95", "runs"]
    rows = [[row[column] for column in columns] for row in table["rows"]]
    return f"## Side effects of whole trajectories on grids\n\n{how(table)}\n{markdown(columns, rows)}"


def default(results: Path) -> str:
    table = read(results / "default.json")
    if table is None:
        return ""
    rows = []
    for model in dict.fromkeys(row["model"] for row in table["rows"]):
        own = [row for row in table["rows"] if row["model"] == model]
        returns, free = [row["return"] for row in own], [row["none"] for row in own]
        certified = sum(row["certified"] for row in own)
        shown = [own[0]["constraint"], float(np.mean(returns)), min(returns), f"{min(free):.3f}", certified, len(own)]
        rows.append([model, *shown])
    columns = ["model", "constraint", "return", "worst", "least share of none", "certified", "runs"]
    title = "## The default planner against the paper's classifier"
    text = "The classifiers are fitted as those of the runs above, from some 200,000 labels each; "
    text += "mean action, 2,000 fresh "
    text += f"rollouts a run (`{table['command']}`, [run by run](../benchmarks/results/default.md))."
    return f"{title}\n\n{text}\n\n{markdown(columns, rows)}"


def exact(results: Path) -> str:
    table = read(results / "exact.json")
    if table is None:
        return ""
    rows = table["rows"]
    widest = max(rows, key=lambda row: row["gap"])
    near = sum(row["gap"] <= 0.05 for row in rows)
    effects = max(row["side effects (likeliest)"] for row in rows)
    title = "## The exact gradient against the linear program"
    text = "A network trained by exact gradients against a classifier of all pairs comes within 0.05 of the optimum "
    text += f"without side effects on {near} of {len(rows)} maps (most: {widest['gap']:.3f}, {widest['map']}), with "
    text += f"{effects:.4f} side effects a run at most (`{table['command']}`, "
    return f"{title}\n\n{text}[map by map](../benchmarks/results/exact.md)).\n"


def main() -> None:
    sections = [table1(RESULTS / folder, what) for folder, what in FOLDERS.items()]
    sections += [continuous(RESULTS / "continuous"), curves(RESULTS / "continuous"), non_markov(RESULTS / "nonmarkov")]
    sections += [default(BENCHMARKS), exact(BENCHMARKS)]
    atomic_write(ROOT / "docs" / "results.md", "\n".join([HEAD, *filter(None, sections), DIFFERENCES]))


if __name__ == "__main__":
    main()
