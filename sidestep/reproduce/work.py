"""Who does which kind of job; and the worker: `python -m sidestep.reproduce.work OUT`, with jobs on standard input."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sidestep.core.errors import InputError
from sidestep.reproduce.grid_work import approval, limits, pair_classifier, plan_grid
from sidestep.reproduce.jobs import Job, Jobs
from sidestep.reproduce.trajectory_work import plan_continuous, trajectory_classifier

KINDS: dict[str, Callable[[dict[str, Any], Jobs], dict[str, Any]]] = {
    "limits": limits,
    "pair-classifier": pair_classifier,
    "approval": approval,
    "plan-grid": plan_grid,
    "trajectory-classifier": trajectory_classifier,
    "plan-continuous": plan_continuous,
}


def main() -> int:
    jobs = Jobs(Path(sys.argv[1]))
    try:
        for job in json.load(sys.stdin):
            jobs.do(Job(**job))
    except InputError as error:
        print(f"sidestep: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
