"""`python -m recurra.cli`: the same as the command `recurra`."""

import sys

from recurra.cli import main

sys.exit(main())
