"""Device classes by their data sheets alone, for rows that keep the costs they were made with."""

from __future__ import annotations

from dataclasses import replace

from fx_bridge.costs.device_presets import DEVICE_SPECS
from fx_bridge.costs.device_specs import DeviceSpec

LAUNCH_NS = 5_000
"""Least time of a kernel."""


def data_sheet(name: str) -> DeviceSpec:
    """Return a preset with its peak rates, which no kernel attains."""
    return replace(
        DEVICE_SPECS[name].launched(LAUNCH_NS if DEVICE_SPECS[name].kernel_launch_ns else 0),
        kernel_launch_ns=0,
        attention_launch_ns=None,
        compute_efficiency=1.0,
        attention_efficiency=None,
        bandwidth_efficiency=1.0,
        source="the data sheet alone",
    )


DATA_SHEETS = {name: data_sheet(name) for name in DEVICE_SPECS}
