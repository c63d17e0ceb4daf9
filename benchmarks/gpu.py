"""Bandwidth on a CUDA device: eager, torch.compile and staxlab in one process, timed with CUDA events.

    python -m benchmarks.gpu --out benchmarks/results/gpu.json
    python -m benchmarks.gpu --fused --out fused.json      only reductions that share a kernel: softmax, norms...
    python -m benchmarks.gpu --sweep --out sweep.json      launch configurations of each kernel, by hand

Peers take turns reading by reading. A reading is the time between two events around several calls, divided by their
number; consecutive calls use different input tensors where one set would fit into four times the L2 cache, so that
every call reads memory. The figure of merit is the *effective bandwidth*: the bytes that any program must move (each
input read once, each output written once, Proposition 1.1) over the median time, the same numerator for every peer.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import CASES

FORMAT = "staxlab-gpu-benchmark-1"
READING_SECONDS = 2e-3


@dataclass(frozen=True)
class GpuCase:
    """A function, the shapes of its inputs, the first of which has rows, and the elements any program must move. A case
    with ``labels`` takes an int64 number of a column for each row besides, and moves it."""

    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    elements: int
    dtype: torch.dtype = torch.float32
    labels: bool = False

    @property
    def title(self) -> str:
        size = "x".join(map(str, self.shapes[0]))
        return f"{self.name} {size} {str(self.dtype).removeprefix('torch.')}"

    @property
    def least_bytes(self) -> int:
        return self.elements * self.dtype.itemsize + (8 * self.shapes[0][0] if self.labels else 0)

    def inputs(self, seed: int, device: str = "cuda") -> list[torch.Tensor]:
        generator = torch.Generator(device).manual_seed(seed)
        made = [torch.randn(s, generator=generator, device=device).to(self.dtype) for s in self.shapes]
        if self.labels:
            rows, columns = self.shapes[0]
            made.append(torch.randint(columns, (rows,), generator=generator, device=device))
        return made

    def head(self, inputs: list[torch.Tensor], rows: int = 512) -> list[torch.Tensor]:
        """The first rows of the inputs, in double precision; of a transposition, all."""
        if self.name == "transpose_add":
            return [t.double() for t in inputs]
        cut = [t[:rows] if t.shape[0] == inputs[0].shape[0] else t for t in inputs]
        return [t.double() if t.is_floating_point() else t for t in cut]


def from_table(name: str, size: tuple[int, int], dtype: torch.dtype = torch.float32) -> GpuCase:
    """A case of Tables 13.1 and 13.2 at a size of our own."""
    case = next(c for c in CASES if c.name == name)
    return GpuCase(name, case.function, (size,) * case.inputs, case.elements("compiled", size), dtype)


def transpose_add(n: int) -> GpuCase:
    """Example 6.1: one operand lies along rows, the other along columns."""
    return GpuCase("transpose_add", lambda x, y: x.t() + y, ((n, n), (n, n)), 3 * n * n)


def all_cases() -> list[GpuCase]:
    large = (65536, 2048)
    return [
        from_table("example_1_1", (8192, 2048)),
        from_table("example_1_1", large),
        from_table("example_1_1", (1 << 20, 128)),
        from_table("row_sum", large),
        from_table("row_sum", (16384, 8192)),
        from_table("row_amax", large),
        from_table("add", large),
        from_table("add", large, torch.bfloat16),
        from_table("relu", large),
        from_table("exp", large),
        from_table("pointwise_chain", large),
        transpose_add(16384),
        from_table("example_7_1", large),
        from_table("example_7_2", large),
        from_table("softmax_library", (16384, 1000)),
        from_table("softmax_five_operators", (16384, 1000)),
    ]


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight


def cross_entropy_rows(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(x, labels, reduction="none")


def norm_case(size: tuple[int, int], dtype: torch.dtype = torch.float32) -> GpuCase:
    rows, columns = size
    return GpuCase("layer_norm", layer_norm, (size, (columns,), (columns,)), 2 * rows * columns + 2 * columns, dtype)


def rms_case(size: tuple[int, int], dtype: torch.dtype = torch.float32) -> GpuCase:
    rows, columns = size
    return GpuCase("rms_norm", rms_norm, (size, (columns,)), 2 * rows * columns + columns, dtype)


def cross_entropy_case(size: tuple[int, int]) -> GpuCase:
    rows, columns = size
    return GpuCase("cross_entropy_rows", cross_entropy_rows, (size,), rows * columns + rows, labels=True)


def fused_cases() -> list[GpuCase]:
    """Reductions that share a kernel with their neighbours (Sections 7 and 9.4): short rows, long ones, longest."""
    large = (65536, 2048)
    return [
        from_table("softmax_library", (16384, 1000)), from_table("softmax_five_operators", (16384, 1000)),
        from_table("softmax_library", (16384, 8192)), from_table("softmax_library", (4096, 32768)),
        from_table("softmax_library", (16384, 8192), torch.bfloat16), from_table("example_7_1", large),
        from_table("example_7_2", large), norm_case((65536, 1024)), norm_case((65536, 1024), torch.bfloat16),
        norm_case((4096, 16384)), rms_case((16384, 4096)), rms_case((65536, 1024), torch.bfloat16),
        cross_entropy_case((16384, 1000)), cross_entropy_case((4096, 32000)),
    ]  # fmt: skip


# --- Timing -----------------------------------------------------------------------------------------------------------


def reading(run: Callable[[list[torch.Tensor]], Any], sets: Iterator[list[torch.Tensor]], calls: int) -> float:
    """Seconds per call, by CUDA events around ``calls`` calls."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(calls):
        run(next(sets))
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) * 1e-3 / calls


