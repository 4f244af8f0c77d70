"""A build of llama.cpp on this machine, with RPC servers on loopback as its devices."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BUILD = """\
pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36   # has the source of llama.cpp
tar xf llama_cpp_python-0.3.36.tar.gz
cmake -S llama_cpp_python-0.3.36/vendor/llama.cpp -B build -DGGML_RPC=ON -DGGML_NATIVE=OFF \\
    -DLLAMA_CURL=OFF -DCMAKE_BUILD_TYPE=Release
cmake --build build --target llama-fit-params ggml-rpc-server     # a C++ compiler, 25 minutes
"""
"""How to build what the comparison needs."""
MIB = 2**20


@dataclass(frozen=True)
class Answer:
    """What the engine says of a line.

    Attributes
    ----------
    devices : tuple of str
        Device of each layer, and last of the output.
    rows : tuple of tuple
        Device, and MiB for weights, caches and the compute buffer, without fractions.
    compute : dict of str to float
        MiB of compute buffers, with fractions.
    overridden : dict of str to str
        Buffers of the tensors that ``-ot`` and its like place.
    """

    devices: tuple[str, ...]
    rows: tuple[tuple[str, int, int, int], ...]
    compute: dict[str, float]
    overridden: dict[str, str]


class Engine:
    """The programs in a folder, and the servers that they use."""

    def __init__(self, binaries: Path, endpoints: Sequence[str]) -> None:
        self.program = binaries / "llama-fit-params"
        self.endpoints = tuple(endpoints)
        self.free_mib = self._free_mib()
        said = subprocess.run([self.program, "--version"], capture_output=True, text=True)
        self.build = re.findall(r"commit \w+|\(\w+\)", said.stdout + said.stderr)[0]

    def run(self, model: Path, words: Sequence[object], devices: int = 2) -> str:
        """Return all that the program prints."""
        rpc = ",".join(self.endpoints[:devices])
        line = [str(self.program), "-m", str(model), "--rpc", rpc, *map(str, words)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(line)}: {done.stderr[-500:]}")
        return done.stdout + done.stderr

    def ask(self, model: Path, words: Sequence[object], devices: int = 2) -> Answer:
        """Return what the engine says of a line. Without repacking, all of the host counts."""
        for _ in range(3):
            said = self.run(model, [*words, "-fitp", "on", "-lv", "5", "--no-repack"], devices)
            found = re.findall(r"^(RPC\d|Host) (\d+) (\d+) (\d+) ?$", said, re.MULTILINE)
            compute = re.findall(r"sched_reserve: +(\S+) compute buffer size = +([\d.]+)", said)
            # Its log may lose lines. A device without a layer has no buffer.
            if len(compute) == len(found):
                break
        placed = re.findall(r"tensor (\S+) \(.*\) buffer type overridden to (\S+)", said)
        return Answer(
            tuple(re.findall(r"layer +\d+ assigned to device (\w+),", said)),
            tuple((name, *map(int, sizes)) for name, *sizes in found),
            {self.device(name): float(size) for name, size in compute},
            {name: self.device(place) for name, place in placed},
        )

    def device(self, buffer: str) -> str:
        """Return the device of a buffer such as ``RPC0[127.0.0.1:50052]``."""
        numbers = [n for n, endpoint in enumerate(self.endpoints) if endpoint in buffer]
        return f"RPC{numbers[0]}" if numbers else "CPU"

    def fit(
        self, model: Path, capacities_mib: Sequence[int], words: Sequence[str] = ()
    ) -> list[str]:
        """Return the words that ``--fit`` finds beside others for devices with some memory."""
        margins = ",".join(str(self.free_mib - capacity) for capacity in capacities_mib)
        said = self.run(model, [*words, "-fitt", margins], len(capacities_mib))
        return shlex.split(next(line for line in said.splitlines() if line.startswith("-c ")))

    def _free_mib(self) -> int:
        """Return the free memory that each server reports."""
        said = subprocess.run(
            [self.program, "--rpc", self.endpoints[0], "--list-devices"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        return int(re.findall(r"RPC0:.*, (\d+) MiB free", said)[0])


@contextmanager
def engine(binaries: Path, servers: int = 2) -> Iterator[Engine]:
    """Yield the engine with some devices."""
    if not (binaries / "llama-fit-params").exists():
        raise SystemExit(f"{binaries} has no llama-fit-params; build it:\n\n{BUILD}")
    ports = [_free_port() for _ in range(servers)]
    running = [
        subprocess.Popen(
            [binaries / "ggml-rpc-server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for port in ports
    ]  # fmt: skip
    try:
        for port in ports:
            _wait_for(port)
        yield Engine(binaries, [f"127.0.0.1:{port}" for port in ports])
    finally:
        for server in running:
            server.terminate()
            server.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _wait_for(port: int) -> None:
    for _ in range(100):
        with socket.socket() as trial:
            if not trial.connect_ex(("127.0.0.1", port)):
                return
        time.sleep(0.05)
    raise SystemExit(f"ggml-rpc-server does not answer on port {port}")
