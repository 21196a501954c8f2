"""What the commands do, one module a group; `sidestep.cli` imports them when they are asked for."""
