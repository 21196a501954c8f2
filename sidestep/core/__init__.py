"""What everything speaks of: models, trajectories, scales and constraints, rules, records, errors."""
