#!/usr/bin/env python3
"""Writes the matrices of `benches/suites/unordered.toml`: meshes, nearest-neighbour graphs and communities whose numbering tells nothing.

    scripts/unordered.py FOLDER          then: sparsetune bench --suite benches/suites/unordered.toml --matrices FOLDER

Needs NumPy and SciPy. Each is drawn from a seed of its own, so that a file is the same everywhere with the same versions of both. The
generators of `sparsetune generate` number their meshes in good order, which is what these are not.
"""

import pathlib
import sys

import numpy as np
import scipy.sparse as sp
from scipy.io import mmwrite
from scipy.spatial import Delaunay, cKDTree


def shuffled(matrix, rng):
    """The same graph with its vertices numbered at random."""
    order = rng.permutation(matrix.shape[0])
    return matrix.tocsr()[order][:, order]


def grid(side):
    """The seven-point stencil of a cube."""
    line = sp.diags([np.ones(side - 1), np.ones(side), np.ones(side - 1)], [-1, 0, 1])
    one = sp.identity(side)
    far = line - one
    return sp.kron(sp.kron(line, one), one) + sp.kron(sp.kron(one, far), one) + sp.kron(sp.kron(one, one), far)


def neighbours(points, count):
    """Each point and its nearest others."""
    found = cKDTree(points).query(points, count, workers=-1)[1]
    rows = np.repeat(np.arange(len(points)), count)
    return sp.coo_matrix((np.ones(rows.size), (rows, found.ravel())), shape=(len(points),) * 2)


def simplices(points):
    """Points that share a simplex of the Delaunay triangulation, each with itself."""
    corners = Delaunay(points).simplices
    width = corners.shape[1]
    rows, cols = np.repeat(corners, width, axis=1).ravel(), np.tile(corners, (1, width)).ravel()
    matrix = sp.coo_matrix((np.ones(rows.size), (rows, cols)), shape=(len(points),) * 2).tocsr()
    matrix.data[:] = 1
    return matrix


def communities(count, size, entries, within, rng):
    """`entries` neighbours for each vertex, a share of them within its own community."""
    n = count * size
    rows = np.repeat(np.arange(n), entries)
    near = rows // size * size + rng.integers(size, size=rows.size)
    cols = np.where(rng.random(rows.size) < within, near, rng.integers(n, size=rows.size))
    matrix = sp.coo_matrix((np.ones(rows.size), (rows, cols)), shape=(n, n)).tocsr()
    matrix.data[:] = 1
    return matrix


MATRICES = {
    "grid3d_100": lambda rng: grid(100),
    "knn16_3d_3e5": lambda rng: neighbours(rng.random((300_000, 3)), 16),
    "tetrahedra_2e5": lambda rng: simplices(rng.random((200_000, 3))),
    "triangles_6e5": lambda rng: simplices(rng.random((600_000, 2))),
    "communities_2000x100": lambda rng: communities(2000, 100, 24, 0.85, rng),
}


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, draw) in enumerate(MATRICES.items()):
        rng = np.random.default_rng(seed)
        matrix = shuffled(draw(rng), rng).tocsr()
        matrix.data = np.round(0.1 + 0.8 * rng.random(matrix.nnz), 3)
        mmwrite(folder / f"{name}.mtx", matrix, precision=4, symmetry="general")
        print(f"{name}: {matrix.shape[0]} rows, {matrix.nnz} nonzeros")


if __name__ == "__main__":
    main()
