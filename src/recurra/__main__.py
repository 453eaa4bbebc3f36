"""`python -m recurra`: the same as the command `recurra`."""

import sys

from recurra.cli import main

if __name__ == "__main__":
    sys.exit(main())
