"""A two-layer graph convolutional network, trained with sparsetune and with PyTorch's own sparse
product.

    python gcn.py [GRAPH] [--device cuda] [--epochs 50] [--hidden 64] [--json]

GRAPH is a Matrix Market file (also gzip) or an npz of SciPy; without it the graph is
`data/delaunay_n15.mtx.gz` of this repository, the triangulation of 32,768 points in the plane. The
graph is real; labels and features are made up, since the collection has none: the label of a node
is the nearest of a few random seeds by number of hops (a planted community), and its features are
noise with a weak hint of the label. Both runs start from the same weights.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import numpy
import scipy.io
import scipy.sparse
import torch

import sparsetune

GRAPH = Path(__file__).resolve().parents[2] / "data" / "delaunay_n15.mtx.gz"


def read(path: Path) -> scipy.sparse.csr_matrix:
    if path.suffix == ".npz":
        return scipy.sparse.load_npz(path).tocsr()
    return scipy.sparse.csr_matrix(scipy.io.mmread(path))


def normalised(graph: scipy.sparse.csr_matrix) -> scipy.sparse.csr_matrix:
    """D^-1/2 (A + I) D^-1/2 of the symmetrised graph."""
    A = ((abs(graph) + abs(graph).T) > 0).astype("float32").tolil()
    A.setdiag(1)
    A = A.tocsr()
    scale = scipy.sparse.diags(numpy.asarray(A.sum(1)).ravel() ** -0.5)
    return (scale @ A @ scale).tocsr().astype("float32")


def planted(A: scipy.sparse.csr_matrix, classes: int, features: int, seed: int) -> Tuple[Any, Any]:
    """Labels by the nearest of `classes` random nodes, and features that are noise with a hint of
    the label."""
    rng = numpy.random.default_rng(seed)
    seeds = rng.choice(A.shape[0], classes, replace=False)
    hops = scipy.sparse.csgraph.dijkstra(A, unweighted=True, indices=seeds)
    labels = hops.argmin(0)
    hint = numpy.eye(classes, features)[labels]
    X = rng.standard_normal((A.shape[0], features)) + hint
    return X.astype("float32"), labels


def train(
    product: Callable[[Any], Any], X: Any, labels: Any, hidden: int, epochs: int, seed: int
) -> Tuple[List[float], List[float], float]:
    """Losses and seconds of each epoch, and the accuracy at the end."""
    torch.manual_seed(seed)
    classes = int(labels.max()) + 1
    first = torch.nn.Linear(X.shape[1], hidden).to(X.device)
    second = torch.nn.Linear(hidden, classes).to(X.device)
    # A product is tuned for its number of columns: the second layer is as wide as the first and
    # reads `classes` of it.
    optimiser = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01)
    waits = X.is_cuda

    def forward() -> Any:
        return second(product(torch.relu(product(first(X)))))

    losses, seconds = [], []
    for _ in range(epochs):
        begun = time.perf_counter()
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(forward(), labels)
        loss.backward()
        optimiser.step()
        if waits:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
        losses.append(float(loss.detach()))
    with torch.no_grad():
        accuracy = float((forward().argmax(1) == labels).float().mean())
    return losses, seconds, accuracy


def run(arguments: argparse.Namespace) -> Dict[str, Any]:
    A = normalised(read(arguments.graph))
    X, labels = planted(A, arguments.classes, arguments.features, arguments.seed)
    X, labels = (torch.from_numpy(part).to(arguments.device) for part in (X, labels))
    parts = (torch.from_numpy(part) for part in (A.indptr, A.indices, A.data))
    sparse = torch.sparse_csr_tensor(*parts, A.shape).to(arguments.device)

    sizes = (arguments.hidden, arguments.epochs, arguments.seed)
    theirs = train(lambda H: torch.sparse.mm(sparse, H), X, labels, *sizes)

    begun = time.perf_counter()
    options = {} if arguments.seconds is None else {"search": {"seconds": arguments.seconds}}
    product = sparsetune.spmm(sparse, arguments.hidden, wait=True, **options)
    # The adjacency is symmetric, but the example does what any A needs: dB = A^T dC.
    product.adjoint().wait()
    first = time.perf_counter() - begun
    ours = train(product, X, labels, *sizes)

    # The first epochs allocate and warm up.
    usual = lambda seconds: float(numpy.median(seconds[len(seconds) // 5 :]))  # noqa: E731
    saved = usual(theirs[1]) - usual(ours[1])
    return {
        "graph": arguments.graph.name,
        "nodes": A.shape[0],
        "entries": A.nnz,
        "device": arguments.device,
        "threads": torch.get_num_threads(),
        "torch_epoch_ms": 1e3 * usual(theirs[1]),
        "sparsetune_epoch_ms": 1e3 * usual(ours[1]),
        "speedup": usual(theirs[1]) / usual(ours[1]),
        "first_call_s": first,
        "break_even_epochs": None if saved <= 0 else int(numpy.ceil(first / saved)),
        "torch_loss": theirs[0][-1],
        "sparsetune_loss": ours[0][-1],
        "largest_loss_difference": float(numpy.abs(numpy.subtract(theirs[0], ours[0])).max()),
        "torch_accuracy": theirs[2],
        "sparsetune_accuracy": ours[2],
        "kernel_us": product.promise.median_us if product.promise else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graph", nargs="?", type=Path, default=GRAPH)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument(
        "--hidden", type=int, default=64, help="width of the hidden layer, and n of the product"
    )
    parser.add_argument("--features", type=int, default=32)
    parser.add_argument("--classes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="budget of the search")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = run(arguments)
    if arguments.json:
        print(json.dumps(found))
        return
    print(
        f"{found['graph']}: {found['nodes']} nodes, {found['entries']} entries, on {found['device']}\n"
    )
    print(f"{'':24}{'torch.sparse':>14}{'sparsetune':>14}")
    for name, key, form in [
        ("epoch, ms (median)", "epoch_ms", ".2f"),
        ("loss at the end", "loss", ".5f"),
        ("accuracy", "accuracy", ".1%"),
    ]:
        print(f"{name:24}{found['torch_' + key]:>14{form}}{found['sparsetune_' + key]:>14{form}}")
    breaks = found["break_even_epochs"]
    print(
        f"\n{found['speedup']:.2f} times as fast; both plans were there after {found['first_call_s']:.1f} s, "
        + ("which is never recovered" if breaks is None else f"recovered after {breaks} epochs")
        + f"; losses differ by at most {found['largest_loss_difference']:.1e}"
    )


if __name__ == "__main__":
    main()
