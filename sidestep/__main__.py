"""`python -m sidestep`."""

import sys

from sidestep.cli import main

sys.exit(main())
