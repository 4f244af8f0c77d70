import random

import pytest

from experiments.pipelines.link_timing import SIZES, fit_link
from solver import Link, PartitionError


@pytest.mark.parametrize("bandwidth", [10**8, 3 * 10**9, 25 * 10**9])
@pytest.mark.parametrize("latency_ns", [500, 50_000])
def test_exact_times_give_the_link_back(bandwidth, latency_ns):
    link = Link(bandwidth, latency_ns)
    found = fit_link([(size, link.transfer_ns(size)) for size in SIZES])
    assert found.latency_ns == pytest.approx(latency_ns, rel=0.01)
    assert found.bandwidth_bytes_per_s == pytest.approx(bandwidth, rel=0.01)


def test_noise_of_a_tenth_moves_neither_by_more():
    draw = random.Random(0)
    link = Link(2 * 10**9, 40_000)
    samples = [(size, round(link.transfer_ns(size) * draw.uniform(0.9, 1.1))) for size in SIZES]
    found = fit_link(samples)
    assert found.latency_ns == pytest.approx(40_000, rel=0.1)
    assert found.bandwidth_bytes_per_s == pytest.approx(2 * 10**9, rel=0.1)


def test_a_latency_is_never_negative():
    link = fit_link([(1000, 1000), (2000, 3000), (4000, 8000)])
    assert link.latency_ns == 0
    assert 10**9 / 2 < link.bandwidth_bytes_per_s < 10**9


def test_times_that_do_not_grow_have_no_bandwidth():
    assert fit_link([(64, 5000), (1024, 5000)]) == Link(None, 5000)
    assert fit_link([(64, 6000), (1024, 5000)]).bandwidth_bytes_per_s is None


@pytest.mark.parametrize("samples", [[(64, 100)], [(64, 100), (64, 120)], [(64, 0), (128, 10)]])
def test_too_little_to_fit_says_so(samples):
    with pytest.raises(PartitionError, match="give positive times of at least two sizes"):
        fit_link(samples)
