"""Arrays against the plain tables and rules that they stand for."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from solver.model.arrays import Lists, link_ns, sums, unique_pairs
from solver.model.devices import Link
from tests.support.random_problems import random_problem


@given(
    st.lists(st.integers(0, 10**12), max_size=5),
    st.one_of(st.none(), st.integers(10**6, 10**18)),
    st.integers(0, 10**9),
)
def test_times_of_many_transfers_are_those_of_one(sizes, bandwidth, latency_ns):
    link = Link(bandwidth, latency_ns)
    found = link_ns(link, np.array(sizes, dtype=np.int64))
    assert found.tolist() == [link.transfer_ns(size) for size in sizes]


@given(st.lists(st.lists(st.integers(0, 99), max_size=4), min_size=1, max_size=6), st.data())
def test_pairs_list_every_value_of_the_items_asked_for(rows, data):
    items = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    first, second = Lists.of(rows).pairs(np.array(items, dtype=np.int64))
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == [
        (item, value) for item in items for value in rows[item]
    ]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 6)), max_size=12))
def test_unique_pairs_are_sorted_and_sums_are_complete(pairs):
    first, second = (np.array([p[i] for p in pairs], dtype=np.int64) for i in (0, 1))
    found = [entry.tolist() for entry in unique_pairs(first, second, 7)]
    assert list(zip(*found, strict=True)) == sorted(set(pairs))
    assert sums(first, second, 10).tolist() == [
        sum(b for a, b in pairs if a == group) for group in range(10)
    ]


def test_arrays_hold_what_the_problem_holds():
    for seed in range(60):
        problem = random_problem(seed)
        arrays = problem.arrays
        names = [op.name for op in problem.operators] + [g.name for g in problem.inputs]
        everything = np.arange(len(problem.operators), dtype=np.int64)
        reader, read = arrays.reads.pairs(everything)
        assert [(names[i], names[j]) for i, j in zip(reader, read, strict=True)] == [
            (op.name, name) for op in problem.operators for name in op.reads
        ]
        value, reader = arrays.readers.pairs(np.arange(len(names), dtype=np.int64))
        assert [(names[i], names[j]) for i, j in zip(value, reader, strict=True)] == [
            (name, other) for name in names for other in problem.readers_of[name]
        ]
        assert [names[root] for root in arrays.root] == [problem.root_of[name] for name in names]
        for device_class in {device.device_class for device in problem.devices}:
            assert arrays.latency_ns(device_class).tolist() == [
                op.latency_on(device_class)
                + (op.backward.latency_on(device_class) if problem.is_training else 0)
                for op in problem.operators
            ]
        own = [i for i, op in enumerate(problem.operators) if op.transfer_ns is not None]
        link, back = Link(3, 7), Link(5, 2)
        times = arrays.transfer_ns(everything, link, back).tolist()
        for index, op in enumerate(problem.operators):
            expected = op.transfer_ns
            if index not in own:
                expected = link.transfer_ns(op.value_bytes)
                if problem.is_training and op.backward.gradient_bytes:
                    expected += back.transfer_ns(op.backward.gradient_bytes)
            assert times[index] == expected
