"""`python -m sidestep`."""

import sys

from sidestep.cli.main import program

sys.exit(program())
