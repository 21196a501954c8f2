"""Certified policies from few labels, with and without marks, for rules of many kinds: each campaign a fresh process.

    python benchmarks/few_labels.py [--only navigation ...] [--seeds 5] [--first-seed 21] [--runs FOLDER]

writes few_labels.json and few_labels.md into benchmarks/results. Finished runs found in the folder are not run again.
"""

import numpy as np
from campaign import Campaign, certified
from runner import commits, merged, parser, results, seeds_of

from sidestep.cluster.jobs import Figures, Job
from sidestep.reproduce.tables import heading, read_rows, write_table

RULES = "benchmarks/few_rules.py"
GREENHOUSE = ("--rule", "examples/mould.py:rule", "--constraint", "none>=0.95")


def own(rule: str) -> tuple[str, ...]:
    return ("--rule", f"{RULES}:{rule}", "--constraint", "none>=0.95")


FEW, SOME, MANY = (("--labels", count) for count in ("300", "500", "4000"))
MARKS = ("--marks",)
OUTSIDE = {"navigation": ("moves", "disc", "oblique", "two", "order"), "hvac": ("gap", "blast")}
PROBLEMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "navigation, 300 marked": ("navigation", (*FEW, *MARKS)),
    "navigation, 300": ("navigation", FEW),
    "hvac, 300 marked": ("hvac", (*FEW, *MARKS)),
    "reservoir, 300": ("reservoir", FEW),
    "greenhouse, 500 marked": ("examples/greenhouse.rddl", (*SOME, *MARKS, *GREENHOUSE)),
    **{
        f"{model} {rule}, 500 marked": (model, (*SOME, *MARKS, *own(rule)))
        for model in OUTSIDE
        for rule in OUTSIDE[model]
    },
    "greenhouse, 4000": ("examples/greenhouse.rddl", (*MANY, *GREENHOUSE)),
    **{f"{model} {rule}, 4000": (model, (*MANY, *own(rule))) for model in OUTSIDE for rule in OUTSIDE[model]},
}


def summary(rows: list[Figures]) -> list[Figures]:
    """One row per problem."""
    found = []
    for name in dict.fromkeys(row["name"] for row in rows):
        mine = [row for row in rows if row["name"] == name]
        returns = np.array([row["return"]["mean"] for row in mine])
        found.append(
            {
                "problem": name,
                "seeds": len(mine),
                "certified": sum(map(certified, mine)),
                "return, mean (spread)": f"{returns.mean():.6g} ({returns.std():.3g})",
                "worst": f"{returns.min():.6g}",
                "labels": round(np.mean([row["labels_used"] for row in mine])),
                "said in words": sum(row.get("pattern") is not None for row in mine),
                "seconds": round(np.mean([row["seconds"] for row in mine])),
                "commit": ", ".join(sorted({row["commit"] for row in mine})),
            }
        )
    return found


def main() -> None:
    made = parser(__doc__, "few_labels", first_seed=21)
    made.add_argument("--only", nargs="*", default=[], help="problems by name, or all whose names begin so")
    options = made.parse_args()

    def asked(name: str) -> bool:
        return any(name == one if one in PROBLEMS else name.startswith(one) for one in options.only or [""])

    wanted = {name: job for name, job in PROBLEMS.items() if asked(name)}
    jobs = [
        Job(f"{name.replace(',', '').replace(' ', '-')}-{seed}", Campaign(name.replace(",", ""), *problem, seed))
        for name, problem in wanted.items()
        for seed in seeds_of(options)
    ]
    found = results(jobs, options)
    new = [{**row, "commit": made} for row, made in zip(found, commits(jobs, options), strict=True)]
    rows = merged(read_rows(options.out / "few_labels.json"), new, by=("name", "seed"))
    about = heading("Few labels", sorted({row["seed"] for row in rows})) | {"seconds": "of one busy core"}
    del about["commit"]  # each row has its own
    write_table(options.out, "few_labels", rows, about, shown=summary(rows))


if __name__ == "__main__":
    main()
