"""PyTorch on the CPU: values, gradients, compiled programs."""

from __future__ import annotations

import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import sparsetune  # noqa: E402
from sparsetune.torch import SparseLinear  # noqa: E402
from conftest import random_csr, triangle  # noqa: E402

QUICK: dict[str, Any] = {"top_k": 2, "seconds": 5}


def matrix(rows: int, cols: int, dtype: str = "float32") -> Any:
    return torch.from_numpy(random_csr(rows, cols, 0.2, dtype=dtype).toarray()).to_sparse_csr()


@pytest.mark.parametrize("layout", ["row", "col"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
def test_products(layout: str, dtype: str, kind: str) -> None:
    A = matrix(30, 20, dtype)
    dense = A.to_dense()
    given = {"csr": A, "csc": dense.to_sparse_csc(), "coo": dense.to_sparse_coo()}[kind]
    f = sparsetune.spmm(given, n=7, layout=layout, tune=False)
    B = torch.randn(20, 7, dtype=dense.dtype)
    B = B if layout == "row" else B.t().contiguous().t()
    C = f(B)
    assert torch.allclose(C, dense @ B, rtol=1e-4, atol=1e-5) and C.dtype == dense.dtype
    assert (C if layout == "row" else C.t()).is_contiguous()
    out = torch.empty_like(C)
    assert f(B, out=out) is out and torch.equal(out, C)


@pytest.mark.parametrize("layout", ["row", "col"])
@pytest.mark.parametrize("tuned", [False, True])
def test_the_gradient_is_a_product_with_the_transpose(layout: str, tuned: bool) -> None:
    A = matrix(30, 20)
    f = sparsetune.spmm(A, n=5, layout=layout, tune=tuned, wait=tuned, search=QUICK)
    start = torch.randn(20, 5) if layout == "row" else torch.randn(5, 20).t()
    ours, theirs = start.clone().requires_grad_(), start.clone().requires_grad_()
    weight = torch.randn(30, 5)
    (f(ours) * weight).sum().backward()
    ((A.to_dense() @ theirs) * weight).sum().backward()
    assert torch.allclose(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_gradient_of_a_wider_result_has_the_operands_type(dtype: torch.dtype) -> None:
    A = matrix(30, 20)
    f = sparsetune.spmm(A, n=5, dtype=dtype, output="f32", tune=False)
    B = torch.randn(20, 5, dtype=dtype, requires_grad=True)
    C = f(B)
    assert C.dtype is torch.float32
    C.sum().backward()
    expected = A.to_dense().t() @ torch.ones(30, 5)
    assert B.grad.dtype is dtype
    off = 2e-3 if dtype is torch.float16 else 2e-2
    assert torch.allclose(B.grad.float(), expected, rtol=off, atol=off)


@pytest.mark.parametrize("layout", ["row", "col"])
def test_a_matrix_in_bfloat16_multiplies_in_it(layout: str) -> None:
    A = matrix(30, 20).to(torch.bfloat16)
    f = sparsetune.spmm(A, n=5, layout=layout, tune=False)
    assert f.problem["dtype"] == "bf16"
    B = torch.randn(20, 5) if layout == "row" else torch.randn(5, 20).t()
    B = B.to(torch.bfloat16)
    C = f(B)
    assert C.dtype is torch.bfloat16
    expected = A.to_dense().float() @ B.float()
    assert torch.allclose(C.float(), expected, rtol=1e-2, atol=1e-2)
    with pytest.raises(sparsetune.OperandError, match="bfloat16"):
        f(B.float())


def test_gradients_by_finite_differences() -> None:
    A = matrix(9, 8, "float64")
    f = sparsetune.spmm(A, n=3, tune=False)
    B = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(f, (B,)) and torch.autograd.gradgradcheck(f, (B,))
    T = torch.from_numpy(triangle(8).toarray()).to_sparse_csr()
    solve = sparsetune.sptrsv(T, tune=False)
    b = torch.randn(8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(solve, (b,))
    assert torch.allclose(T.to_dense() @ solve(b), b)


def test_the_values_have_no_gradient() -> None:
    A = matrix(9, 8).requires_grad_()
    with pytest.raises(sparsetune.OperandError, match="SDDMM"):
        sparsetune.spmm(A, n=3)
    f = sparsetune.spmm(matrix(9, 8), n=3, tune=False)
    B = torch.randn(8, 3, requires_grad=True)
    with pytest.raises(sparsetune.OperandError, match="no gradient"):
        f(B, out=torch.empty(9, 3))
    assert torch.allclose(f(B, alpha=2.0), 2 * f(B))
    assert torch.allclose(f(B, beta=0.0), f(B))
    with pytest.raises(sparsetune.OperandError, match="`beta` has no gradient"):
        f(B, beta=1.0)
    with torch.no_grad():
        f(B, out=torch.empty(9, 3))


@pytest.mark.parametrize("layout", ["row", "col"])
def test_the_backward_pass_outlives_the_operator(layout: str) -> None:
    A = matrix(30, 20)

    def layer(B: Any) -> Any:
        return sparsetune.spmm(A, n=5, layout=layout, tune=False)(B)

    start = torch.randn(20, 5) if layout == "row" else torch.randn(5, 20).t()
    B = start.requires_grad_()
    C = layer(B)
    gc.collect()
    C.sum().backward()
    assert torch.allclose(B.grad, A.to_dense().t() @ torch.ones(30, 5), rtol=1e-4, atol=1e-5)


def test_an_operator_that_is_gone_is_said() -> None:
    for call in (torch.ops.sparsetune.spmm, torch.ops.sparsetune.sptrsv):
        for device in ("cpu", "meta"):
            with pytest.raises(sparsetune.OperandError, match="no longer exists"):
                call(torch.empty(20, 5, device=device), "gone", False)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_under_torch_compile(backend: str) -> None:
    A = matrix(30, 20)
    f = sparsetune.spmm(A, n=5, tune=False)

    @torch.compile(fullgraph=True, backend=backend)
    def step(B: Any) -> Any:
        return torch.relu(f(B)).sum()

    B = torch.randn(20, 5, requires_grad=True)
    value = step(B)
    value.backward()
    found, B.grad = B.grad, None
    expected = torch.relu(A.to_dense() @ B).sum()
    expected.backward()
    assert torch.allclose(value, expected, rtol=1e-4)
    assert torch.allclose(found, B.grad, rtol=1e-4, atol=1e-5)


def test_the_operators_are_well_formed() -> None:
    f = sparsetune.spmm(matrix(30, 20), n=5, tune=False)
    B = torch.randn(20, 5, requires_grad=True)
    torch.library.opcheck(torch.ops.sparsetune.spmm.default, (B, f._name, False))


def test_a_pruned_layer() -> None:
    dense = torch.nn.Linear(40, 24)
    with torch.no_grad():
        dense.weight *= torch.rand(24, 40) < 0.2
    pruned = SparseLinear(dense.weight, batch=6, bias=dense.bias, tune=False)
    x = torch.randn(2, 3, 40, requires_grad=True)
    assert torch.allclose(pruned(x), dense(x), rtol=1e-4, atol=1e-5)
    pruned(x).sum().backward()
    found, x.grad = x.grad, None
    dense(x).sum().backward()
    assert torch.allclose(found, x.grad, rtol=1e-4, atol=1e-5)


def test_operands_that_are_refused() -> None:
    A = matrix(30, 20)
    f = sparsetune.spmm(A, n=5, tune=False)
    B = torch.randn(20, 5)
    for bad, why in [
        (B[:, :4], "20 x 5"),
        (B.double(), "float64"),
        (B.t().contiguous().t(), "strided"),
        (B.to_sparse_csr(), "sparse"),
    ]:
        with pytest.raises(sparsetune.OperandError, match=why):
            f(bad)
    with pytest.raises(sparsetune.OperandError, match="30 x 5"):
        f(B, out=torch.empty(3, 5))
    with pytest.raises(sparsetune.OperandError, match="PyTorch"):
        sparsetune.linear_operator(A)
