"""The command line: what can be asked for (`commands`), how it is read (`arguments`), and who does it."""
