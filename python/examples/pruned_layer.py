"""Inference of a pruned linear layer, beside the dense layer and PyTorch's own sparse product.

    python pruned_layer.py [--device cuda] [--in 1024] [--out 4096] [--batch 64] [--density 0.1] [--json]

The weights are random and pruned by magnitude, as a whole; a pruned model's weights go the same way
(`SparseLinear(layer.weight, batch, layer.bias)`).
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any, Callable, Dict

import torch

from sparsetune.torch import SparseLinear


def median_us(call: Callable[[], Any], device: str, seconds: float = 1.0) -> float:
    """Median time of a call, in microseconds; on a GPU of several calls back to back."""
    batch = 20 if device == "cuda" else 1
    times, begun = [], time.perf_counter()
    for _ in range(3):
        call()
    while len(times) < 5 or time.perf_counter() - begun < seconds:
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(batch):
            call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / batch)
    return 1e6 * sorted(times)[len(times) // 2]


def run(arguments: argparse.Namespace) -> Dict[str, Any]:
    torch.manual_seed(arguments.seed)
    dense = torch.nn.Linear(arguments.inputs, arguments.outputs)
    with torch.no_grad():
        kept = int(arguments.density * dense.weight.numel())
        threshold = dense.weight.abs().flatten().kthvalue(dense.weight.numel() - kept).values
        dense.weight *= dense.weight.abs() > threshold
    dense = dense.to(arguments.device)
    x = torch.randn(arguments.batch, arguments.inputs, device=arguments.device)
    with torch.no_grad():
        begun = time.perf_counter()
        options = {} if arguments.seconds is None else {"search": {"seconds": arguments.seconds}}
        pruned = SparseLinear(dense.weight, arguments.batch, dense.bias, wait=True, **options)
        first = time.perf_counter() - begun
        pruned = pruned.to(arguments.device)
        weight = dense.weight.to_sparse_csr()
        exact = torch.nn.functional.linear(x.double(), dense.weight.double(), dense.bias.double())
        error = float((pruned(x) - exact).abs().max() / exact.abs().max())
        times = {
            "dense_us": median_us(lambda: dense(x), arguments.device),
            "torch_us": median_us(lambda: (weight @ x.t()).t() + dense.bias, arguments.device),
            "sparsetune_us": median_us(lambda: pruned(x), arguments.device),
        }
    saved = 1e-6 * (min(times["dense_us"], times["torch_us"]) - times["sparsetune_us"])
    return {
        "in": arguments.inputs,
        "out": arguments.outputs,
        "batch": arguments.batch,
        "density": pruned.product.matrix.nnz / dense.weight.numel(),
        "device": arguments.device,
        **times,
        "speedup": min(times["dense_us"], times["torch_us"]) / times["sparsetune_us"],
        "error": error,
        "first_call_s": first,
        "break_even_calls": None if saved <= 0 else int(first / saved) + 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--in", dest="inputs", type=int, default=1024)
    parser.add_argument("--out", dest="outputs", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--density", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="budget of the search")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = run(arguments)
    if arguments.json:
        print(json.dumps(found))
        return
    print(
        f"{found['in']} -> {found['out']}, batch {found['batch']}, {found['density']:.1%} of the weights, "
        f"on {found['device']}\n"
    )
    for name, key in (
        ("dense", "dense_us"),
        ("torch.sparse", "torch_us"),
        ("sparsetune", "sparsetune_us"),
    ):
        print(f"{name:16}{found[key]:>12.1f} us")
    breaks = found["break_even_calls"]
    print(
        f"\n{found['speedup']:.2f} times as fast as the faster of the two; largest error {found['error']:.1e}; the plan was "
        f"there after {found['first_call_s']:.1f} s, "
        + ("which is never recovered" if breaks is None else f"recovered after {breaks} calls")
    )


if __name__ == "__main__":
    main()
