"""Canonical matrices and their digests, from every format, equal to those of the program."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy
import pytest
import scipy.io
import scipy.sparse

import sparsetune
from conftest import PROGRAM, ROOT, random_csr


def program_digests(A: scipy.sparse.spmatrix, folder: Path) -> tuple[str, str]:
    file = folder / "a.npz"
    scipy.sparse.save_npz(file, A)
    said = subprocess.run(
        [*PROGRAM, "digest", "--json", str(file)], check=True, capture_output=True
    )
    answer = json.loads(said.stdout)
    return answer["digest"], answer["pattern_digest"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(40, 30), (1, 7), (33, 1), (5, 5)])
def test_digests_are_the_programs(tmp_path: Path, dtype: str, shape: tuple[int, int]) -> None:
    A = random_csr(*shape, 0.2, dtype=dtype)
    found = sparsetune.matrix(A)
    assert (found.digest, found.pattern_digest) == program_digests(A, tmp_path)
    assert found.shape == A.shape and found.nnz == A.nnz and found.was_canonical


def test_digest_of_a_file_is_that_of_scipys_reading() -> None:
    file = ROOT / "data" / "delaunay_n15.mtx.gz"
    A = scipy.io.mmread(file)
    said = subprocess.run(
        [*PROGRAM, "digest", "--json", str(file)], check=True, capture_output=True
    )
    assert sparsetune.matrix(A).digest == json.loads(said.stdout)["digest"]


def test_every_format_has_the_same_digest() -> None:
    A = random_csr(50, 40)
    expected = sparsetune.matrix(A).digest
    wide = A.copy()
    wide.indices, wide.indptr = wide.indices.astype(numpy.int64), wide.indptr.astype(numpy.int64)
    same = [
        A.tocsc(),
        A.tocoo(),
        A.tolil(),
        A.todok(),
        wide,
        scipy.sparse.csr_array(A),
        A.astype("float64"),
    ]
    for B in same:
        assert sparsetune.matrix(B).digest == expected, type(B)


def test_unsorted_entries_and_duplicates() -> None:
    rows, cols = numpy.array([2, 0, 0, 2, 0]), numpy.array([1, 2, 0, 1, 2])
    data = numpy.array([1.0, 2.0, 3.0, 4.0, 5.0])
    A = scipy.sparse.coo_matrix((data, (rows, cols)), shape=(3, 3))
    found = sparsetune.matrix(A)
    assert found.digest == sparsetune.matrix(A.tocsr()).digest
    assert (found.nnz, found.stored, found.was_canonical) == (3, 5, False)
    # New values come in the order of the arrays that the matrix was made from.
    assert found.values(data * 2).tolist() == [6.0, 14.0, 10.0]
    unsorted = scipy.sparse.csr_matrix(
        (numpy.array([1.0, 2.0]), numpy.array([2, 0]), numpy.array([0, 2])), shape=(1, 3)
    )
    pointers, columns, values = sparsetune.matrix(unsorted).arrays()
    assert (pointers.tolist(), columns.tolist(), values.tolist()) == ([0, 2], [0, 2], [2.0, 1.0])


def test_integers_booleans_and_empty_matrices() -> None:
    A = random_csr(20, 20)
    A.data = numpy.round(A.data * 4)
    expected = sparsetune.matrix(A).digest
    assert sparsetune.matrix(A.astype("int32")).digest == expected
    pattern = A.astype(bool)
    assert sparsetune.matrix(pattern).digest == sparsetune.matrix(pattern.astype("float32")).digest
    assert sparsetune.matrix(scipy.sparse.csr_matrix((4, 3))).nnz == 0


def test_what_is_refused() -> None:
    A = random_csr(5, 5)
    for bad, why in [
        (numpy.eye(3), "sparse matrix of SciPy, CuPy or PyTorch"),
        (A.astype("complex64"), "complex"),
        ("text", "not str"),
    ]:
        with pytest.raises(sparsetune.OperandError, match=why):
            sparsetune.matrix(bad)
    A.data[0] = numpy.nan
    with pytest.raises(sparsetune.OperandError, match="not finite"):
        sparsetune.matrix(A)
    A = random_csr(5, 5)
    A.indices[0] = 9
    with pytest.raises(sparsetune.OperandError, match="outside the 5 x 5 matrix"):
        sparsetune.matrix(A)
    with pytest.raises(sparsetune.OperandError, match="There are 3 values"):
        sparsetune.matrix(random_csr(5, 5)).values(numpy.zeros(3))


def test_torch_matrices() -> None:
    torch = pytest.importorskip("torch")
    A = random_csr(30, 20)
    expected = sparsetune.matrix(A).digest
    dense = torch.from_numpy(A.toarray())
    for B in [
        dense.to_sparse_csr(),
        dense.to_sparse_csc(),
        dense.to_sparse_coo(),
        dense.double().to_sparse_csr(),
    ]:
        assert sparsetune.matrix(B).digest == expected, B.layout
    uncoalesced = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2))
    assert sparsetune.matrix(uncoalesced).nnz == 1
