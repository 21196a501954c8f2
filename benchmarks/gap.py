"""What the planner loses to the limit, by cause: one part of it at a time is left out or replaced.

    python benchmarks/gap.py [--seeds 5] [--first-seed 21] [--only "navigation" ...]

Without a constraint the limit is the dynamic program's, or the best return known. With one (`none>=0.95`) the safety
model is an oracle that counts by the rule itself, so that only the planner is measured, and the limit is the one at the
policy's own share without side effects. Returns are of the mean action, on 4,000 fresh rollouts.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from dynamic_program import limit
from oracles import CounterOracle, in_box
from runner import RESULTS, commits, merged, parser, results, seeds_of

import sidestep
from sidestep.cluster.jobs import Figures, Job
from sidestep.models.domains.navigation.rule import DIRTY_X, DIRTY_Y
from sidestep.planning.options import with_options
from sidestep.planning.plan import plan
from sidestep.planning.presets import preset
from sidestep.reproduce.tables import heading, read_rows, write_table

ROLLOUTS = 4000
BEST = {"hvac": -481_926.0, "reservoir": -4_518.0}  # benchmarks/results/bounds.md: reached, and an upper bound
CONSTRAINT = "none>=0.95"
Options = dict[str, str | int | float]
# The oracle's rule is exact, so that no margin is needed but for the noise of a test.
ORACLE: Options = {"observe": "memory", "margin": 0.1, "epochs": 600, "lookahead_rounds": 12, "squash": "clip"}
ANNEALED: Options = {  # as in the last planning of a campaign
    "lookahead_rounds": 0,
    "noise_start": 0.5,
    "noise_end": 0.003,
    "log_cap": 1,
    "batch": 500,
    "epochs": 2400,
}
VARIANTS: dict[str, dict[str, Options]] = {
    "navigation": {
        "default": {},
        "no lookahead": {"lookahead_rounds": 0},
        "no lookahead, 3 times the epochs": {"lookahead_rounds": 0, "epochs": 3000},
        "no lookahead, 5 times the batch": {"lookahead_rounds": 0, "batch": 500},
        "no lookahead, more noise": {"lookahead_rounds": 0, "noise_start": 1.0},
        "no search": {"search_rounds": 0},
        "squash clip": {"squash": "clip"},
    },
    "navigation, oracle": {
        "default": ORACLE,
        "annealed": ORACLE | ANNEALED,
        "annealed, with lookahead": ORACLE | ANNEALED | {"lookahead_rounds": 8},
        "no lookahead": ORACLE | {"lookahead_rounds": 0},
        "no lookahead, 3 times the epochs": ORACLE | {"lookahead_rounds": 0, "epochs": 1800},
        "squash tanh": ORACLE | {"squash": "tanh"},
        "sees the clock, not the memory": ORACLE | {"observe": "clock"},
        "no search": ORACLE | {"search_rounds": 0},
    },
    "hvac": {"default": {}, "no lookahead": {"lookahead_rounds": 0}},
    "reservoir": {"default": {}, "no lookahead": {"lookahead_rounds": 0}},
}


@dataclass(frozen=True)
class Planned:
    """One plan, with these options in place of the default preset's."""

    domain: str
    options: Options
    seed: int

    def run(self, out: Path) -> Figures:
        name, oracle = self.domain.partition(",")[::2]
        model = sidestep.load_model(name)
        rule = sidestep.load_rule(None, model)
        key = jax.random.key(self.seed)
        if oracle:
            config = with_options(preset("default"), self.options)
            constraints = sidestep.parse_constraints([CONSTRAINT], rule.scale)
            depth = in_box((DIRTY_X[0], DIRTY_Y[0]), (DIRTY_X[1], DIRTY_Y[1]))
            policy = plan(model, CounterOracle(depth, (2, 4), 2, 2), constraints, config, key).policy
        else:
            config = with_options(preset("default"), self.options | {"constraint_gradient": "none"})
            policy = plan(model, None, (), config, key).policy
        trajectory = sidestep.rollout(model, policy.mean(), jax.random.key(1000 + self.seed), ROLLOUTS)
        returns, free = np.asarray(trajectory.returns()), np.asarray(rule.label(trajectory)) == 0
        found = {"return": float(returns.mean()), "error": float(returns.std() / np.sqrt(ROLLOUTS))}
        print(self.domain, self.options, self.seed, found, free.mean(), flush=True)
        return found | {"free": float(free.mean())}


def gap(domain: str, found: Figures) -> float:
    if domain in BEST:
        return BEST[domain] - float(found["return"])
    policies = json.loads((RESULTS / "frontier-policies.json").read_text())["rows"]
    if domain == "navigation":
        return float(policies[0]["return"]) - float(found["return"])
    return limit(policies, found["free"]) - float(found["return"])


def main() -> None:
    asking = parser(__doc__, "gap", first_seed=21)
    asking.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    asking.add_argument("--variants", nargs="+", help="names of variants; without it all of them")
    asked = asking.parse_args()
    jobs, names = [], []
    for domain in asked.only:
        for variant, options in VARIANTS[domain].items():
            if asked.variants and variant not in asked.variants:
                continue
            names.append((domain, variant))
            jobs += [
                Job(f"{domain}-{variant}-{seed}", Planned(domain, options, seed), group=f"{domain}-{variant}")
                for seed in seeds_of(asked)
            ]
    found, made = results(jobs, asked), commits(jobs, asked)
    count, rows = asked.seeds, []
    for index, (domain, variant) in enumerate(names):
        own = found[index * count : (index + 1) * count]
        gaps = [gap(domain, one) for one in own]
        rows.append(
            {
                "problem": domain,
                "variant": variant,
                "mean return": float(np.mean([one["return"] for one in own])),
                "worst return": min(one["return"] for one in own),
                "least free": min(one["free"] for one in own) if "oracle" in domain else None,
                "mean gap": float(np.mean(gaps)),
                "largest gap": max(gaps),
                "seeds": ", ".join(map(str, seeds_of(asked))),
                "commit": ", ".join(sorted(set(made[index * count : (index + 1) * count]))),
            }
        )
    about = heading("What the planner loses to the limit, by cause", list(seeds_of(asked)))
    del about["commit"], about["seeds"]  # each row has its own
    write_table(asked.out, "gap", merged(read_rows(asked.out / "gap.json"), rows, by=("problem", "variant")), about)


if __name__ == "__main__":
    main()
