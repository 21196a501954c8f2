"""Driving's rules: the worst step counts, or the share of dangerous steps."""

from functools import partial

from sidestep.models.grid_rules import markov, share

RULES = {"paper": markov, "share": partial(share, tells_completion=False)}
