"""Run a pipeline under torchrun: ``torchrun -m experiments.run_pipeline``."""

import sys

from experiments.run_pipeline.command import main

if __name__ == "__main__":
    sys.exit(main())
