"""Negative parts of matrices that change slowly, against whole decompositions."""

import numpy as np
import pytest

from solver.bounds.semidefinite import negative_part
from solver.bounds.semidefinite.negative_part import NegativePart


def exact(matrix):
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.minimum(values, 0.0)) @ vectors.T


def changing_matrices(count, steps, seed):
    """Symmetric matrices with a tenth of negative eigenvalues, of which some come and go."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((count, count)))
    values = rng.uniform(0.2, 4.0, count)
    values[: count // 10] = rng.uniform(-2.0, -0.1, count // 10)
    for _ in range(steps):
        turn = rng.standard_normal((count, count)) * 3e-3
        basis, _ = np.linalg.qr(basis + (turn - turn.T) @ basis)
        values += rng.normal(0.0, 0.01, count)
        matrix = (basis * values) @ basis.T
        yield 0.5 * (matrix + matrix.T)


@pytest.mark.parametrize("count", [60, 240])
def test_roots_are_those_of_whole_decompositions(count, monkeypatch):
    monkeypatch.setattr(negative_part, "_FRESH_UNTIL", 3)
    followed = NegativePart()
    wholes = []
    eigh = np.linalg.eigh

    def counted(matrix):
        wholes.append(len(matrix) == count)
        return eigh(matrix)

    for matrix in changing_matrices(count, 40, seed=count):
        monkeypatch.setattr(np.linalg, "eigh", counted)
        root = followed.root(matrix)
        monkeypatch.setattr(np.linalg, "eigh", eigh)
        part = exact(matrix)
        assert np.linalg.norm(root @ root.T + part) < 0.003 * np.linalg.norm(part)
        assert np.linalg.eigvalsh(matrix + root @ root.T)[0] > -0.003
    # Small matrices are decomposed each time, large ones at first and now and then.
    assert sum(wholes) == (40 if count == 60 else 7)


def test_a_matrix_without_negative_eigenvalues_has_an_empty_root():
    followed = NegativePart()
    for scale in (1.0, 2.0):
        root = followed.root(np.eye(5) * scale)
        assert root.shape == (5, 0)
