"""A GGUF file with the header of a real model, whose weights take no room on the disk.

    python benchmarks/sparse_gguf.py llama Q8_0

writes ``llama-Q8_0.gguf``, of the shapes of Llama-3-8B. The first two words are a model of
``tests/support/llama_cpp_models.py`` and a type of its matrices; ``Q4_K`` is mixed as in Q4_K_M.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.gguf_files import TYPES
from tests.support.llama_cpp_models import MODELS, write_model

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("type", choices=TYPES)
    parser.add_argument("--layers", type=int, help="as in the model if left out")
    given = parser.parse_args()
    sizes = {} if given.layers is None else {"layers": given.layers}
    print(write_model(Path(), given.model, given.type, **sizes))
