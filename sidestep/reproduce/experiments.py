"""Which jobs each experiment consists of."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sidestep.cluster.jobs import Job
from sidestep.core.errors import InputError
from sidestep.models.domains import all_domains, domain_of_file
from sidestep.models.domains.boxpushing.model import Boxpushing
from sidestep.models.domains.driving.model import Driving
from sidestep.models.grids import built_in_maps
from sidestep.reproduce.grid_work import Approval, GridLimits, Judge, PairClassifier, PlanGrid
from sidestep.reproduce.trajectory_work import PlanContinuous, TrajectoryClassifier

GRIDS = {"boxpushing": Boxpushing, "driving": Driving}
PAPER = {name: domain.paper for name, domain in all_domains().items()}
GRID_METHODS = ("MBGE", "MF-Lagrange")
CONTINUOUS_METHODS = {name: PAPER[name].methods for name in ("navigation", "hvac")}
NO_SIDE_EFFECTS = "mild+<=0"
MOSTLY_FREE = "none>=0.95"
MOSTLY_SAFE = "safe>=0.95"
NON_MARKOV_HORIZON = 250


@dataclass(frozen=True)
class Size:
    """How large the experiments are. Epochs of None are the paper's."""

    quick: bool
    maps: int  # of each grid domain, when quick
    seeds: int
    grid_epochs: int | None  # of MBGE and MF-Lagrange
    pair_steps: int  # minibatches of a fit to labelled pairs
    continuous_epochs: int | None
    gathering_epochs: dict[str, int]  # of the unconstrained runs that trajectories are gathered from
    gathering_runs: int
    trajectories: dict[str, int]  # labelled for a recurrent classifier
    trajectory_steps: dict[str, int]  # minibatches of its fit
    non_markov_epochs: int
    rollouts: int


FULL = Size(
    quick=False,
    maps=5,
    seeds=5,
    grid_epochs=None,
    pair_steps=3000,
    continuous_epochs=None,
    gathering_epochs={"continuous": 1000, "grid": 50},
    gathering_runs=5,
    trajectories={"continuous": 200_000, "grid": 5000},
    trajectory_steps={"continuous": 20_000, "grid": 2000},
    non_markov_epochs=500,
    rollouts=2000,
)
QUICK = Size(
    quick=True,
    maps=1,
    seeds=2,
    grid_epochs=50,
    pair_steps=1500,
    continuous_epochs=100,
    gathering_epochs={"continuous": 50, "grid": 20},
    gathering_runs=1,
    trajectories={"continuous": 2000, "grid": 300},
    trajectory_steps={"continuous": 200, "grid": 100},
    non_markov_epochs=20,
    rollouts=500,
)


@dataclass(frozen=True)
class GridMap:
    domain: str
    name: str
    reference: str  # as `load_model` takes it


def find_maps(folder: Path | None, size: Size) -> list[GridMap]:
    """Our five of each domain, or all of a folder and its folders; when quick, the first of each domain."""
    found = _own_maps() if folder is None else _maps_in(folder)
    of = {domain: [grid for grid in found if grid.domain == domain] for domain in GRIDS}
    return [grid for domain in GRIDS for grid in (of[domain][: size.maps] if size.quick else of[domain])]


def _own_maps() -> list[GridMap]:
    small = [(domain, name) for domain, grid in GRIDS.items() for name in built_in_maps(grid) if len(name) == 1]
    return [GridMap(domain, f"{domain}-{name}", f"{domain}?map={name}") for domain, name in small]


def _maps_in(folder: Path) -> list[GridMap]:
    if not folder.is_dir():
        raise InputError("is not a folder", place=f"--maps {folder}")
    found = ((path, domain_of_file(path)) for path in sorted(folder.rglob("*")))
    maps = [GridMap(d.name, f"{d.name}-{path.stem}", str(path)) for path, d in found if d and d.name in GRIDS]
    if not maps:
        raise InputError("has no .bp or .nav file", place=f"--maps {folder}")
    twice = {one.name for one in maps if [other.name for other in maps].count(one.name) > 1}
    if twice:
        raise InputError(f"has two maps with the name {sorted(twice)[0]}", place=f"--maps {folder}")
    return maps


def limit_job(grid: GridMap) -> Job:
    return Job(f"{grid.name}-limits", GridLimits(grid.reference), group="limits")


def pair_task(grid: GridMap, seed: int, size: Size) -> PairClassifier:
    file = f"safety/{grid.name}-pairs-seed{seed}.safetensors"
    return PairClassifier(grid.reference, seed, PAPER[grid.domain].pair_labels, size.pair_steps, file)


def pair_job(grid: GridMap, seed: int, size: Size) -> Job:
    return Job(f"{grid.name}-pairs-seed{seed}", pair_task(grid, seed, size), group=f"{grid.name}-pairs")


def approval_job(grid: GridMap, seed: int, judge: Judge | None = None) -> Job:
    task, judged = Approval(grid.reference, seed, PAPER[grid.domain].query_budgets, judge), "-judged" if judge else ""
    group = f"{grid.name}-markov-ha-s"
    return Job(f"{group}-seed{seed}{judged}", task, f"{group}{judged}")


def grid_task(grid: GridMap, method: str, seed: int, size: Size) -> PlanGrid:
    pairs = pair_task(grid, seed, size)
    return PlanGrid(grid.reference, method, seed, NO_SIDE_EFFECTS, size.grid_epochs, pairs.labels, pairs.file)


def grid_job(grid: GridMap, method: str, seed: int, size: Size) -> Job:
    group, needs = f"{grid.name}-{method.lower()}", (pair_job(grid, seed, size).name,)
    return Job(f"{group}-seed{seed}", grid_task(grid, method, seed, size), group, needs)


