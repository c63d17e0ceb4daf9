"""The models of Section 9.1 against a CUDA device: bytes in flight, sectors, occupancy.

    python -m benchmarks.hardware_models --out benchmarks/results/hardware_models_h200.json
    python -m benchmarks.hardware_models --smoke     predictions alone, small, without a device

Three questions, each a model beside what the device says about the same kernel:

* *flight*: rows of a sum, one program instance each, as many rows as a number of instances per multiprocessor.
  Instances and elements per step vary, hence bytes in flight. Little's law predicts the bandwidth from the machine
  code; where the memory is not saturated, bytes in flight over bandwidth is the latency as it was.
* *sectors*: ``x.t() + y`` (Example 6.1) in one dimension and as it is tiled. The model counts sectors; what the caches
  serve again it does not know, so the ratio of times should be no larger than the ratio of sectors.
* *occupancy*: registers and resident blocks of kernels of every form, as the package's rules give them and as the
  driver does (``cuOccupancyMaxActiveBlocksPerMultiprocessor``). These have to be equal.

Readings are the time between two CUDA events around several calls, variants taking turns; every result is compared with
eager's. Takes about two minutes.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

FORMAT = "staxlab-hardware-models-benchmark-1"
READING_SECONDS = 5e-3
INSTANCES = (1, 2, 4, 8, 16)  # per multiprocessor
STEPS = (128, 256, 512, 1024, 2048)  # elements of a row in one step, float32
WARPS = 1  # of an instance: few, so that the memory is not saturated at once
ELEMENTS = 1 << 28  # of the summed tensor: 1 GiB, beyond any L2

SHARED_LIMIT, REGISTERS, STATIC_SHARED, LOCAL = 8, 4, 1, 3  # CUfunction_attribute


def target() -> str:
    return "cuda" if torch.cuda.is_available() else "sm_90"


# --- Bytes in flight --------------------------------------------------------------------------------------------------


def row_sum_kernel(instances: int, step: int, elements: int) -> tuple[Any, tuple[int, int]]:
    """The kernel that sums rows, one per program instance, ``step`` elements at a time; and the shape of its input."""
    import staxlab
    from staxlab.codegen.triton import triton_kernel
    from staxlab.options import device_spec

    device = device_spec(target())
    rows = device.multiprocessors * instances
    length = max(elements // rows // STEPS[-1], 2) * STEPS[-1]
    sample = torch.empty(rows, length, device="cuda" if target() == "cuda" else "cpu")
    compiled = staxlab.explain(lambda x: x.sum(-1), sample, target=target(), options={"split_reductions": False})
    (node,) = compiled.schedule.nodes
    blocks = {"XBLOCK": 1, "R0_BLOCK": step}
    return triton_kernel(compiled.schedule, node, f"_flight_{instances}_{step}", device, (blocks, WARPS, 1)), (
        rows,
        length,
    )


def flight(elements: int, readings: int, combinations: Any = None) -> list[dict[str, Any]]:
    """Every combination: what the model says, and what was measured if there is a device."""
    rows = []
    for instances, step in combinations or itertools.product(INSTANCES, STEPS):
        kernel, shape = row_sum_kernel(instances, step, elements)
        found = kernel.occupancy()
        law = found.in_flight
        (point,) = law.points
        row = {
            "instances": instances, "step": step, "shape": shape,
            "bytes": 4 * shape[0] * shape[1], "registers": found.usage.registers,
            "bytes_per_thread": found.loads.bytes, "resident_blocks": found.resident_blocks,
            "in_flight": point.per_multiprocessor, "wanted": law.per_multiprocessor,
            "predicted_bandwidth": law.achieved(point.per_multiprocessor),
        }  # fmt: skip
        if torch.cuda.is_available():
            row |= _measured_flight(kernel, shape, readings, point.per_multiprocessor * law.device.multiprocessors)
        rows.append(row)
    return rows


def _measured_flight(kernel: Any, shape: tuple[int, int], readings: int, in_flight: float) -> dict[str, Any]:
    from staxlab.codegen.triton.launcher import load
    from staxlab.measure import tolerance

    x = torch.randn(shape, device="cuda")
    out = torch.empty(shape[0], device="cuda")
    run = load(kernel)
    run(*(x if a.role == "input" else out for a in kernel.arguments))
    tolerance.of_sum(x, typical=True).require(out, x.sum(-1))
    found = _timed(lambda: run(x, out), readings)
    bandwidth = x.numel() * 4 / found["median_s"]
    return {**found, "bandwidth": bandwidth, "latency_if_unsaturated_s": in_flight / bandwidth}


def _timed(run: Any, readings: int) -> dict[str, Any]:
    """Seconds per call between CUDA events: the median of the readings, and its interval (Proposition 13.2)."""
    from benchmarks.gpu import seconds_per_call
    from staxlab.measure.timing import median_interval

    calls = max(2, min(200, int(READING_SECONDS / max(seconds_per_call(run, 2), 1e-7))))
    taken = [seconds_per_call(run, calls) for _ in range(readings)]
    interval = median_interval(taken)
    return {"median_s": statistics.median(taken), "interval_s": [interval.low, interval.high]}


# --- Sectors ----------------------------------------------------------------------------------------------------------


def sectors(size: int, readings: int) -> dict[str, Any]:
    """Example 6.1 in one dimension and as tiled: sectors by the model, times if there is a device."""
    import staxlab
    from staxlab.codegen.triton import triton_kernel
    from staxlab.measure.coalescing import compare_tilings, one_dimensional

    where = "cuda" if target() == "cuda" else "cpu"
    x, y = torch.randn(size, size, device=where), torch.randn(size, size, device=where)
    compiled = staxlab.explain(lambda x, y: x.t() + y, x, y, target=target())
    schedule = compiled.schedule
    compared = compare_tilings(schedule)
    (node,) = schedule.nodes
    found: dict[str, Any] = {"size": size, "variants": {}}
    kernels = {
        "one dimension": (one_dimensional(schedule, node), compared.flat),
        "as tiled": (triton_kernel(schedule, node, "_tiled", schedule.device), compared.chosen),
    }
    for name, (kernel, pattern) in kernels.items():
        entry: dict[str, Any] = {
            "efficiency": pattern.efficiency,
            "accesses": [
                {
                    "access": f"{a.role} {a.buffer}",
                    "width": a.width,
                    "sectors": a.sectors_each,
                    "efficiency": a.efficiency,
                }
                for a in pattern.accesses
            ],
        }
        if torch.cuda.is_available():
            entry |= _measured_sectors(kernel, schedule, node, x, y, readings)
        found["variants"][name] = entry
    return found


def _measured_sectors(kernel: Any, schedule: Any, node: Any, x: Any, y: Any, readings: int) -> dict[str, Any]:
    from staxlab.codegen.triton.launcher import load

    layout = schedule.layouts[node.buffers[0]]
    out = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype, device="cuda")
    tensors = dict(zip(schedule.inputs, (x, y), strict=True)) | {node.buffers[0]: out}
    given = [tensors[a.buffer] for a in kernel.arguments]
    run = load(kernel)
    run(*given)
    torch.testing.assert_close(
        out.reshape(-1), (x.t() + y).to(out.dtype).as_strided(out.shape, out.stride()).reshape(-1)
    )
    found = _timed(lambda: run(*given), readings)
    return {**found, "bytes": 3 * x.numel() * 4, "effective_bandwidth": 3 * x.numel() * 4 / found["median_s"]}


# --- Occupancy --------------------------------------------------------------------------------------------------------


def occupancy_kernels() -> list[Any]:
    """Kernels of every form, small: pointwise in one and two dimensions, held and looped rows, fused, a product."""
    import staxlab

    where = "cuda" if target() == "cuda" else "cpu"
    x, y = torch.randn(512, 2048, device=where), torch.randn(2048, 512, device=where)
    h = torch.randn(512, 512, device=where, dtype=torch.bfloat16)
    functions = [
        (lambda x: torch.relu(x) * 2, (x,), {}), (lambda x, y: x.t() + y, (x, y), {}), (lambda x: x.sum(-1), (x,), {}),
        (lambda x: x.sum(0), (x,), {}), (lambda x: torch.softmax(x, -1), (x,), {}), (lambda x: x.cumsum(-1), (x,), {}),
        (lambda x: torch.nn.functional.gelu(x), (x,), {}), (lambda h: h @ h, (h,), {"matmul": "template"}),
    ]  # fmt: skip
    made = []
    for function, inputs, options in functions:
        compiled = staxlab.explain(function, *inputs, target=target(), options=options)
        made += [kernel for kernel in compiled.kernels if kernel.language == "triton"]
    return made


def driver_counts(kernel: Any) -> dict[str, int]:
    """Registers, static shared and local memory, and resident blocks of a kernel as the CUDA driver gives them.

    Needs a device. RuntimeError with the driver's number if a call fails.
    """
    from staxlab.codegen.triton.compile import aot_compile

    torch.cuda.init()
    torch.zeros(1, device="cuda")  # makes the device's primary context current
    steps = aot_compile(kernel)
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *given: Any) -> None:
        status = getattr(driver, name)(*given)
        if status:
            raise RuntimeError(f"{name} returned {status}")

    cubin = ctypes.create_string_buffer(bytes(steps["cubin"]), len(steps["cubin"]))
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), cubin)
    try:
        call("cuModuleGetFunction", ctypes.byref(function), module, steps["metadata"].name.encode())
        shared = int(steps["metadata"].shared)
        if shared > 48 << 10:
            call("cuFuncSetAttribute", function, SHARED_LIMIT, ctypes.c_int(shared))
        values = {}
        for name, number in (("registers", REGISTERS), ("static_shared", STATIC_SHARED), ("local", LOCAL)):
            value = ctypes.c_int()
            call("cuFuncGetAttribute", ctypes.byref(value), number, function)
            values[name] = value.value
        blocks = ctypes.c_int()
        threads = ctypes.c_int(32 * kernel.launch["num_warps"])
        call(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(blocks), function, threads,
            ctypes.c_size_t(shared),
        )  # fmt: skip
    finally:
        call("cuModuleUnload", module)
    return values | {"blocks": blocks.value}


def occupancies() -> list[dict[str, Any]]:
    """Every kernel: the package's rules, and the driver if there is a device."""
    rows = []
    for kernel in occupancy_kernels():
        found = kernel.occupancy()
        row: dict[str, Any] = {
            "kernel": kernel.name, "form": kernel.launch["form"], "warps": found.usage.warps,
            "model": {"registers": found.usage.registers, "shared": found.usage.shared, "blocks": found.blocks,
                      "binding": list(found.binding)},
        }  # fmt: skip
        if torch.cuda.is_available():
            row["driver"] = driver_counts(kernel)
            row["agree"] = all(row["driver"][name] == row["model"][name] for name in ("registers", "blocks"))
        rows.append(row)
    return rows


