"""Where the project's files are, for tests that read or run them."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