def table1_jobs(maps: Sequence[GridMap], seeds: Sequence[int], size: Size) -> list[Job]:
    """Limits, classifiers, Markov-HA-S, and every method on every map with every seed."""
    jobs = [limit_job(grid) for grid in maps]
    jobs += [pair_job(grid, seed, size) for grid in maps for seed in seeds]
    jobs += [grid_job(grid, method, seed, size) for grid in maps for method in GRID_METHODS for seed in seeds]
    return jobs + [approval_job(grid, seed) for grid in maps for seed in seeds]


def recurrent_task(name: str, model: str, rule: str | None, seed: int, size: Size) -> TrajectoryClassifier:
    """On the grids trajectories are gathered at ten stages while the goal is being found; later they look alike."""
    grid = rule is not None
    kind = "grid" if grid else "continuous"
    return TrajectoryClassifier(
        model,
        rule,
        seed,
        epochs=size.gathering_epochs[kind],
        test_every=size.gathering_epochs[kind] // 10 if grid else 25,
        runs=size.gathering_runs,
        labels=size.trajectories[kind],
        steps=size.trajectory_steps[kind],
        units=32 if grid else 64,
        learning_rate=1e-3 if grid else 5e-3,
        file=f"safety/{name}.safetensors",
    )


def classifier_job(domain: str, seed: int, size: Size) -> Job:
    name = f"{domain}-classifier-seed{seed}"
    return Job(name, recurrent_task(name, domain, None, seed, size))


def continuous_job(domain: str, method: str, seeds: Sequence[int], size: Size) -> Job:
    """All seeds in one job; they share a safety model, which is fitted with the first seed."""
    name = f"{domain}-{method.lower()}-seeds{seeds[0]}-{seeds[-1]}"
    task = PlanContinuous(domain, method, tuple(seeds), size.continuous_epochs)
    if method == "PPO":
        return Job(name, task)
    classifier = classifier_job(domain, seeds[0], size)
    file = f"safety/{classifier.name}.safetensors"
    return Job(name, replace(task, constraint=MOSTLY_FREE, safety=file), needs=(classifier.name,))


def continuous_jobs(seeds: Sequence[int], size: Size) -> list[Job]:
    classifiers = [classifier_job(domain, seeds[0], size) for domain in CONTINUOUS_METHODS]
    plans = [continuous_job(domain, method, seeds, size) for domain, of in CONTINUOUS_METHODS.items() for method in of]
    return classifiers + plans


def curve_jobs(maps: Sequence[GridMap], seeds: Sequence[int], size: Size) -> list[Job]:
    """One run of MBGE on the first Boxpushing map, on Navigation and on HVAC: the first seed's."""
    first = next((grid for grid in maps if grid.domain == "boxpushing"), None)
    jobs = []
    if first is not None:
        jobs = [pair_job(first, seeds[0], size), grid_job(first, "MBGE", seeds[0], size)]
    for domain in CONTINUOUS_METHODS:
        jobs += [classifier_job(domain, seeds[0], size), continuous_job(domain, "MBGE", seeds, size)]
    return jobs


def non_markov_maps(folder: Path | None, maps: Sequence[GridMap]) -> list[GridMap]:
    """One map of each domain, with a shorter horizon: the first of a folder's, or the fourth of ours."""
    if folder is None:
        chosen = [GridMap(d, f"{d}-{n}", f"{d}?map={n}") for d in GRIDS for n in [PAPER[d].trajectory_map]]
    else:
        firsts = (next((grid for grid in maps if grid.domain == domain), None) for domain in GRIDS)
        chosen = [grid for grid in firsts if grid is not None]
    return [
        GridMap(
            grid.domain,
            f"{grid.name}-h{NON_MARKOV_HORIZON}",
            f"{grid.reference}{'&' if '?' in grid.reference else '?'}horizon={NON_MARKOV_HORIZON}",
        )
        for grid in chosen
    ]


NON_MARKOV_METHODS = ("MBGE", "MF-Lagrange", "MBGE, Markov classifier", "Markov-HA-S")


def non_markov_job(grid: GridMap, method: str, seed: int, seeds: Sequence[int], size: Size) -> Job:
    judge = Judge("share", size.rollouts)
    if method == "Markov-HA-S":
        return approval_job(grid, seed, judge)
    if method == "MBGE, Markov classifier":
        task = replace(grid_task(grid, "MBGE", seed, size), judge=judge)
        needs = (pair_job(grid, seed, size).name,)
        return Job(f"{grid.name}-markov-mbge-seed{seed}", task, f"{grid.name}-markov", needs)
    name, fitted = _non_markov_classifier(grid, seeds, size)
    epochs, group = size.non_markov_epochs, f"{grid.name}-{method.lower()}-recurrent"
    task = PlanGrid(grid.reference, method, seed, MOSTLY_SAFE, epochs, fitted.labels, fitted.file, "share", judge)
    return Job(f"{group}-seed{seed}", task, group, needs=(name,))


def _non_markov_classifier(grid: GridMap, seeds: Sequence[int], size: Size) -> tuple[str, TrajectoryClassifier]:
    name = f"{grid.name}-classifier-seed{seeds[0]}"
    return name, recurrent_task(name, grid.reference, "share", seeds[0], size)


def non_markov_jobs(maps: Sequence[GridMap], seeds: Sequence[int], size: Size) -> list[Job]:
    """The supplement's experiment: `maps` come from `non_markov_maps`."""
    jobs = [Job(*_non_markov_classifier(grid, seeds, size)) for grid in maps]
    jobs += [pair_job(grid, seed, size) for grid in maps for seed in seeds]
    return jobs + [
        non_markov_job(grid, method, seed, seeds, size)
        for grid in maps
        for method in NON_MARKOV_METHODS
        for seed in seeds
    ]
