"""The command line: what can be asked for, and who does it."""
