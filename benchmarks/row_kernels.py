"""Rows held in registers or walked along: launch configurations of reductions over rows of every length (Section 9.4).

    python -m benchmarks.row_kernels --out benchmarks/results/row_kernels_h200.json
    python -m benchmarks.row_kernels --columns 64,128,256     other lengths of a row
    python -m benchmarks.row_kernels --smoke                  no GPU: small cases, interpreted, nothing timed

The rules of :mod:`staxlab.codegen.triton.launch` say how many rows an instance takes, how many warps, and whether a row
is held. What they are worth is measured here: sums, moments, softmax, norms, cross entropy and scans over rows of 1,000
to 32,768 elements, some thirty configurations of each, every input 256 MiB. Several processes compile, and one at a
time uses the device. The shares printed are the best configuration's seconds over the rule's.
"""

from __future__ import annotations

import argparse
import fcntl
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_cases import GpuCase, cross_entropy_case, from_table, moments_case, norm_case, rms_case

FORMAT = "staxlab-row-kernels-1"
COLUMNS = (1000, 2048, 4096, 8192, 16384, 32768)
INPUT_BYTES = 256 << 20
READINGS = 3
LARGEST_HELD = 16384  # elements of a row
LARGEST_TILE = 8192  # elements of several rows together

#: What is computed of rows, and in which dtypes.
KINDS: dict[str, tuple[Callable[..., GpuCase], tuple[torch.dtype, ...]]] = {
    "row_sum": (lambda size, dtype: from_table("row_sum", size, dtype), (torch.float32, torch.bfloat16)),
    "example_7_1": (lambda size, dtype: from_table("example_7_1", size, dtype), (torch.float32,)),
    "example_7_2": (lambda size, dtype: from_table("example_7_2", size, dtype), (torch.float32, torch.bfloat16)),
    "softmax": (lambda size, dtype: from_table("softmax_library", size, dtype), (torch.float32, torch.bfloat16)),
    "layer_norm": (norm_case, (torch.float32, torch.bfloat16)),
    "rms_norm": (rms_case, (torch.float32, torch.bfloat16)),
    "cross_entropy": (lambda size, dtype: cross_entropy_case(size), (torch.float32,)),
    "var_mean": (lambda size, dtype: moments_case(size), (torch.float32,)),
    "cumsum": (lambda size, dtype: from_table("cumsum_rows", size, dtype), (torch.float32,)),
}


def configurations(tuning: Any, columns: int) -> Iterator[tuple[int, ...]]:
    """Rows, elements of a step, warps and stages worth trying: 4 to 32 elements to a lane; the rule's own first."""
    yield tuning.rule
    row = 1 << (columns - 1).bit_length()
    steps = [row] if row <= LARGEST_HELD else []
    steps += [step for step in (2048, 4096, 8192) if step < row]
    for rows in (1, 2, 4) if row >= 1024 else (1, 2, 4, 8, 16, 32, 64):
        for step in steps:
            if rows > 1 and rows * step > LARGEST_TILE:
                continue
            for warps in (1, 2, 4, 8, 16, 32):
                if 4 <= rows * step // (32 * warps) <= 32:
                    yield from ((rows, step, warps, stages) for stages in ((1,) if step == row else (1, 3)))


