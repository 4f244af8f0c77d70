"""The CUDA devices visible to this process, queried from NVIDIA's driver.

Graphs of other programs can thus be planned without torch; device numbers equal torch's, since
both follow ``CUDA_VISIBLE_DEVICES``.
"""

from __future__ import annotations

import ctypes
import re
import sys
from typing import Any, Final

from solver.model.devices import DEFAULT_DEVICE_CLASS, Device
from solver.model.errors import PartitionError
from solver.model.quantities import listed

_CLASS_OF: Final = {
    "H200": "h200-sxm",
    "H100 80GB HBM3": "h100-sxm",
    "A100-SXM4-80GB": "a100-80gb",
    "A100-SXM4-40GB": "a100-40gb",
    "A100-PCIE-40GB": "a100-40gb",
    "L40S": "l40s",
    "L4": "l4",
    "A10": "a10",
    "T4": "t4",
    "V100-SXM2-16GB": "v100",
    "V100-SXM2-32GB": "v100",
    "RTX 4090": "rtx-4090",
    "RTX 3090": "rtx-3090",
}
"""Classes by the driver's full name: MIG slices and cards of other form factors differ in speed."""
_BRANDS: Final = re.compile(r"^(NVIDIA |Tesla |GeForce )+")


def visible_devices(where: str, example: str) -> tuple[Device, ...]:
    """Return the devices with their class and their currently free memory.

    Identical cards of an unknown model have the class ``default``, with a generic speed. No device,
    or an unknown model beside another one, is refused in a message from `where` to `example`.
    """
    found = _names_and_memory()
    if not found:
        raise PartitionError(f"{where}: there is no CUDA device on this machine; {example}")
    names = [name for name, _ in found]
    classes = [_CLASS_OF.get(_BRANDS.sub("", name), DEFAULT_DEVICE_CLASS) for name in names]
    if DEFAULT_DEVICE_CLASS in classes and len(set(names)) > 1:
        unknown = [name for name in dict.fromkeys(names) if _BRANDS.sub("", name) not in _CLASS_OF]
        raise PartitionError(
            f"{where}: the devices are unlike, and no speed is known of {listed(unknown)}; "
            f"{example}"
        )
    return tuple(
        Device(f"cuda:{index}", memory_bytes, device_class)
        for index, (device_class, (_, memory_bytes)) in enumerate(zip(classes, found, strict=True))
    )


def _names_and_memory() -> list[tuple[str, int]]:
    """Return name and free bytes of each device; empty without a driver or device."""
    library = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return []
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    return [_name_and_memory(driver, index) for index in range(count.value)]


def _name_and_memory(driver: Any, index: int) -> tuple[str, int]:
    device, context = ctypes.c_int(), ctypes.c_void_p()
    name = ctypes.create_string_buffer(256)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()

    def call(function: str, *arguments: Any) -> None:
        if status := getattr(driver, function)(*arguments):
            raise PartitionError(
                f"CUDA device {index} does not answer ({function}: error {status}); write its "
                "memory, such as 24GB"
            )

    call("cuDeviceGet", ctypes.byref(device), index)
    call("cuDeviceGetName", name, len(name), device)
    # The driver reports free memory only within a context; torch uses the same primary context.
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        call("cuCtxPushCurrent_v2", context)
        call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        call("cuCtxPopCurrent_v2", ctypes.byref(context))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(device)
    return name.value.decode(errors="replace"), free.value
