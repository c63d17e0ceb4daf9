"""Bandwidth on a CUDA device: eager, torch.compile and staxlab in one process, timed with CUDA events.

    python -m benchmarks.gpu --out benchmarks/results/gpu.json
    python -m benchmarks.gpu --fused --out fused.json      only reductions that share a kernel: softmax, norms...
    python -m benchmarks.gpu --all --out all.json          every case there is, with a summary
    python -m benchmarks.gpu --sweep --out sweep.json      launch configurations of each kernel, by hand
    python -m benchmarks.gpu --all --smoke                 small, without a device, in Triton's interpreter

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
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_cases import (
    GpuCase,
    all_cases,
    every_case,
    from_table,
    fused_cases,
    small,
    transpose_add,
)  # fmt: skip

FORMAT = "staxlab-gpu-benchmark-1"
READING_SECONDS = 2e-3


# --- Timing -----------------------------------------------------------------------------------------------------------


def reading(run: Callable[[list[torch.Tensor]], Any], sets: Iterator[list[torch.Tensor]], calls: int) -> float:
    """As :func:`seconds_per_call`, each call on the next of ``sets``."""
    return seconds_per_call(lambda: run(next(sets)), calls)


def seconds_per_call(run: Callable[[], Any], calls: int) -> float:
    """Seconds per call, by CUDA events around ``calls`` calls."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(calls):
        run()
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


def summary(record: dict[str, Any]) -> dict[str, Any]:
    """What the cases of a record come to: the geometric mean of the ratios to torch.compile and the least of them, and
    the least share of the copy bandwidth among cases whose data are more than four times the cache."""
    cases = record["cases"]
    ratios = {case["title"]: case["ratio_to_torch_compile"] for case in cases}
    large = [case for case in cases if case["least_bytes"] > 4 * record["l2_bytes"]]
    shares = {case["title"]: case["peers"]["staxlab"]["share_of_copy"] for case in large}
    found: dict[str, Any] = {"cases": len(cases)}
    if ratios:
        found["geometric_mean"] = statistics.geometric_mean(ratios.values())
        found["least_ratio"] = min(ratios.items(), key=lambda item: item[1])
    if shares:
        found["least_share_of_copy"] = min(shares.items(), key=lambda item: item[1])
    return found


def smoke(cases: list[GpuCase]) -> int:
    """Every case at a small size in Triton's interpreter, against eager execution: 1 if a value was wrong."""
    import staxlab
    from staxlab.codegen.triton.interpreter import interpret
    from staxlab.measure import tolerance
    from staxlab.runtime.artifact import load

    wrong = 0
    for case in map(small, cases):
        inputs = case.inputs(0, "cpu")
        compilation = staxlab.explain(case.function, *inputs, target="sm_90", strict_native=True)
        launchers = {k.name: lambda *tensors, kernel=k: interpret(kernel, tensors) for k in compilation.kernels}
        found, wanted = load(compilation.wrapper, launchers).call(list(inputs)), _tuple(case.function(*inputs))
        allowed = tolerance.of_program(case.function, *inputs)
        good = all(t.agrees(a, b) for t, a, b in zip(allowed, found, wanted, strict=True))
        wrong += not good
        print(f"{case.title:42s} {'right' if good else 'wrong'}, kernels: {len(compilation.kernels)}", flush=True)
    return int(wrong > 0)


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
    if form == "pointwise" and "znumel" in sizes:
        edges = [(16, 16, 16), (8, 16, 32), (8, 8, 32), (8, 8, 16), (8, 8, 8), (4, 16, 64)]
        return [({"ZBLOCK": z, "YBLOCK": y, "XBLOCK": x}, w, 1) for z, y, x in edges for w in (2, 4, 8)]
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
    p.add_argument("--all", action="store_true", help="every case, of both kinds and more")
    p.add_argument("--smoke", action="store_true", help="small sizes without a device, in Triton's interpreter")
    p.add_argument("--only", default="", help="only cases whose name contains this")
    p.add_argument("--out", type=Path)
    options = p.parse_args(arguments)
    chosen = every_case() if options.all else fused_cases() if options.fused else all_cases()
    chosen = [case for case in chosen if options.only in case.name]
    if options.smoke:
        return smoke(chosen)
    if not torch.cuda.is_available():
        print("no CUDA device here; --smoke runs small cases in Triton's interpreter")
        return 2
    from benchmarks.records import header, save_progress

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
                save_progress(record, options.out)
        return 0
    if not options.fused:
        record["host_overhead_s"] = host_overhead()
        print("host time per call:", {k: f"{v * 1e6:.1f} us" for k, v in record["host_overhead_s"].items()})
    for case in chosen:
        found = measure(case, options.readings)
        for entry in found["peers"].values():
            entry["share_of_copy"] = entry["effective_bandwidth"] / record["copy_bandwidth"]
        record["cases"].append(found)
        record["summary"] = summary(record)
        figures = {k: f"{v['effective_bandwidth'] / 1e12:.2f}" for k, v in found["peers"].items()}
        ratios = f"x{found['ratio_to_torch_compile']:.3f} of torch.compile, x{found['ratio_to_eager']:.3f} of eager"
        ratios += f", {found['peers']['staxlab']['share_of_copy']:.1%} of a copy"
        print(f"{found['title']:42s} TB/s {figures}  {ratios}, kernels: {len(found['staxlab_kernels'])}", flush=True)
        allowed = 1e-2 + 100 * found["peers"]["eager"]["max_error"]
        wrong += any(entry.get("max_error", 0.0) > allowed for entry in found["peers"].values())
        save_progress(record, options.out)
        torch.cuda.empty_cache()
    print(json.dumps(record.get("summary", {}), indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
