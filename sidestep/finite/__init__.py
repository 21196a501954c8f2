"""Exact methods for finite models: value iteration, the occupancy-measure LP, lexicographic planning."""
