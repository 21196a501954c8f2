"""The best return on Navigation under the rules of `few_rules.py`, for each share without side effects.

    python benchmarks/rule_limits.py [--only disc ...] [--step 0.1]

The dynamic program of `dynamic_program.py` with an automaton for each rule. The limit at a share is the least, over the
prices, of what no policy with that share can pass. Its error is told by a grid of twice the step.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import jax.numpy as jnp
from dynamic_program import Automaton, counting, limit, solve
from frontier import NAVIGATION
from runner import merged, parser, results

from sidestep.cluster.jobs import Figures, Job
from sidestep.reproduce.tables import heading, read_rows, write_table

PRICES = (0.0, 10.0, 20.0, 30.0, 40.0, 60.0, 80.0, 120.0)
SHARES = (0.95, 0.97, 0.98, 0.99)


def _disc(x, y):
    return (x - 4.0) ** 2 + (y - 4.5) ** 2 < 4.0


def _oblique(x, y):
    return (x + 0.5 * y > 4.0) & (x + 0.5 * y < 6.5) & (y < 7.0)


def _two(x, y):
    return ((x > 2.0) & (x < 3.5) & (y < 5.0)) | ((x > 5.0) & (x < 6.5) & (y > 4.0))


def _order(n, x, y):
    """0: not in the first place yet; then one more for each step in the other."""
    been = jnp.where((x < 3.0) & (y > 4.0), jnp.maximum(n, 1), n)
    inside = (x > 4.0) & (x < 6.5) & (y > 5.0)
    return jnp.where((been > 0) & inside, jnp.minimum(been + 1, 3), been)


def _moves(n, action):
    """How many long moves are running; three are the side effect, for good."""
    return jnp.where(n == 3, 3, jnp.where(jnp.sum(action**2) > 1.0, n + 1, 0))


AUTOMATA = {
    "disc": counting(_disc),
    "oblique": counting(_oblique),
    "two": counting(_two),
    "order": Automaton(4, _order),
    "moves": Automaton(4, lambda n, x, y: jnp.broadcast_to(jnp.asarray(n), jnp.shape(x)), _moves),
}


@dataclass(frozen=True)
class RuleLimits:
    """The policies of all prices under a rule, on a grid with this step."""

    rule: str
    step: float

    def run(self, out: Path) -> Figures:
        plane, rows = replace(NAVIGATION, automaton=AUTOMATA[self.rule]), []
        for price in PRICES:
            total, share, _ = solve(plane, price, self.step, self.step / 2)
            rows.append({"price": price, "return": float(total), "free": 1.0 - float(share)})
        print(self.rule, self.step, rows, flush=True)
        return {"policies": rows}


def main() -> None:
    made = parser(__doc__, "rule_limits")
    made.add_argument("--only", nargs="+", choices=list(AUTOMATA), default=list(AUTOMATA))
    made.add_argument("--step", type=float, default=0.1, help="of the grid; the error is told by twice this step")
    options = made.parse_args()
    steps = (options.step, 2 * options.step)
    jobs = [Job(f"{rule}-{step:g}", RuleLimits(rule, step)) for rule in options.only for step in steps]
    found = [one["policies"] for one in results(jobs, options)]
    rows = []
    for rule, fine, rough in zip(options.only, found[::2], found[1::2], strict=True):
        best = {f"none>={share:g}": limit(fine, share) for share in SHARES}
        error = max(abs(limit(rough, share) - limit(fine, share)) for share in SHARES)
        rows.append({"rule": rule, "no constraint": fine[0]["return"], **best, "error": error})
    rows = merged(read_rows(options.out / "rule_limits.json"), rows, by=("rule",))
    write_table(options.out, "rule_limits", rows, heading("Navigation: the best return under other rules", []))


if __name__ == "__main__":
    main()
