"""`python -m sidestep`."""

import sys

from sidestep.cli.main import main

sys.exit(main())
