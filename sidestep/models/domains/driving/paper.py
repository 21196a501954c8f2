"""The paper's experiments on Driving."""

from sidestep.models.domain import Paper

PAPER = Paper(
    planner={"multiplier_start": 4.0},  # a car gets around a puddle in a few steps; a box has a long way around a rug
    pair_labels=3616,  # the paper: about 3.5k
    query_budgets=(4000, 6000, 7000),
    trajectory_map="4",  # of our maps the one where the best plan breaks the rule most often
)
