"""The numbers that the paper prints."""

from typing import NamedTuple


class Printed(NamedTuple):
    """A cell of Table 1: mean and deviation."""

    mean: float
    deviation: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.deviation:.2f}"


# Table 1: reward and penalty of side effects (NSE), over five maps and five runs. The paper does not say whether
# rewards are discounted; a boxpushing run on its maps needs at least 29 steps, so -26.80 can only be discounted.
TABLE_1: dict[tuple[str, str], tuple[Printed, Printed]] = {
    ("boxpushing", "Markov-HA-S"): (Printed(-30.43, 2.29), Printed(0.76, 3.40)),
    ("boxpushing", "MF-Lagrange"): (Printed(-28.29, 1.92), Printed(59.00, 10.95)),
    ("boxpushing", "MBGE"): (Printed(-26.80, 0.89), Printed(0.30, 0.72)),
    ("driving", "Markov-HA-S"): (Printed(-26.59, 0.46), Printed(8.24, 8.75)),
    ("driving", "MF-Lagrange"): (Printed(-28.10, 0.98), Printed(5.10, 7.46)),
    ("driving", "MBGE"): (Printed(-25.78, 1.01), Printed(2.97, 6.61)),
}

# The continuous results are printed as box plots and in words.
CONTINUOUS: dict[tuple[str, str], str] = {
    ("navigation", "PPO"): "best reward, side effects almost always",
    ("navigation", "MFGE"): "lower reward, never feasible",
    ("navigation", "MBGE"): "about -95, almost always feasible",
    ("hvac", "PPO"): "best reward, side effects always",
    ("hvac", "MBGE"): "about -520k, most runs feasible",
}
