"""Four programs on every backend this machine can run: a call against eager, the first call, and what was made of them.

    python -m benchmarks.backends --readings 31 --out benchmarks/results/backends.json

All sides of a program run in one process on the same tensors and take turns; a ratio is the median of paired readings
with an interval, above 1 where the backend is faster than eager. The first call of each backend is timed once, in a
directory of caches of its own, so it is a cold one; what the backend's library takes to import is in it for the first
program. "operations" counts what the backend was given, or for stax its kernels. Half a minute.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import staxlab
from benchmarks.records import header, save
from staxlab.measure import tolerance
from staxlab.measure.timing import compare

FORMAT = "staxlab-backends-1"
BACKENDS = ("aot_eager", "stax", "onnxrt", "tvm")


def _numbers(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


def example_1_1(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (torch.relu(x + w) * 2).sum(-1)


def example_7_1(x: torch.Tensor) -> torch.Tensor:
    return x / x.sum(-1, keepdim=True)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return F.softmax(x, -1)


def mlp(x: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor, w2: torch.Tensor, b2: torch.Tensor) -> torch.Tensor:
    return F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)


#: Name to function and inputs, for a number that divides the rows.
CASES: dict[str, Callable[[int], tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]] = {
    "example 1.1, 4096x2048": lambda d: (example_1_1, _numbers((4096 // d, 2048), (4096 // d, 2048))),
    "example 7.1, 4096x2048": lambda d: (example_7_1, (_numbers((4096 // d, 2048))[0].abs(),)),
    "softmax, 4096x1024": lambda d: (softmax, _numbers((4096 // d, 1024))),
    "mlp, 256x256 -> 512 -> 64": lambda d: (mlp, _numbers((256 // d, 256), (512, 256), (512,), (64, 512), (64,))),
}


def measure(name: str, backends: Sequence[str], readings: int, scale: int) -> dict[str, Any]:
    """One program on all backends. A backend whose library is missing, or that refuses, has its words in "refused"."""
    function, inputs = CASES[name](scale)
    expected, allowed = function(*inputs), tolerance.of_program(function, *inputs)
    sides: dict[str, Callable[..., Any]] = {"eager": function}
    first: dict[str, float] = {}
    made: dict[str, int] = {}
    refused: dict[str, str] = {}
    for backend in backends:
        compiled = staxlab.compile(function, backend=backend, strict_native=True)
        start = time.perf_counter()
        try:
            result = compiled(*inputs)
        except staxlab.StaxError as error:
            refused[backend] = error.what
            continue
        first[backend] = float(f"{time.perf_counter() - start:.4g}")
        tolerance.require_agreement(result, expected, allowed)
        made[backend] = _made(compiled.versions[-1].compilation)
        sides[backend] = compiled
    calls = {key: (lambda side=side: side(*inputs)) for key, side in sides.items()}
    timings = compare(calls, readings=readings, warmup=2)
    return {
        "case": name,
        "seconds": {t.name: float(f"{t.median:.4g}") for t in timings.timings},
        "over_eager": {key: _ratio(timings, key) for key in sides if key != "eager"},
        "first_call_seconds": first,
        "operations": made,
        "refused": refused,
    }


def _made(compilation: Any) -> int:
    """Kernels of ours, or the operations that somebody was given."""
    if compilation.kernels is not None:
        return len(compilation.kernels)
    handed = compilation.outside.module if compilation.outside is not None else compilation.operators.module
    return len(handed.graph.calls)


def _ratio(timings: Any, name: str) -> list[float]:
    ratio = timings.ratio(name, "eager")
    interval = ratio.interval
    ends = [interval.low, interval.high] if interval is not None else [ratio.median, ratio.median]
    return [float(f"{value:.4g}") for value in (ratio.median, *ends)]


def _libraries() -> dict[str, str]:
    """Versions of the libraries behind the backends, of those that are installed."""
    from importlib import metadata

    found = {}
    for name in ("onnx", "onnxruntime", "apache-tvm"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def lines(result: dict[str, Any]) -> list[str]:
    found = [f"{result['case']} (eager {1e3 * result['seconds']['eager']:.2f} ms)"]
    for name, (middle, low, high) in result["over_eager"].items():
        found.append(
            f"  {name:10} {middle:6.2f}x eager [{low:.2f}, {high:.2f}]   first call "
            f"{result['first_call_seconds'][name]:6.2f} s   {result['operations'][name]} operations"
        )
    return found + [f"  {name:10} refused: {why}" for name, why in result["refused"].items()]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backends", description=__doc__.split("\n")[0])
    parser.add_argument("--backends", default=",".join(BACKENDS), help="which, with commas")
    parser.add_argument("--case", default="", help="only programs whose name contains this")
    parser.add_argument("--readings", type=int, default=31)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--divide", type=int, default=1, help="divide the rows by this")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    backends, results = options.backends.split(","), []
    before = os.environ.get("STAXLAB_CACHE_DIR")
    with tempfile.TemporaryDirectory() as cold:
        os.environ["STAXLAB_CACHE_DIR"] = cold
        try:
            for name in CASES:
                if options.case in name:
                    results.append(measure(name, backends, options.readings, options.divide))
                    print("\n".join(lines(results[-1])), flush=True)
        finally:
            os.environ.pop("STAXLAB_CACHE_DIR")
            if before is not None:
                os.environ["STAXLAB_CACHE_DIR"] = before
    if options.out:
        run = {**header(FORMAT), "libraries": _libraries(), "threads": options.threads, "results": results}
        save(run, options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
