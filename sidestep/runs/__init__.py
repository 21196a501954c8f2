"""A run's folder: its files and records, its lock, and whose code may be executed."""
