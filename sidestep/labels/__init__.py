"""Rules that label, the store of labelled trajectories, and what goes in and out of it."""
