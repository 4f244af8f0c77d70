"""Negative parts of symmetric matrices that change little from one to the next."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_FRESH_UNTIL = 20
_FRESH_EVERY = 10
"""The first matrices, and one of several later, are decomposed as a whole."""
_SMALL = 200
"""Rows up to which all are: that takes two milliseconds."""
_DEGREE = 8
_SPARE = 25
"""Directions that are followed beyond those with negative values."""
_TOP_STEPS = 3
_TOP_MARGIN = 1.1
"""Steps of the power method for the largest eigenvalue, and by how much it may be missed."""


class NegativePart:
    """Follows the eigenvectors of negative eigenvalues from one matrix to the next.

    A Chebyshev polynomial that is small on all positive eigenvalues pulls the last vectors towards
    the new ones (Y. Zhou, Y. Saad, M. Tiago and J. Chelikowsky, "Self-consistent-field calculations
    using Chebyshev-filtered subspace iteration", J. Comp. Phys. 219, 2006). With 1,000 rows and 90
    vectors that takes a fifth of the time of a whole decomposition. Directions that are new among
    the negative ones are found by the next whole one.
    """

    def __init__(self) -> None:
        self._asked = 0
        self._followed = np.zeros((0, 0))
        self._top = np.zeros(0)

    def root(self, matrix: Floats) -> Floats:
        """Return a matrix B so that B B^T is, nearly, the negative part of `matrix`.

        Parameters
        ----------
        matrix : Floats
            Symmetric, of the same size each time.

        Returns
        -------
        Floats
            As many rows, and a column for each negative eigenvalue. `matrix` + B B^T has no
            negative eigenvalues, but for small ones where vectors were followed.
        """
        self._asked += 1
        count = len(matrix)
        whole = self._asked <= _FRESH_UNTIL or not self._asked % _FRESH_EVERY
        if whole or count <= _SMALL:
            values, vectors = np.linalg.eigh(matrix)
            self._top = vectors[:, -1]
        else:
            basis = self._filtered(matrix)
            values, inner = np.linalg.eigh(basis.T @ (matrix @ basis))
            vectors = basis @ inner
        below = int(np.searchsorted(values, 0.0))
        self._followed = vectors[:, : below + _SPARE]
        root: Floats = vectors[:, :below] * np.sqrt(-values[:below])
        return root

    def _filtered(self, matrix: Floats) -> Floats:
        """Return an orthonormal basis of what the filter makes of the followed vectors."""
        top, largest = self._top, 1.0
        for _ in range(_TOP_STEPS):
            image = matrix @ top
            largest = max(float(np.linalg.norm(image)), np.finfo(np.float64).tiny)
            top = image / largest
        self._top = top
        # The interval from 0 to the top becomes that from -1 to 1.
        half = 0.5 * _TOP_MARGIN * largest
        before, now = self._followed, matrix @ self._followed / half - self._followed
        for _ in range(_DEGREE - 1):
            before, now = now, 2.0 * (matrix @ now / half - now) - before
        basis: Floats = np.linalg.qr(now)[0]
        return basis
