"""The options of a fit. Light on purpose: the command line reads them without loading JAX."""

from dataclasses import dataclass

from sidestep.core.options import check_ranges, option


@dataclass(frozen=True)
class FitConfig:
    """How a safety model is fitted to labelled trajectories."""

    steps: int = option(3000, "Minibatches at most; early stopping may end the fit sooner.", least=1, most=10**7)
    batch: int = option(100, "Trajectories in a minibatch.", least=1, most=10**6)
    learning_rate: float = option(3e-3, "Adam's step size after the warm-up.", above=0)
    sparsity: float = option(
        0.0,
        "Weight of the sum, over the entries of state and action, of the norm of what the first layer reads from each: "
        "most side effects depend on few entries, and entries that matter only by chance are dropped.",
        least=0,
    )
    average: float = option(
        0.0, "The parameters that are kept are a running mean over the minibatches with this decay.", least=0, below=1
    )
    balance: float = option(
        0.0,
        "Rare categories are drawn more often: 0 as they come, 1 all equally often. The likelihood is corrected for "
        "it, so probabilities stay those of the data.",
        least=0,
        most=1,
    )
    slack: int = option(1, "A marked step may be off by so many steps, either way.", least=0, most=10**6)
    held_out: float = option(
        0.2, "Share kept for early stopping, calibration and the report; 0: none of the three.", least=0, below=1
    )
    check_every: int = option(100, "Minibatches between two looks at the held-out trajectories.", least=1, most=10**7)
    patience: int = option(10, "Looks without an improvement before the fit stops; 0: never stop early.", least=0)
    bootstrap: bool = option(True, "Members of an ensemble draw their own training trajectories, with replacement.")
    calibrate: bool = option(True, "Fit the temperature (hazards: scale and power) on the held-out trajectories.")

    def __post_init__(self) -> None:
        check_ranges(self)


def fit_settings(kind: str) -> FitConfig:
    """What works best for a safety model of this kind."""
    if kind in ("hazard", "families"):
        # A few hundred labels hold few mistakes, and calibration is read from mistakes: hence so many are held out.
        return FitConfig(
            steps=2500, learning_rate=1e-2, patience=8, sparsity=0.003, average=0.98, bootstrap=False, held_out=0.3
        )
    return FitConfig()
