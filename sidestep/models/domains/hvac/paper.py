"""The paper's experiments on HVAC."""

from sidestep.models.domain import Paper

PAPER = Paper(methods=("PPO", "MBGE"))
