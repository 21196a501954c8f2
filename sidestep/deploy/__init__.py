"""Using what a run found: load it, act, monitor, export the policy."""
