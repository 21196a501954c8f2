"""Learned safety models: what a labelled trajectory teaches about the trajectories to come."""
