"""The options of a fit. Light on purpose: the command line reads them without loading JAX."""

from dataclasses import dataclass

from sidestep.core.errors import InputError


@dataclass(frozen=True)
class FitConfig:
    """How a safety model is fitted to labelled trajectories."""

    steps: int = 3000
    """Minibatches at most; early stopping may end the fit sooner."""

    batch: int = 100
    """Trajectories in a minibatch."""

    learning_rate: float = 3e-3
    """Adam's step size after the warm-up."""

    schedule: str = "cosine"
    """How the step size goes on: 'cosine' (down to nothing at the last step) or 'constant'."""

    warmup: float = 0.02
    """Share of the steps in which the step size rises from nothing."""

    weight_decay: float = 0.0
    """Decoupled weight decay, a share of each parameter per unit of step size."""

    sparsity: float = 0.0
    """Weight of the sum, over the entries of state and action, of the norm of what the first layer reads from each:
    most side effects hang on few entries, and entries that a few labels only seem to speak of are dropped."""

    average: float = 0.0
    """The parameters that are kept are a running mean over the minibatches, which forgets by this factor."""

    clip: float = 1.0
    """Largest norm of a gradient."""

    smoothing: float = 0.0
    """Share of a label that is spread evenly over all categories: keeps the model from claiming near-certainty."""

    balance: float = 0.0
    """Rare categories are drawn more often: 0 as they come, 1 all equally often. The likelihood is corrected for
    it, so probabilities stay those of the data."""

    held_out: float = 0.2
    """Share of the trajectories kept for early stopping, calibration and the report; 0: none of the three."""

    check_every: int = 100
    """Minibatches between two looks at the held-out trajectories."""

    patience: int = 10
    """Looks without an improvement before the fit stops; 0: never stop early."""

    bootstrap: bool = True
    """Members of an ensemble see different draws, with replacement, of the training trajectories."""

    calibrate: bool = True
    """Fit the temperature (for hazards: scale and power) on the held-out trajectories."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "check_every"):
            if getattr(self, name) < 1:
                raise InputError(f"a fit's {name} must be at least 1, not {getattr(self, name)}")
        for name, most in (("steps", 10**7), ("batch", 10**6), ("check_every", 10**7)):
            if getattr(self, name) > most:
                raise InputError(f"a fit's {name} must be at most {most:,}, not {getattr(self, name)}")
        for name in ("learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise InputError(f"a fit's {name} must be above 0, not {getattr(self, name)}")
        for name in ("warmup", "balance", "smoothing"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"a fit's {name} must lie in [0, 1], not {getattr(self, name)}")
        if not 0 <= self.held_out < 1:
            raise InputError(f"a fit's held_out must lie in [0, 1), not {self.held_out}")
        if self.weight_decay < 0 or self.sparsity < 0 or self.patience < 0:
            raise InputError("a fit's weight_decay, sparsity and patience must not be negative")
        if not 0 <= self.average < 1:
            raise InputError(f"a fit's average must lie in [0, 1), not {self.average}")
        if self.schedule not in ("cosine", "constant"):
            raise InputError(f"a fit's schedule is 'cosine' or 'constant', not {self.schedule!r}")


def fit_settings(kind: str) -> FitConfig:
    """What works best for a safety model of this kind."""
    if kind == "hazard":
        # A few hundred labels hold few mistakes, and calibration is read from mistakes: hence so many are held out.
        return FitConfig(
            steps=2500,
            learning_rate=1e-2,
            patience=8,
            sparsity=0.003,
            average=0.98,
            bootstrap=False,
            held_out=0.3,
        )
    return FitConfig()