def peers_of(case: GpuCase) -> dict[str, Callable[..., Any]]:
    import staxlab

    torch._dynamo.reset()
    return {
        "eager": case.function,
        "torch_compile": torch.compile(case.function),
        "staxlab": staxlab.compile(case.function, strict_native=True),
    }


def measure(case: GpuCase, readings: int) -> dict[str, Any]:
    """All peers on one case: first call, error against eager in double precision, readings, medians, intervals."""
    from staxlab.measure.timing import median_interval

    cache = torch.cuda.get_device_properties(0).L2_cache_size
    per_set = sum(math.prod(shape) for shape in case.shapes) * case.dtype.itemsize
    sets = [case.inputs(k) for k in range(max(1, -(-4 * cache // per_set)))]
    peers = peers_of(case)
    record: dict[str, Any] = {
        "case": case.name,
        "title": case.title,
        "shapes": case.shapes,
        "least_bytes": case.least_bytes,
    }
    record["input_sets"], record["peers"] = len(sets), {}
    reference = _tuple(case.function(*case.head(sets[0])))
    runners: dict[str, Callable[[list[torch.Tensor]], Any]] = {}
    for name, function in peers.items():
        began = time.perf_counter()
        result = _tuple(function(*sets[0]))
        torch.cuda.synchronize()
        entry = record["peers"][name] = {"first_call_s": time.perf_counter() - began}
        entry["max_error"] = max(
            ((got[: true.shape[0]].double() - true).abs() / true.abs().clamp(min=1)).max().item()
            for got, true in zip(result, reference, strict=True)
        )
        del result
        runners[name] = lambda inputs, function=function: function(*inputs)
    # The compiled region alone, without specialization and dispatch: what the kernels could do if the host kept up.
    runners["staxlab_region"] = peers["staxlab"].versions[-1].compilation.artifact.call
    record["peers"]["staxlab_region"] = {}
    kernels = peers["staxlab"].versions[-1].compilation.kernels
    record["staxlab_bytes"] = kernels.bytes_moved
    record["staxlab_kernels"] = [
        {"name": k.name, "blocks": k.launch.get("constants"), "num_warps": k.launch.get("num_warps")} for k in kernels
    ]
    turns = {name: itertools.cycle(sets) for name in runners}
    calls = {}
    for name, run in runners.items():
        reading(run, turns[name], 3)
        calls[name] = max(2, min(50, int(READING_SECONDS / max(reading(run, turns[name], 3), 1e-7))))
    taken: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(readings):
        for name, run in runners.items():
            taken[name].append(reading(run, turns[name], calls[name]))
    for name, values in taken.items():
        entry = record["peers"][name]
        middle = statistics.median(values)
        interval = median_interval(values)
        entry |= {
            "median_s": middle,
            "interval_s": [interval.low, interval.high],
            "calls_per_reading": calls[name],
            "readings": len(values),
            "effective_bandwidth": case.least_bytes / middle,
        }
    record["ratio_to_torch_compile"] = _ratio(taken["torch_compile"], taken["staxlab"])
    record["ratio_to_eager"] = _ratio(taken["eager"], taken["staxlab"])
    return record


def _ratio(theirs: list[float], ours: list[float]) -> float:
    """Median of the ratios of readings of the same turn; above 1 where staxlab is faster."""
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True))


def _tuple(value: Any) -> tuple[torch.Tensor, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def copy_bandwidth() -> float:
    """Bytes per second of a device-to-device copy of 4 GiB, read and written counted: the practical ceiling."""
    source = torch.randn(1 << 30, device="cuda")
    target = torch.empty_like(source)
    one = itertools.repeat([source])
    reading(lambda inputs: target.copy_(inputs[0]), one, 3)
    values = [reading(lambda inputs: target.copy_(inputs[0]), one, 2) for _ in range(9)]
    return 2 * source.nbytes / statistics.median(values)


def host_overhead(calls: int = 1000) -> dict[str, float]:
    """Seconds of host time per call on 8 elements, ``x*2 + 1``, the device never being the bottleneck: with the same
    tensor every time, with four in turn, and staxlab's region and its bare launch alone."""
    case = GpuCase("overhead", lambda x: x * 2 + 1, ((2, 4),), 16)
    given = [case.inputs(k)[0] for k in range(4)]
    functions = peers_of(case)
    work: dict[str, Callable[[int], Any]] = {}
    for name, function in functions.items():
        for x in given:
            function(x)
        work[name] = lambda k, function=function: function(given[0])
        work[f"{name}, tensors in turn"] = lambda k, function=function: function(given[k & 3])
    compilation = functions["staxlab"].versions[-1].compilation
    from staxlab.codegen.triton.launcher import load

    launch, out = load(compilation.kernels[0]), torch.empty_like(given[0])
    work["staxlab region"] = lambda k: compilation.artifact.call([given[k & 3]])
    work["staxlab launch"] = lambda k: launch(given[0], out)
    found: dict[str, list[float]] = {}
    for _ in range(7):
        for name, run in work.items():
            run(0)
            torch.cuda.synchronize()
            began = time.perf_counter()
            for k in range(calls):
                run(k)
            found.setdefault(name, []).append((time.perf_counter() - began) / calls)
            torch.cuda.synchronize()
    return {name: statistics.median(values) for name, values in found.items()}


# --- Launch configurations --------------------------------------------------------------------------------------------


def configurations(kernel: Any) -> list[tuple[dict[str, int], int, int]]:
    """Block sizes and warps worth trying for a kernel of this form."""
    form, sizes = kernel.launch["form"], kernel.launch["sizes"]
    if form == "pointwise" and "ynumel" in sizes:
        shapes = [(32, 32), (64, 32), (32, 64), (64, 64), (128, 32), (32, 128), (16, 256), (128, 64)]
        return [({"YBLOCK": y, "XBLOCK": x}, w, 1) for y, x in shapes for w in (4, 8) if x * y >= 256 * w]
    if form == "pointwise":
        return [
            ({"XBLOCK": x}, w, 1) for x in (512, 1024, 2048, 4096, 8192) for w in (2, 4, 8) if 128 * w <= x <= 1024 * w
        ]
    if form == "persistent":
        row = 1 << (sizes["r0_numel"] - 1).bit_length()
        return [
            ({"XBLOCK": x, "R0_BLOCK": row}, w, 1)
            for x in (1, 2, 4, 8, 16, 32, 64)
            for w in (1, 2, 4, 8, 16, 32)
            if 64 * w <= x * row <= 1024 * w
        ]
    return [
        ({"XBLOCK": x, "R0_BLOCK": r}, w, s)
        for x in (1, 2)
        for r in (1024, 2048, 4096, 8192)
        for w in (2, 4, 8, 16)
        for s in (1, 3)
        if 256 * w <= x * r <= 1024 * w and x * r <= 8192 and (s == 1 or (x == 1 and w in (4, 8)))
    ]


def sweep(case: GpuCase, readings: int = 5) -> dict[str, Any]:
    """Every configuration of a case's only kernel: effective bandwidth, registers, spills."""
    import staxlab
    from staxlab.codegen.triton import triton_kernel
    from staxlab.codegen.triton.launcher import load

    inputs = case.inputs(0)
    compilation = staxlab.explain(case.function, *inputs)
    (node,), schedule = compilation.schedule.nodes, compilation.schedule
    tensors = dict(zip(schedule.inputs, inputs, strict=True))
    for buffer in node.buffers:
        layout = schedule.layouts[buffer]
        tensors[buffer] = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype, device="cuda")
    chosen = compilation.kernels[0]
    rules = ({**chosen.launch["constants"]}, chosen.launch["num_warps"])
    rows = []
    for blocks, warps, stages in configurations(chosen):
        kernel = triton_kernel(schedule, node, "_sweep", compilation.device, (blocks, warps, stages))
        launch = load(kernel)
        arguments = [tensors[a.buffer] for a in kernel.arguments]
        one = itertools.repeat(arguments)
        run = lambda given, launch=launch: launch(*given)  # noqa: E731
        reading(run, one, 2)
        calls = max(2, min(50, int(READING_SECONDS / reading(run, one, 2))))
        middle = statistics.median(reading(run, one, calls) for _ in range(readings))
        (compiled,) = launch.compiled
        rows.append(
            {
                "blocks": blocks, "num_warps": warps, "num_stages": stages, "median_s": middle,
                "effective_bandwidth": case.least_bytes / middle, "registers": compiled.n_regs,
                "spills": compiled.n_spills,
            }
        )  # fmt: skip
    rows.sort(key=lambda row: row["median_s"])
    return {"case": case.name, "title": case.title, "rules": rules, "configurations": rows}


def sweep_cases() -> list[GpuCase]:
    large = (65536, 2048)
    return [
        from_table("example_1_1", large), from_table("example_1_1", (1 << 20, 128)),
        from_table("row_sum", (16384, 8192)), from_table("row_sum", (131072, 1000)), from_table("add", large),
        from_table("exp", large), from_table("add", large, torch.bfloat16), transpose_add(16384),
    ]  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 0 when every case was measured and right."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.split("\n")[0])
    p.add_argument("--readings", type=int, default=15)
    p.add_argument("--sweep", action="store_true", help="launch configurations instead of peers")
    p.add_argument("--fused", action="store_true", help="the cases in which reductions share a kernel, alone")
    p.add_argument("--only", default="", help="only cases whose name contains this")
    p.add_argument("--out", type=Path)
    options = p.parse_args(arguments)
    if not torch.cuda.is_available():
        print("no CUDA device here")
        return 2
    from benchmarks.records import header

    record: dict[str, Any] = {
        **header(FORMAT, "cuda"),
        "l2_bytes": torch.cuda.get_device_properties(0).L2_cache_size,
        "copy_bandwidth": copy_bandwidth(), "cases": [],
    }  # fmt: skip
    print(f"{record['machine']['device']}: copy {record['copy_bandwidth'] / 1e12:.2f} TB/s")
    wrong = 0
    if options.sweep:
        for case in fused_cases() if options.fused else sweep_cases():
            if options.only in case.name:
                found = sweep(case)
                record["cases"].append(found)
                print(f"{found['title']}: the rules give {found['rules']}")
                for row in found["configurations"][:6]:
                    print(
                        f"   {row['effective_bandwidth'] / 1e12:.3f} TB/s {row['blocks']} warps {row['num_warps']} "
                        f"stages {row['num_stages']} registers {row['registers']}"
                    )
                _write(options.out, record)
        return 0
    if not options.fused:
        record["host_overhead_s"] = host_overhead()
        print("host time per call:", {k: f"{v * 1e6:.1f} us" for k, v in record["host_overhead_s"].items()})
    for case in fused_cases() if options.fused else all_cases():
        if options.only not in case.name:
            continue
        found = measure(case, options.readings)
        record["cases"].append(found)
        figures = {k: f"{v['effective_bandwidth'] / 1e12:.2f}" for k, v in found["peers"].items()}
        ratios = f"x{found['ratio_to_torch_compile']:.3f} of torch.compile, x{found['ratio_to_eager']:.3f} of eager"
        print(f"{found['title']:42s} TB/s {figures}  {ratios}, kernels: {len(found['staxlab_kernels'])}", flush=True)
        allowed = 1e-2 + 100 * found["peers"]["eager"]["max_error"]
        wrong += any(entry.get("max_error", 0.0) > allowed for entry in found["peers"].values())
        _write(options.out, record)
        torch.cuda.empty_cache()
    return 1 if wrong else 0


def _write(path: Path | None, record: dict[str, Any]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
