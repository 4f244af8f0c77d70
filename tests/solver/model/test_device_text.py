"""Devices as text: `tests/experiments/problems/test_devices.py` has what its grammar refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networkx as nx
import pytest

from solver import Device, Operator, PartitionError, PartitionProblem, problem_from_digraph
from solver.model import cuda_driver
from solver.model.device_text import as_devices

PAIR = (Device("cuda:0", 24 * 10**9, "rtx-4090"), Device("cuda:1", 12 * 10**9))


def test_problems_take_devices_as_text() -> None:
    graph = nx.DiGraph()
    graph.add_node("a", latency_ns=3)
    assert problem_from_digraph(graph, "24GB@rtx-4090,12GB").devices == PAIR
    problem = PartitionProblem((Operator("a", 3),), "24GB@rtx-4090,12GB")  # type: ignore[arg-type]
    assert problem.devices == PAIR
    assert problem.replace(devices="12GB").devices == (Device("cuda:0", 12 * 10**9),)
    assert as_devices(iter(PAIR)) == PAIR
    with pytest.raises(PartitionError, match=r"only the command reads files .* in Costs"):
        as_devices("devices.toml")


def test_auto_says_what_to_write_where_no_device_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "_names_and_memory", list)
    with pytest.raises(
        PartitionError, match=r"^devices 'auto': there is no CUDA device .*; write for [^\n]*$"
    ):
        as_devices("auto")


def test_auto_has_the_class_and_the_free_memory_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [("NVIDIA GeForce RTX 4090", 24 * 10**9), ("Tesla T4", 7)]
    monkeypatch.setattr(cuda_driver, "_names_and_memory", lambda: found)
    assert as_devices(" Auto ") == (PAIR[0], Device("cuda:1", 7, "t4"))
    # A part of a card, or a laptop's, is another device, whose speed is not known.
    found[1] = ("NVIDIA GeForce RTX 4090 Laptop GPU", 7)
    with pytest.raises(PartitionError, match="no speed is known of NVIDIA GeForce RTX 4090 Laptop"):
        as_devices("auto")
    del found[0]
    assert as_devices("auto") == (Device("cuda:0", 7),)


class Driver:
    """Stands for NVIDIA's driver, of one device."""

    def __init__(self) -> None:
        self.contexts = 0

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return flags

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.contexts += {"cuDevicePrimaryCtxRetain": 1, "cuCtxPushCurrent_v2": 1}.get(name, 0)
            self.contexts -= name.startswith(("cuDevicePrimaryCtxRelease", "cuCtxPop"))
            if name == "cuDeviceGetCount":
                arguments[0]._obj.value = 1
            elif name == "cuDeviceGetName":
                arguments[0].value = b"NVIDIA L4"
            elif name == "cuMemGetInfo_v2":
                arguments[0]._obj.value, arguments[1]._obj.value = 5, 9
            return 0

        return call


def test_the_driver_is_asked_for_free_memory_and_left_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver()
    monkeypatch.setattr(cuda_driver.ctypes, "CDLL", lambda _: driver)
    assert as_devices("auto") == (Device("cuda:0", 5, "l4"),)
    assert driver.contexts == 0
    driver.cuDeviceGetName = lambda *_: 999  # type: ignore[method-assign,assignment]
    with pytest.raises(PartitionError, match=r"CUDA device 0 does not answer .*error 999"):
        as_devices("auto")
    driver.cuInit = lambda _: 100  # type: ignore[method-assign]
    with pytest.raises(PartitionError, match="there is no CUDA device"):
        as_devices("auto")


@pytest.mark.gpu
def test_auto_is_what_torch_sees() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    devices = as_devices("auto")
    assert [device.name for device in devices] == [
        f"cuda:{index}" for index in range(torch.cuda.device_count())
    ]
    for index, device in enumerate(devices):
        free_bytes, total_bytes = torch.cuda.mem_get_info(index)
        assert device.memory_bytes is not None
        assert 0.9 * free_bytes <= device.memory_bytes <= total_bytes
