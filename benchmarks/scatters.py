"""Scattered writes: a histogram, rows added to rows, the gradient of an embedding, against eager and torch.compile.

    python -m benchmarks.scatters --readings 31 --out scatters.json

Every case is timed in turn by all sides on the same tensors; a ratio is the median of paired readings with an interval
around it. What one element costs depends on where it goes, so a case names how many places there are: few lie in the
cache, many do not. About five minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import staxlab
from benchmarks.peers import limit_cores
from benchmarks.records import header, save
from staxlab.measure import tolerance
from staxlab.measure.timing import compare

FORMAT = "staxlab-scatters-1"


def _numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _subscripts(size: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, size, shape, generator=torch.Generator().manual_seed(1))


def _add(dim: int) -> Callable[..., Any]:
    return lambda x, k, s: x.scatter_add(dim, k, s)


def _embedding(rows: int, padding: int = -1) -> Callable[..., Any]:
    return lambda g, k: torch.ops.aten.embedding_dense_backward(g, k, rows, padding, False)


#: Name to function and inputs, for a scale that divides the number of elements written.
CASES: dict[str, Callable[[int], tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]] = {
    "histogram of 4M, 4096 bins": lambda d: (
        _add(0), (torch.zeros(4096), _subscripts(4096, (1 << 22) // d), _numbers((1 << 22) // d)),
    ),
    "histogram of 4M, 1M bins": lambda d: (
        _add(0), (torch.zeros(1 << 20), _subscripts(1 << 20, (1 << 22) // d), _numbers((1 << 22) // d)),
    ),
    "scatter_add 4096x512, dim 0": lambda d: (
        _add(0), (torch.zeros(1024, 512), _subscripts(1024, 4096 // d, 512), _numbers(4096 // d, 512)),
    ),
    "scatter_add 4096x512, dim 1": lambda d: (
        _add(1), (torch.zeros(4096, 512), _subscripts(512, 4096 // d, 512), _numbers(4096 // d, 512)),
    ),
    "index_add of 32768 rows of 128": lambda d: (
        lambda x, k, s: x.index_add(0, k, s),
        (torch.zeros(8192, 128), _subscripts(8192, 32768 // d), _numbers(32768 // d, 128)),
    ),
    "index_add of exp(rows)": lambda d: (
        lambda x, k, s: x.index_add(0, k, s.exp()),
        (torch.zeros(8192, 128), _subscripts(8192, 32768 // d), _numbers(32768 // d, 128)),
    ),
    "rows gathered and added (a graph's edges)": lambda d: (
        lambda x, a, b: torch.zeros_like(x).index_add(0, b, x[a]),
        (_numbers(8192, 128), _subscripts(8192, 32768 // d), _subscripts(8192, 32768 // d).flip(0)),
    ),
    "gradient of an embedding, 32768x512, 8192 tokens": lambda d: (
        _embedding(32768), (_numbers(8192 // d, 512), _subscripts(32768, 8192 // d)),
    ),
}  # fmt: skip


def measure(name: str, readings: int, scale: int, peers: bool) -> dict[str, Any]:
    """One case: medians in seconds, and how many times faster than eager each side is, with an interval."""
    function, inputs = CASES[name](scale)
    compiled = staxlab.compile(function, strict_native=True)
    sides: dict[str, Callable[..., Any]] = {"eager": function, "staxlab": compiled}
    if peers:
        torch._dynamo.reset()
        sides["torch_compile"] = torch.compile(function)
    wanted, allowed = function(*inputs), tolerance.of_program(function, *inputs, runs=2)
    for side in sides.values():
        tolerance.require_agreement(side(*inputs), wanted, allowed)
    calls = {key: (lambda side=side: side(*inputs)) for key, side in sides.items()}
    timings = compare(calls, readings=readings, warmup=2)
    return {
        "case": name,
        "elements": inputs[-1].numel() if inputs[-1].is_floating_point() else inputs[0].numel(),
        "seconds": {t.name: float(f"{t.median:.4g}") for t in timings.timings},
        "over_eager": {key: _ratio(timings, key) for key in sides if key != "eager"},
    }


def _ratio(timings: Any, name: str) -> list[float]:
    ratio = timings.ratio(name, "eager")
    interval = ratio.interval
    ends = [interval.low, interval.high] if interval is not None else [ratio.median, ratio.median]
    return [float(f"{value:.4g}") for value in (ratio.median, *ends)]


def line(result: dict[str, Any]) -> str:
    times = "  ".join(f"{name} {1e3 * seconds:.2f} ms" for name, seconds in result["seconds"].items())
    ratios = "  ".join(f"{name} {m:.2f}x [{a:.2f}, {b:.2f}]" for name, (m, a, b) in result["over_eager"].items())
    return f"{result['case']:50} {times}   over eager: {ratios}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scatters", description=__doc__.split("\n")[0])
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--readings", type=int, default=31)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--divide", type=int, default=1, help="divide the number of elements written by this")
    parser.add_argument("--alone", action="store_true", help="without torch.compile")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    limit_cores(options.threads)
    results = []
    for name in CASES:
        if options.case in name:
            results.append(measure(name, options.readings, options.divide, not options.alone))
            print(line(results[-1]), flush=True)
    if options.out:
        save({**header(FORMAT), "threads": options.threads, "results": results}, options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
