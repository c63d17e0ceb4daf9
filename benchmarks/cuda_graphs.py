"""What launching costs, and what a CUDA graph saves of it (Section 9.9).

    python -m benchmarks.cuda_graphs --out benchmarks/results/cuda_graphs_h200.json

Two questions. A region of 8 elements is nothing but overhead: how long does a call take, eager, under torch.compile
(by default and with ``mode="reduce-overhead"``) and under staxlab, without graphs and with? And n kernels in a row,
each with next to nothing to do: how does the time of a call grow with n, launched one by one and as a graph? By the
model of :mod:`staxlab.measure.launch_timeline` both are straight lines, whose slopes and intercepts are the times
``t_launch``, ``t_graph`` and ``t`` of Section 9.9. They are fitted here, and the deviation of every point is kept.

Results are dropped at once, so a recording is never held up by them; the input stays where it is. Every side's result
is compared with eager's before it is timed.

    python -m benchmarks.cuda_graphs --smoke

needs no GPU: the same regions run on the simulated device, everything is checked, and nothing is timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

FORMAT = "staxlab-cuda-graphs-1"
SIZES = (1, 2, 4, 8, 16, 32, 64)
SIDES = ("eager", "torch_compile", "torch_compile_graphs", "staxlab", "staxlab_graphs")


def function(x: Any) -> Any:
    return x * 2 + 1


def chain(count: int) -> Callable[[Any], Any]:
    """``count`` kernels, none of which can be fused with its neighbour: sums along one dimension and the other."""

    def run(x: Any) -> Any:
        for position in range(count):
            x = (x / 8).cumsum(position % 2)
        return x

    return run


def compiled(name: str, fn: Callable[[Any], Any], fuse: bool = True) -> Callable[[Any], Any]:
    """One side's version of a function."""
    import torch

    import staxlab

    if name == "eager":
        return fn
    if name.startswith("torch_compile"):
        return torch.compile(fn, mode="reduce-overhead" if name.endswith("graphs") else None)
    options = {"fuse": fuse, "cuda_graphs": name.endswith("graphs")}
    return staxlab.compile(fn, options=options, strict_native=True)


