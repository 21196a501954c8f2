"""The paper's experiments on Boxpushing."""

from sidestep.models.domain import Paper

PAPER = Paper(
    pair_labels=1716,  # the paper: about 1.7k
    query_budgets=(2000, 4000, 6000, 7000),
    trajectory_map="4",  # of our maps the one where the best plan breaks the rule most often
)
