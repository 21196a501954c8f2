"""The paper's experiments on Navigation."""

from sidestep.models.domain import Paper

PAPER = Paper(methods=("PPO", "MFGE", "MBGE"))
