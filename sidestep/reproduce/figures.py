"""Figures from the jobs' files, as SVG and PNG: box plots of the continuous models, and courses of training."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from sidestep.cluster.jobs import Figures, Jobs
from sidestep.reproduce.experiments import CONTINUOUS_METHODS, GridMap, Size, continuous_job, grid_job
from sidestep.reproduce.tables import last_tests
from sidestep.runtime.files import save_picture

BLUE, RED, GREY = "#22577a", "#c8463c", "#6c757d"
REQUIRED = 0.95


def box_plots(jobs: Jobs, seeds: Sequence[int], size: Size) -> Figure:
    """Reward and share of trajectories free of side effects, over the last epochs of all runs."""
    domains = list(CONTINUOUS_METHODS)
    figure, axes = plt.subplots(len(domains), 2, figsize=(9.0, 6.5), layout="constrained", squeeze=False)
    for row, domain in zip(axes, domains, strict=True):
        methods = CONTINUOUS_METHODS[domain]
        tests = [last_tests(jobs, domain, method, seeds, size) for method in methods]
        for axis, key, label in zip(row, ("sampled_return", "sampled_free"), ("reward", "share free"), strict=True):
            axis.boxplot([[test[key] for test in of] for of in tests], tick_labels=list(methods))
            axis.set_ylabel(label)
            axis.set_title(domain)
        row[1].axhline(REQUIRED, color=GREY, linestyle=":", linewidth=1)
        row[1].set_ylim(-0.05, 1.05)
    return _marked(figure, size)


def grid_curve(jobs: Jobs, grid: GridMap, seed: int, size: Size) -> Figure:
    """One MBGE run on a map: reward with a band of half a deviation either way, penalty, multiplier."""
    tests = jobs.result(grid_job(grid, "MBGE", seed, size))["curve"]
    band = [(test["return"] - test["deviation"] / 2, test["return"] + test["deviation"] / 2) for test in tests]
    return _course(f"{grid.name}, MBGE, seed {seed}", tests, "return", band, "penalty", "penalty of side effects", size)


def continuous_curve(jobs: Jobs, domain: str, seeds: Sequence[int], size: Size) -> Figure:
    """The first seed's MBGE run: reward with the lowest and highest of a test, share free, multiplier."""
    tests = jobs.result(continuous_job(domain, "MBGE", seeds, size))["runs"][0]
    band = [(test["lowest_return"], test["highest_return"]) for test in tests]
    title = f"{domain}, MBGE, seed {seeds[0]}"
    return _course(title, tests, "sampled_return", band, "sampled_free", "share free of side effects", size)


def _course(
    title: str,
    tests: list[Figures],
    reward: str,
    band: list[tuple[float, float]],
    second: str,
    label: str,
    size: Size,
) -> Figure:
    figure, axes = plt.subplots(3, 1, figsize=(7.0, 7.0), layout="constrained", sharex=True)
    epochs = [test["epoch"] for test in tests]
    axes[0].plot(epochs, [test[reward] for test in tests], color=BLUE)
    axes[0].fill_between(
        epochs, [low for low, _ in band], [high for _, high in band], color=BLUE, alpha=0.2, linewidth=0
    )
    axes[1].plot(epochs, [test[second] for test in tests], color=RED)
    axes[2].plot(epochs, [test["multiplier"] for test in tests], color=GREY)
    for axis, text in zip(axes, ("reward", label, "multiplier"), strict=True):
        axis.set_ylabel(text)
    axes[2].set_xlabel("epoch")
    axes[0].set_title(title)
    return _marked(figure, size)


def _marked(figure: Figure, size: Size) -> Figure:
    """A quick version says so on its face."""
    if size.quick:
        figure.suptitle("quick version: few epochs, labels and runs", color=RED)
    return figure


def save_figure(folder: Path, name: str, figure: Figure) -> list[str]:
    files = [f"{name}.svg", f"{name}.png"]
    for file in files:
        save_picture(figure, folder / file, dpi=150)
    plt.close(figure)
    return files
