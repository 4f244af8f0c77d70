"""Fitted rates: those that made the times, and those of this machine."""

import pytest
import torch

from fx_bridge.costs.calibration import Sample, calibrate, fitted
from fx_bridge.costs.device_specs import DeviceSpec

WORK = [(rows * 2 * 768 * 768, 4 * (2 * rows * 768 + 768 * 768)) for rows in (1, 8, 64, 512, 4096)]
COPIES = [(0, 8 * 2**power) for power in range(6, 26, 3)]


def samples_of(spec):
    works = [(*work, False) for work in (*WORK, *COPIES)] + [(*work, True) for work in WORK]
    times = [spec.latency_ns(flops, moved, "float32", fused) for flops, moved, fused in works]
    return [Sample(*work, ns) for work, ns in zip(works, times, strict=True)]


# Each value with each of another setting.
@pytest.mark.parametrize(
    ("launch_ns", "attention_ns", "flops_per_s", "share"),
    [
        (500, 9_000, 4 * 10**10, 0.4),
        (500, 9_000, 3 * 10**13, 1.0),
        (20_000, 4_000, 4 * 10**10, 1.0),
        (20_000, 4_000, 3 * 10**13, 0.4),
    ],
)
def test_the_rates_behind_exact_times_are_found(launch_ns, attention_ns, flops_per_s, share):
    launches = {"kernel_launch_ns": launch_ns, "attention_launch_ns": attention_ns}
    spec = DeviceSpec("d", flops_per_s, 3 * 10**10, attention_efficiency=share, **launches)
    found = fitted("d", samples_of(spec), "cpu", "float32", "computed")
    for sample in samples_of(spec):
        work = sample.flops, sample.moved_bytes
        predicted = found.latency_ns(*work, "float32", sample.is_attention)
        assert predicted == pytest.approx(sample.ns, rel=0.06)


def test_the_host_of_an_accelerator_has_the_least_time():
    spec = DeviceSpec("d", 10**13, 10**12, 12_000, kernel_launch_ns=3_000)
    found = fitted("d", samples_of(spec), "cuda", "float32", "computed")
    assert (found.launch_overhead_ns, found.backward_overhead_ns) == (12_000, 24_000)
    expected_ns = spec.latency_ns(*WORK[-1], "float32")
    assert found.latency_ns(*WORK[-1], "float32") == pytest.approx(expected_ns, rel=0.06)


def test_this_machine_is_measured():
    spec = calibrate("here", "cpu", torch.float32)
    assert spec.device_type == "cpu"
    assert spec.source == "34 operators measured on this machine"
    # From a small board to a large server.
    assert 10**9 < spec.flops_per_s_of("float32") < 10**14
    assert 10**9 < spec.memory_bandwidth_bytes_per_s < 10**12