def prepare(names: Sequence[str], fn: Callable[[Any], Any], x: Any, fuse: bool = True) -> tuple[dict, dict]:
    """(calls without arguments, by side; what went wrong, by side). Each side has been called until it repeats."""
    import torch

    expected, found, problems = fn(x), {}, {}
    for name in names:
        try:
            call = compiled(name, fn, fuse)
            with torch.no_grad():
                for _ in range(5):
                    torch.testing.assert_close(call(x), expected)
        except Exception as error:  # a peer's failure is a finding, not the end of the run
            problems[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            continue
        found[name] = (lambda call=call: call(x), call)
    return found, problems


def fit(points: Sequence[tuple[int, float]]) -> tuple[float, float, list[float]]:
    """(intercept, slope, relative deviation of every point) of the least-squares line through (n, seconds)."""
    count = len(points)
    mean_n, mean_s = sum(n for n, _ in points) / count, sum(s for _, s in points) / count
    spread = sum((n - mean_n) ** 2 for n, _ in points)
    slope = sum((n - mean_n) * (s - mean_s) for n, s in points) / spread if spread else 0.0
    intercept = mean_s - slope * mean_n
    return intercept, slope, [s / (intercept + slope * n) - 1 if intercept + slope * n else 0.0 for n, s in points]


def costs_of(curves: dict[str, list[tuple[int, float]]]) -> dict[str, Any] | None:
    """The times of Section 9.9 from both curves; None if one of them is missing.

    Launched one by one, a kernel more costs the host a launch. As a graph it costs the device the kernel's own time,
    and what is left for no kernel at all is the submission.
    """
    if not {"staxlab", "staxlab_graphs"} <= curves.keys() or len(curves["staxlab"]) < 2:
        return None
    _, launch, launch_deviation = fit(curves["staxlab"])
    graph, kernel, graph_deviation = fit(curves["staxlab_graphs"])
    return {
        "launch_s": launch,
        "graph_s": max(graph, 0.0),
        "kernel_s": kernel,
        "deviation_launched": launch_deviation,
        "deviation_graph": graph_deviation,
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Both questions, on a GPU."""
    import torch

    from benchmarks.records import header
    from staxlab.measure.timing import compare

    x = torch.randn(8, device="cuda")
    sides, problems = prepare(SIDES, function, x)
    for name, problem in problems.items():
        print(f"{name}: {problem}")
    calls = {name: call for name, (call, _) in sides.items()}
    settings = {"readings": options.readings, "warmup": 20, "order": "random", "device": "cuda"}
    with torch.no_grad():
        region = compare(calls, **settings)
    print(region.table().text())
    record: dict[str, Any] = {
        **header(FORMAT, "cuda"),
        "device_present": True,
        "missing": problems,
        "region_8_elements": region.to_json(),
        "graphs": {"region": report_of(sides)},
    }
    matrix = torch.randn(8, 8, device="cuda")
    curves: dict[str, list[tuple[int, float]]] = {}
    chains: dict[str, Any] = {}
    for count in options.sizes:
        sides, problems = prepare(("eager", "staxlab", "staxlab_graphs"), chain(count), matrix, fuse=False)
        with torch.no_grad():
            comparison = compare({name: call for name, (call, _) in sides.items()}, **settings)
        chains[str(count)] = {
            "comparison": comparison.to_json(),
            "kernels": kernels_of(sides.get("staxlab")),
            "graphs": report_of(sides),
            "missing": problems,
        }
        for timing in comparison.timings:
            if timing.readings:
                curves.setdefault(timing.name, []).append((count, timing.median))
        print(f"n = {count}: " + ", ".join(f"{t.name} {t.median * 1e6:.2f} us" for t in comparison.timings))
    record["chains"] = chains
    record["costs"] = costs_of(curves)
    if record["costs"] is not None:
        show(record["costs"], options.sizes)
    return record


def report_of(sides: dict[str, Any]) -> str | None:
    """How staxlab's recordings fared: whether calls were replays is part of the result."""
    if "staxlab_graphs" not in sides:
        return None
    graphs = sides["staxlab_graphs"][1].versions[0].compilation.graphs
    return str(graphs).replace(f"{Path.cwd()}/", "")  # files of the project, wherever it lies


def kernels_of(side: Any) -> int | None:
    """How many kernels one call launches."""
    if side is None:
        return None
    kernels = side[1].versions[0].compilation.kernels
    return None if kernels is None else sum(not kernel.launch.get("skip") for kernel in kernels)


def show(costs: dict[str, Any], sizes: Sequence[int]) -> None:
    """The fitted times, and the model's timeline for the longest chain."""
    from staxlab.measure.launch_timeline import LaunchCosts, launch_timeline

    found = LaunchCosts(costs["launch_s"], costs["graph_s"], "this run")
    print(launch_timeline([max(costs["kernel_s"], 0.0)] * max(sizes), costs=found))


def smoke(options: argparse.Namespace) -> dict[str, Any]:
    """Every region on the simulated device, compared with eager; no time is taken."""
    import torch

    import staxlab
    from benchmarks.records import header
    from staxlab.runtime.simulated_device import simulated_region

    found = {}
    for name, fn, x in [("region_8_elements", function, torch.randn(8))] + [
        (f"chain of {count}", chain(count), torch.randn(8, 8)) for count in options.sizes[:2]
    ]:
        asked = {"cuda_graphs": True, "fuse": False}
        compilation = staxlab.explain(fn, x, target="sm_90", options=asked, strict_native=True)
        region = simulated_region(compilation)
        for _ in range(4):
            x.normal_()
            torch.testing.assert_close(region([x])[0], fn(x))
        found[name] = {"kernels": len(compilation.kernels), "replays": region.replays, "report": str(region.report())}
        print(f"{name}: {len(compilation.kernels)} kernels, {region.report().summary()}")
    return {**header(FORMAT, "cpu"), "device_present": False, "smoke": found, "costs": None}


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m benchmarks.cuda_graphs", description=__doc__.split("\n")[0])
    p.add_argument("--sizes", default=",".join(map(str, SIZES)), help="kernels in a row, separated by commas")
    p.add_argument("--readings", type=int, default=31)
    p.add_argument("--smoke", action="store_true", help="check everything on the simulated device; needs no GPU")
    p.add_argument("--out", type=Path, help="write JSON")
    options = p.parse_args(arguments)
    try:
        options.sizes = sorted({int(size) for size in options.sizes.split(",")})
    except ValueError:
        p.error(f"sizes are whole numbers, not {options.sizes!r}")
    if options.sizes[0] < 1 or options.readings < 1:
        p.error("a chain has at least one kernel, and a figure at least one reading")
    import torch

    from benchmarks.records import save

    if not options.smoke and not torch.cuda.is_available():
        print("launches are measured on a CUDA device, and there is none here; --smoke checks everything without one")
        return 2
    record = smoke(options) if options.smoke else measure(options)
    if options.out:
        print(f"wrote {save(record, options.out)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