# --- The command ------------------------------------------------------------------------------------------------------


def summary(record: dict[str, Any]) -> dict[str, Any]:
    """What the three comparisons come to; figures that need a device only where there was one."""
    found: dict[str, Any] = {"kernels": len(record["occupancy"])}
    measured = [row for row in record["flight"] if "bandwidth" in row]
    if measured:
        best = max(row["bandwidth"] for row in measured)
        low = [row for row in measured if row["in_flight"] < 0.5 * row["wanted"]]
        found |= {
            "best_bandwidth": best,
            "latency_s": statistics.median(row["latency_if_unsaturated_s"] for row in low) if low else None,
            "agreeing_occupancies": sum(row["agree"] for row in record["occupancy"]),
        }
        times = {name: entry["median_s"] for name, entry in record["sectors"]["variants"].items()}
        found["tiling_speedup"] = times["one dimension"] / times["as tiled"]
    return found


def show(record: dict[str, Any]) -> None:
    for row in record["flight"]:
        words = (
            f"{row['instances']:>3} instances, steps of {row['step']:>4}: {row['in_flight'] / 1e3:7.1f} KB in flight, "
        )
        words += f"at most {row['predicted_bandwidth'] / 1e12:.2f} TB/s"
        if "bandwidth" in row:
            words += f", measured {row['bandwidth'] / 1e12:.2f} TB/s"
        print(words)
    for name, entry in record["sectors"]["variants"].items():
        words = f"x.t() + y {name}: {100 * entry['efficiency']:.3g}% of the sectors are needed"
        print(words + (f", {entry['effective_bandwidth'] / 1e12:.2f} TB/s" if "median_s" in entry else ""))
    for row in record["occupancy"]:
        words = f"{row['kernel']} ({row['form']}): {row['model']['blocks']} blocks by the rules"
        print(words + (f", {row['driver']['blocks']} by the driver" if "driver" in row else ""))
    print(record["summary"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 when everything was measured (or, with ``--smoke``, predicted) and occupancies agree."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hardware_models", description=__doc__.split("\n")[0])
    parser.add_argument("--readings", type=int, default=15)
    parser.add_argument("--smoke", action="store_true", help="predictions alone, small, without a device")
    parser.add_argument("--out", type=Path, help="write the record as JSON")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available() and not options.smoke:
        print("no CUDA device here; --smoke prints what the models predict")
        return 2
    from benchmarks.records import header, save

    small = options.smoke
    record: dict[str, Any] = {
        **header(FORMAT, "cuda" if torch.cuda.is_available() else "cpu"),
        "device_present": torch.cuda.is_available(),
        "flight": flight(1 << 20, options.readings, [(1, 128), (4, 512)])
        if small
        else flight(ELEMENTS, options.readings),
        "sectors": sectors(256 if small else 16384, options.readings),
        "occupancy": occupancies(),
    }
    record["summary"] = summary(record)
    show(record)
    if options.out:
        save(record, options.out)
    return int(any(not row.get("agree", True) for row in record["occupancy"]))


if __name__ == "__main__":
    raise SystemExit(main())
