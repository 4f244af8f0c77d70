# Type checkers trust no single file of an installed package (PEP 561), but its stubs.
from fx_bridge import *  # noqa: F403
from solver import *  # noqa: F403

__version__: str

def main() -> int: ...
def start_vllm() -> None: ...
