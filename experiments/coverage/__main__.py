"""Print the table of captured models: ``python -m experiments.coverage``."""

import signal
import sys

from experiments.coverage.command import main, terminate

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, terminate)
    sys.exit(main())
