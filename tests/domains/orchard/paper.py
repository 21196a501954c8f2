"""Settings for the preset `paper`."""

from sidestep.models.domain import Paper

PAPER = Paper(planner={"multiplier_start": 3.0})
