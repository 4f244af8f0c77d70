"""Fitted rates: those that made the times, and those of this machine."""

import pytest
import torch

from fx_bridge.costs.calibration import Sample, calibrate, fitted
from fx_bridge.costs.device_specs import DeviceSpec

WORK = [(rows * 2 * 768 * 768, 4 * (2 * rows * 768 + 768 * 768)) for rows in (1, 8, 64, 512, 4096)]
COPIES = [(0, 8 * 2**power) for power in range(6, 26, 3)]


def samples_of(spec):
    return [
        Sample(flops, moved, fused, spec.latency_ns(flops, moved, "float32", fused))
        for flops, moved, fused in [
            *((*work, False) for work in (*WORK, *COPIES)),
            *((*work, True) for work in WORK),
        ]
    ]


@pytest.mark.parametrize(("launch_ns", "attention_ns"), [(500, 9_000), (20_000, 4_000)])
@pytest.mark.parametrize("flops_per_s", [4 * 10**10, 3 * 10**13])
@pytest.mark.parametrize("share", [0.4, 1.0])
def test_the_rates_behind_exact_times_are_found(launch_ns, attention_ns, flops_per_s, share):
    spec = DeviceSpec(
        "d", flops_per_s, 3 * 10**10, kernel_launch_ns=launch_ns,
        attention_launch_ns=attention_ns, attention_efficiency=share,
    )  # fmt: skip
    found = fitted("d", samples_of(spec), "cpu", "float32", "computed")
    for sample in samples_of(spec):
        predicted = found.latency_ns(
            sample.flops, sample.moved_bytes, "float32", sample.is_attention
        )
        assert predicted == pytest.approx(sample.ns, rel=0.06)


def test_the_host_of_an_accelerator_has_the_least_time():
    spec = DeviceSpec("d", 10**13, 10**12, 12_000, kernel_launch_ns=3_000)
    found = fitted("d", samples_of(spec), "cuda", "float32", "computed")
    assert (found.launch_overhead_ns, found.backward_overhead_ns) == (12_000, 24_000)
    assert found.latency_ns(*WORK[-1], "float32") == pytest.approx(
        spec.latency_ns(*WORK[-1], "float32"), rel=0.06
    )


def test_this_machine_is_measured():
    spec = calibrate("here", "cpu", torch.float32)
    assert spec.device_type == "cpu"
    assert spec.source == "34 operators measured on this machine"
    # From a small board to a large server.
    assert 10**9 < spec.flops_per_s_of("float32") < 10**14
    assert 10**9 < spec.memory_bandwidth_bytes_per_s < 10**12
