"""The command `python -m benchmarks.looptune`, which is also `recurra tune figures`."""

import sys
from collections.abc import Sequence
from functools import partial

from benchmarks.looptune.command import Figures
from recurra import cli


def main(words: Sequence[str]) -> int:
    """The exit code of the command."""
    return cli.exit_code(partial(cli.run, Figures, "python -m benchmarks.looptune", words))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
