"""Print the table of captured models: ``python -m experiments.coverage``."""

import sys

from experiments.coverage.command import main

if __name__ == "__main__":
    sys.exit(main())