def measure(name: str, dtype: torch.dtype, columns: int, lock: str) -> dict[str, Any]:
    """Seconds of every configuration of the kernel that moves most. Compiles first, then waits for the device."""
    import staxlab
    from benchmarks.autotune import Cuda, tensors_of
    from staxlab.runtime.autotune_launch import stand_ins

    row = 1 << (columns - 1).bit_length()
    case = KINDS[name][0]((INPUT_BYTES // (row * dtype.itemsize), columns), dtype)
    device, inputs = Cuda(), case.inputs(0)
    compilation = staxlab.explain(case.function, *inputs, strict_native=True)
    kernel = max(compilation.kernels, key=lambda k: k.bytes_read + k.bytes_written)
    tuning = kernel.tuning
    tensors = stand_ins(kernel, tensors_of(compilation, kernel, inputs))
    launches, refused = {}, {}
    for configuration in dict.fromkeys(configurations(tuning, columns)):
        try:
            launches[configuration] = device.load(tuning.kernel(configuration))
            launches[configuration](*tensors)
        except staxlab.StaxError as error:
            refused["-".join(map(str, configuration))] = error.what
    torch.cuda.synchronize()
    with open(lock) as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        for launch in launches.values():
            device.timer(launch, tensors)
        readings = {c: [device.timer(launch, tensors) for _ in range(READINGS)] for c, launch in launches.items()}
        torch.cuda.synchronize()
    taken = {c: min(values) for c, values in readings.items()}
    best = min(taken, key=taken.__getitem__)
    return {
        "case": name, "dtype": str(dtype).removeprefix("torch."), "shape": list(case.shapes[0]),
        "least_bytes": case.least_bytes, "form": kernel.launch["form"], "parameters": list(tuning.parameters),
        "rule": list(tuning.rule), "rule_s": taken[tuning.rule], "best": list(best), "best_s": taken[best],
        "share": taken[best] / taken[tuning.rule], "refused": refused,
        "configurations": {"-".join(map(str, c)): seconds for c, seconds in taken.items()},
    }  # fmt: skip


def jobs(columns: Sequence[int], only: str) -> list[tuple[str, torch.dtype, int]]:
    found = [(name, dtype, n) for n in columns for name, (_, dtypes) in KINDS.items() for dtype in dtypes]
    return [job for job in found if only in job[0]]


def run(wanted: Sequence[tuple[str, torch.dtype, int]], processes: int) -> Iterator[dict[str, Any]]:
    """The records as they come. A case that fails says so and ends nothing else."""
    with tempfile.NamedTemporaryFile() as lock:
        pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
        try:
            waiting = {pool.submit(measure, *job, lock.name): job for job in wanted}
            for done in as_completed(waiting):
                name, dtype, columns = waiting[done]
                try:
                    yield done.result()
                except Exception as error:  # of any kind: the record says which case has no figure, and why
                    yield {"case": name, "dtype": str(dtype)[6:], "shape": [0, columns], "problem": str(error)[:300]}
        finally:
            pool.shutdown(cancel_futures=True)


def line(record: dict[str, Any]) -> str:
    title = f"{record['case']:14s} {record['dtype']:9s} {record['shape'][0]:8d} x {record['shape'][1]:<6d}"
    if "problem" in record:
        return f"{title} {record['problem']}"
    rate = record["least_bytes"] / 1e12
    return (
        f"{title} rule {tuple(record['rule'])} {rate / record['rule_s']:.2f} TB/s, best {tuple(record['best'])} "
        f"{rate / record['best_s']:.2f} TB/s, share {record['share']:.3f}"
    )


def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How near the rule is to the best: the geometric mean of the shares, and the least."""
    shares = {f"{r['case']} {r['dtype']} {r['shape'][1]}": r["share"] for r in records if "share" in r}
    if not shares:
        return {}
    mean = math.exp(statistics.fmean(map(math.log, shares.values())))
    return {"cases": len(shares), "geometric_mean": mean, "least": min(shares.items(), key=lambda item: item[1])}


def smoke() -> int:
    """Every kind once on short rows: each configuration's kernel in the interpreter gives the rule's values."""
    import staxlab
    from benchmarks.autotune import tensors_of
    from staxlab.codegen.triton.interpreter import interpret

    wrong = 0
    for name, (make, dtypes) in KINDS.items():
        case = make((4, 100), dtypes[0])
        inputs = case.inputs(0, "cpu")
        compilation = staxlab.explain(case.function, *inputs, target="sm_90", strict_native=True)
        kernel = max(compilation.kernels, key=lambda k: k.bytes_read + k.bytes_written)
        found = []
        for configuration in list(dict.fromkeys(configurations(kernel.tuning, 100)))[:3]:
            tensors = tensors_of(compilation, kernel, inputs)
            interpret(kernel.tuning.kernel(configuration), tensors)
            found.append(tensors)
        good = all(torch.allclose(a, b, atol=1e-5) for other in found[1:] for a, b in zip(found[0], other, strict=True))
        wrong += not good
        print(f"{name:14s} {len(found)} configurations, {'equal' if good else 'different'}", flush=True)
    return int(wrong > 0)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 0 when every case was measured."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.row_kernels", description=__doc__.split("\n")[0])
    p.add_argument("--columns", default=",".join(map(str, COLUMNS)), help="lengths of rows, separated by commas")
    p.add_argument("--only", default="", help="only kinds whose name contains this")
    p.add_argument("--processes", type=int, default=max(1, min(15, (os.cpu_count() or 2) - 1)))
    p.add_argument("--smoke", action="store_true", help="no GPU: small cases, interpreted, nothing timed")
    p.add_argument("--out", type=Path)
    options = p.parse_args(arguments)
    try:
        columns = [int(part) for part in options.columns.split(",") if part.strip()]
    except ValueError:
        p.error(f"--columns takes whole numbers, not {options.columns!r}")
    if not columns or min(columns) < 2:
        p.error("rows have two elements at least")
    if options.smoke:
        return smoke()
    if not torch.cuda.is_available():
        print("no CUDA device here; --smoke tries the command without one")
        return 2
    from benchmarks.records import header, save

    began, records = time.perf_counter(), []
    record: dict[str, Any] = {**header(FORMAT, "cuda"), "readings": READINGS, "cases": records}
    for found in run(jobs(columns, options.only), options.processes):
        records.append(found)
        print(line(found), flush=True)
        if options.out is not None:
            save(record, options.out)
    record |= {"summary": summary(records), "seconds": time.perf_counter() - began}
    print(record["summary"])
    if options.out is not None:
        save(record, options.out)
    return int(any("problem" in found for found in records))


if __name__ == "__main__":
    raise SystemExit(main())
