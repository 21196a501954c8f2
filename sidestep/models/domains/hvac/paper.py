"""The paper's experiments on HVAC."""

from sidestep.models.domain import Paper

PAPER = Paper(
    methods=("PPO", "MBGE"),
    planner={  # a step out of its band costs a room 20,000
        "constraint_clip": 0.5,
        "entropy": 0.01,
        "multiplier_start": 1.2e5,
        "multiplier_rate": 0.005,
        "multiplier_max": 1e7,
        "margin": 0.4,
    },
)
