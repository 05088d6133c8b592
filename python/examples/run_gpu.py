"""Runs the examples and a folder of bundles on a GPU, with no service.

    python run_gpu.py examples [--seconds 30] [-o examples.json]
    python run_gpu.py bundles DIR [--together 1] [-o bundles.json]

`bundles` loads each bundle in a fresh process with CuPy, and in another with PyTorch (`--together`
for several in one). Each draws the inputs of the bundle's check by NumPy, calls the plan through
the library on its current stream, compares the sampled outputs with those that the bundle has from
float64, and takes the time of a call: between two events, in a CUDA graph, and on the host, beside
an empty kernel that is launched through the driver.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any, Callable, Dict, List

import numpy

HERE = Path(__file__).resolve().parent
#: Calls in one graph, and samples of each measurement.
CALLS, SAMPLES = 20, 100


# The bundle's own check, from docs/bundle.md alone.


def bits(seed: int, count: int) -> Any:
    """SplitMix64, as of place i."""
    with numpy.errstate(over="ignore"):
        x = numpy.uint64(seed % 2**64) + numpy.uint64(0x9E3779B97F4A7C15) * numpy.arange(
            1, count + 1, dtype=numpy.uint64
        )
        x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        return x ^ (x >> numpy.uint64(31))


def draw(element: str, count: int, seed: int, scale: float) -> Any:
    """Uniform in [-1, 1)."""
    random = bits(seed, count)
    if element == "f64":
        return (2.0 * ((random >> numpy.uint64(11)) * 2.0**-53) - 1.0) * scale
    single = (random >> numpy.uint64(40)).astype(numpy.float32) * numpy.float32(
        2.0**-23
    ) - numpy.float32(1)
    return single.astype("float16" if element == "f16" else "float32")


def tensors(bundle: Path, member: str) -> Dict[str, Any]:
    """The tensors of a safetensors member."""
    data = zipfile.ZipFile(bundle).read(member)
    length = int.from_bytes(data[:8], "little")
    types = {"U64": "u8", "F64": "f8"}
    return {
        name: numpy.frombuffer(
            data[8 + length + at["data_offsets"][0] : 8 + length + at["data_offsets"][1]],
            types[at["dtype"]],
        )
        for name, at in json.loads(data[8 : 8 + length]).items()
        if name != "__metadata__"
    }


def worst_share(bundle: Path, check: Dict[str, Any], b: Any, c: Any, columns: int) -> float:
    """The largest error of a sample as a share of its bound; at most 1 is right."""
    of = tensors(bundle, "check.safetensors")
    b, c = b.astype("float64"), c.astype("float64")
    if check["kind"] == "product":
        errors, bounds = abs(c[of["index"]] - of["value"]), of["bound"]
    else:
        rows, ends = of["row"], of["row_ptr"]
        lines = numpy.repeat(numpy.arange(len(rows)), numpy.diff(ends.astype("int64")))
        x, known = c.reshape(-1, columns), b.reshape(-1, columns)[rows]
        own = of["diagonal"][:, None] * x[rows]
        terms = of["value"][:, None] * x[of["col"]]
        errors, bounds = own - known, abs(own) + abs(known)
        numpy.add.at(errors, lines, terms)
        numpy.add.at(bounds, lines, abs(terms))
        errors, bounds = abs(errors), of["bound"][:, None] * bounds
    if not len(errors):
        return 0.0
    share = numpy.where(errors <= bounds, errors / numpy.maximum(bounds, 5e-324), numpy.inf)
    return float(share.max())


class Cupy:
    """What a measurement needs of CuPy."""

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy
        self.stream = cupy.cuda.Stream(non_blocking=True)

    def array(self, x: Any, dense: Dict[str, Any]) -> Any:
        order = "C" if dense["layout"] == "row" else "F"
        return self.cupy.asarray(
            x.reshape((dense["rows"], dense["cols"]), order=order), order=order
        )

    def host(self, x: Any) -> Any:
        return self.cupy.asnumpy(x)

    def synchronize(self) -> None:
        self.cupy.cuda.Device().synchronize()

    def raw_stream(self) -> int:
        return int(self.cupy.cuda.get_current_stream().ptr)

    def pointer(self, x: Any) -> int:
        return int(x.data.ptr)

    def events(self) -> Any:
        return self.cupy.cuda.Event(), self.cupy.cuda.Event()

    def elapsed_us(self, start: Any, end: Any) -> float:
        return 1e3 * float(self.cupy.cuda.get_elapsed_time(start, end))

    def captured(self, call: Callable[[], Any]) -> Callable[[], None]:
        """The calls of one graph."""
        with self.stream:
            self.stream.begin_capture()
            for _ in range(CALLS):
                call()
            graph = self.stream.end_capture()
        return lambda: graph.launch()


class Torch:
    """What a measurement needs of PyTorch."""

    def __init__(self) -> None:
        import torch

        self.torch = torch

    def array(self, x: Any, dense: Dict[str, Any]) -> Any:
        x = self.torch.from_numpy(x).cuda()
        if dense["layout"] == "row":
            return x.reshape(dense["rows"], dense["cols"])
        return x.reshape(dense["cols"], dense["rows"]).t()

    def host(self, x: Any) -> Any:
        return x.cpu().numpy()

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()

    def raw_stream(self) -> int:
        return int(self.torch.cuda.current_stream().cuda_stream)

    def pointer(self, x: Any) -> int:
        return int(x.data_ptr())

    def events(self) -> Any:
        return (self.torch.cuda.Event(enable_timing=True) for _ in range(2))

    def elapsed_us(self, start: Any, end: Any) -> float:
        return 1e3 * float(start.elapsed_time(end))

    def captured(self, call: Callable[[], Any]) -> Callable[[], None]:
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            for _ in range(CALLS):
                call()
        return graph.replay


def between_events(library: Any, call: Callable[[], Any], calls: int) -> float:
    """Median microseconds of a call."""
    times = []
    for _ in range(SAMPLES):
        start, end = library.events()
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(library.elapsed_us(start, end) / calls)
    return float(numpy.median(times))


def on_host(library: Any, call: Callable[[], Any]) -> float:
    """Microseconds for which a call keeps the host busy: the least of many short runs, so that no
    queue is full."""
    best = float("inf")
    for _ in range(SAMPLES):
        library.synchronize()
        begun = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, (time.perf_counter() - begun) / CALLS)
    library.synchronize()
    return 1e6 * best


def empty_kernel(stream: int) -> Callable[[], Any]:
    """A launch of an empty kernel through the driver: what any launch costs at least, and a call of
    ctypes."""
    driver = ctypes.CDLL("libcuda.so.1")
    text = b".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry empty() { ret; }\n\0"
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    if driver.cuModuleLoadData(ctypes.byref(module), text):
        raise SystemExit("the driver does not take the empty kernel")
    driver.cuModuleGetFunction(ctypes.byref(function), module, b"empty")
    one, none = ctypes.c_uint(1), ctypes.c_uint(0)
    launch, nothing = driver.cuLaunchKernel, ctypes.c_void_p()
    to = ctypes.c_void_p(stream)
    return lambda: launch(function, one, one, one, one, one, one, none, to, nothing, nothing)


def one(framework: str, path: Path) -> Dict[str, Any]:
    """Everything about one bundle in one library."""
    library: Any = Cupy() if framework == "cupy" else Torch()
    import sparsetune

    begun = time.perf_counter()
    plan = sparsetune.load(path)
    loaded = time.perf_counter() - begun
    manifest = plan.manifest
    dense, check = manifest["call"], manifest["check"]
    count = {name: dense[name]["rows"] * dense[name]["cols"] for name in "bc"}
    b = draw(dense["b"]["element"], count["b"], check["seed"], check["scale"])
    if hashlib.sha256(b.tobytes()).hexdigest() != check["b_sha256"]:
        raise SystemExit(
            f"{path}: the inputs of the check came out differently than when the bundle was made"
        )
    c = draw(dense["c"]["element"], count["c"], check["seed"] + 1, 1.0)
    if check["beta"] == 0.0:
        c[...] = numpy.nan
    B, C = library.array(b, dense["b"]), library.array(c.copy(), dense["c"])
    factors = (check["alpha"], check["beta"]) if dense["accumulate"] else (None, None)
    plan(B, C, *factors)
    order = "C" if dense["c"]["layout"] == "row" else "F"
    found = library.host(C).ravel(order)
    share = worst_share(path, check, b, found, dense["b"]["cols"])

    def call() -> Any:
        return plan(B, C)

    for _ in range(10):
        call()
    library.synchronize()
    answer: Dict[str, Any] = {
        "bundle": path.name,
        "library": framework,
        "family": manifest["candidate"]["family"],
        "forward": manifest["forward"]["kind"],
        "problem": ";".join(f"{name}={value}" for name, value in manifest["problem"].items()),
        "bytes": path.stat().st_size,
        "load_ms": 1e3 * loaded,
        "error_share": share,
        "own_check": plan.check().passed,
        "promise_us": plan.promise.median_us,
        "call_us": between_events(library, call, 1),
    }
    stream = library.raw_stream()
    native, at_b, at_c = plan._native, library.pointer(B), library.pointer(C)
    answer["host_us"] = on_host(library, call)
    answer["host_extension_us"] = on_host(
        library, lambda: native.run_on_device(at_b, at_c, stream, 1.0, 0.0)
    )
    answer["host_empty_kernel_us"] = on_host(library, empty_kernel(stream))
    replay = library.captured(call)
    answer["graph_us"] = between_events(library, replay, CALLS)
    library.synchronize()
    again = library.array(c.copy(), dense["c"])
    plan(B, again, *factors)
    answer["error_share_after"] = worst_share(
        path, check, b, library.host(again).ravel(order), dense["b"]["cols"]
    )
    answer["gave_up"] = plan.gave_up()
    return answer


def bundles(arguments: argparse.Namespace) -> List[Dict[str, Any]]:
    paths = sorted(arguments.folder.rglob("*.stplan"))
    environment = {name: value for name, value in os.environ.items() if name != "SPARSETUNE_SERVER"}
    results: List[Dict[str, Any]] = []
    for framework in arguments.libraries.split(","):
        for first in range(0, len(paths), arguments.together):
            some = paths[first : first + arguments.together]
            command = [sys.executable, __file__, "one", framework, *map(str, some)]
            ended = subprocess.run(command, env=environment, capture_output=True, text=True)
            lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
            results += lines
            for path in some[len(lines) :]:
                last = ended.stderr.strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
                results.append({"bundle": path.name, "library": framework, "failed": last[0]})
    for found in results:
        if "failed" in found:
            print(f"{found['library']:6} {found['bundle'][:44]:44} FAILED: {found['failed']}")
            continue
        promise = found["promise_us"]
        ratio = (
            ""
            if promise is None
            else f"{found['call_us'] / promise:6.2f}{found['graph_us'] / promise:7.2f}"
        )
        print(
            f"{found['library']:6} {found['bundle'][:44]:44} {found['family']:14} error {found['error_share']:5.2f}  "
            f"{found['call_us']:9.1f} us, of the promise {ratio}  host {found['host_us']:5.1f} us "
            f"(extension {found['host_extension_us']:.1f}, empty kernel {found['host_empty_kernel_us']:.1f})"
        )
    good = [found for found in results if "failed" not in found]
    wrong = [
        found
        for found in good
        if not (
            found["error_share"] <= 1 and found["error_share_after"] <= 1 and found["own_check"]
        )
    ]
    timed = [found for found in good if found["promise_us"]]
    mean = lambda key: (
        float(numpy.exp(numpy.mean([numpy.log(f[key] / f["promise_us"]) for f in timed])))
        if timed
        else 0.0
    )  # noqa: E731
    over = sorted(found["host_us"] - found["host_empty_kernel_us"] for found in good)
    print(
        f"\n{len(results)} loads of {len(paths)} bundles, {len(results) - len(good)} failed, {len(wrong)} wrong; time over the "
        f"promise {mean('call_us'):.2f}, in a graph {mean('graph_us'):.2f}; a call keeps the host "
        f"{over[len(over) // 2] if over else 0:.1f} us longer than an empty kernel (median)"
    )
    return results


def examples(arguments: argparse.Namespace) -> List[Dict[str, Any]]:
    more = [] if arguments.seconds is None else ["--seconds", str(arguments.seconds)]
    runs = [
        ["gcn.py", "--device", "cuda", "--epochs", "100", "--hidden", "128"],
        ["pcg.py", "--device", "cuda", "--grid", "64"],
        ["pruned_layer.py", "--device", "cuda", "--in", "4096", "--out", "4096", "--batch", "128"],
    ]
    results = []
    for run in runs:
        command = [sys.executable, str(HERE / run[0]), *run[1:], *more, "--json"]
        ended = subprocess.run(command, capture_output=True, text=True)
        lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
        found = json.loads(lines[-1]) if lines else {"failed": ended.stderr[-2000:]}
        results.append({"example": run[0], **found})
        print(json.dumps(results[-1], indent=1))
    return results


def main() -> None:
    if sys.argv[1:2] == ["one"]:
        for path in sys.argv[3:]:
            print(json.dumps(one(sys.argv[2], Path(path))), flush=True)
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    of_bundles = commands.add_parser("bundles")
    of_bundles.add_argument("folder", type=Path)
    of_bundles.add_argument("--libraries", default="cupy,torch")
    of_bundles.add_argument("--together", type=int, default=1, help="bundles loaded by one process")
    of_examples = commands.add_parser("examples")
    of_examples.add_argument("--seconds", type=float, help="budget of each search")
    for command in (of_bundles, of_examples):
        command.add_argument(
            "-o", "--output", type=Path, help="where all results are written as JSON"
        )
    arguments = parser.parse_args()
    results = bundles(arguments) if arguments.command == "bundles" else examples(arguments)
    if arguments.output:
        arguments.output.write_text(json.dumps(results, indent=1))
    if any("failed" in found for found in results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
