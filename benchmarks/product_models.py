"""The models of Section 9.8 against a CUDA device: block numberings, pipeline stages, ridge points.

    python -m benchmarks.product_models --out benchmarks/results/product_models_h200.json
    python -m benchmarks.product_models --smoke      small, without a device, in Triton's interpreter

Three questions, each a model beside a measurement on the same kernel, the tiled template in bfloat16:

* *numbering*: the same tiles in groups of 1, 2, 4, ... rows of tiles. The model (``l2_traffic``) says what main memory
  has to serve, for one and two resident instances on a multiprocessor.
* *stages*: the same tiles with 1, 2, ... stages, as long as they fit. The model says the shared memory, and from which
  time per step more stages gain nothing.
* *ridge*: square products by the library in four kinds of number. The model says from which order on they are bound by
  arithmetic.

Variants take turns reading by reading, between CUDA events; the figure of merit is operations per second. Every variant
is compared with the library's product first: the largest difference over the largest value. Takes about two minutes.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

FORMAT = "staxlab-product-models-benchmark-1"
READING_SECONDS = 2e-3
GROUPS = (1, 2, 4, 8, 16, 32)
RIDGE_ORDERS = (128, 256, 384, 512, 640, 768, 896, 1024, 1536, 2048, 4096, 8192)
ALLOWED = 2e-2  # difference over the largest value, of a result in bfloat16


@dataclass(frozen=True)
class ProductCase:
    """A square product of this order in tiles (B_M, B_N, B_K) with so many warps; ``stages`` for the numberings."""

    order: int
    tile: tuple[int, int, int] = (128, 128, 64)
    warps: int = 8
    stages: int = 4


CASES = (ProductCase(2048), ProductCase(4096), ProductCase(8192), ProductCase(4096, (128, 256, 64), 8, 3))
SMOKE = (ProductCase(96, (32, 32, 16), 4, 2),)


def operands(order: int, device: str, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    """Two matrices with entries of either sign, the same every time."""
    generator = torch.Generator(device).manual_seed(order)
    return [torch.randn(order, order, generator=generator, device=device).to(dtype) for _ in range(2)]


def variant(case: ProductCase, group: int, stages: int) -> tuple[Any, Any]:
    """The kernel of the case with that numbering and so many stages, and its compilation."""
    import staxlab
    from staxlab.codegen.triton.templates import product_kernel

    samples = operands(case.order, "cpu")
    with torch.no_grad():
        compilation = staxlab.explain(torch.matmul, *samples, target="sm_90", options={"matmul": "template"})
    (node,) = [node for node in compilation.schedule.nodes if node.product is not None]
    rows, columns, depth = case.tile
    blocks = {"BLOCK_M": rows, "BLOCK_N": columns, "BLOCK_K": depth, "GROUP_M": group}
    device = compilation.kernels[0].device
    kernel = product_kernel(compilation.schedule, node, "", device, (blocks, case.warps, stages))
    return kernel, compilation


def numbering_model(case: ProductCase, groups: Sequence[int], l2_bytes: int, multiprocessors: int) -> dict[str, Any]:
    """Bytes that main memory serves for each numbering, by the model, with one and two instances on each."""
    from staxlab.measure.grouped_numbering import l2_traffic

    rows, columns, depth = case.tile
    down, across, steps = -(-case.order // rows), -(-case.order // columns), -(-case.order // depth)
    found: dict[str, Any] = {}
    for resident in (1, 2):
        window = min(resident * multiprocessors, down * across)
        traffic = l2_traffic(
            down, across, steps, window=window, capacity=l2_bytes, groups=groups, bytes_a=2 * rows * depth,
            bytes_b=2 * depth * columns,
        )  # fmt: skip
        found[str(resident)] = {str(run.group): traffic.nbytes(run) for run in traffic.runs}
        found["least"] = traffic.least_bytes
    return found


def stages_model(case: ProductCase, most: int = 8) -> dict[str, Any]:
    """Bytes of shared memory for each number of stages, as Section 9.8 and as the compiler reckons; how many fit."""
    from staxlab.measure.pipeline_stages import compiled_shared_bytes, stage_budget

    budget = stage_budget(case.tile, itemsize=2)
    counts = range(1, min(most, budget.stages) + 1)
    return {
        "most": budget.stages,
        "section": {str(s): budget.used(s) for s in counts},
        "compiler": {str(s): compiled_shared_bytes(case.tile, 2, s, num_warps=case.warps) for s in counts},
    }


def in_turn(runners: dict[str, Callable[[], Any]], readings: int) -> dict[str, dict[str, Any]]:
    """Median and interval of every runner, reading by reading in turn."""
    from benchmarks.gpu import seconds_per_call
    from staxlab.measure.timing import median_interval

    calls = {}
    for name, run in runners.items():
        seconds_per_call(run, 3)
        calls[name] = max(2, min(200, int(READING_SECONDS / max(seconds_per_call(run, 3), 1e-7))))
    taken: dict[str, list[float]] = {name: [] for name in runners}
    for _, name in itertools.product(range(readings), runners):
        taken[name].append(seconds_per_call(runners[name], calls[name]))
    found = {}
    for name, values in taken.items():
        interval = median_interval(values)
        ends = [interval.low, interval.high] if interval else None
        found[name] = {"median_s": statistics.median(values), "interval_s": ends, "readings": len(values)}
    return found


def launched(kernel: Any, tensors: Sequence[torch.Tensor], simulated: bool) -> Callable[[], Any]:
    """A call of the kernel on its operands and result."""
    if simulated:
        from staxlab.codegen.triton.interpreter import interpret

        return lambda: interpret(kernel, list(tensors))
    from staxlab.codegen.triton.launcher import TritonLauncher

    launcher = TritonLauncher(kernel)
    return lambda: launcher(*tensors)


def measure(case: ProductCase, readings: int, device: str) -> dict[str, Any]:
    """One case: numberings and stages, modelled and (on a device) timed, each checked against the library."""
    from staxlab.errors import BuildError

    simulated = device == "cpu"
    a, b = operands(case.order, device)
    true = (a.float() @ b.float()).to(a.dtype)
    scale = true.abs().max().float()
    properties = None if simulated else torch.cuda.get_device_properties(0)
    l2_bytes = properties.L2_cache_size if properties else 1 << 15
    multiprocessors = properties.multi_processor_count if properties else 4
    down = -(-case.order // case.tile[0])
    groups = [group for group in GROUPS if group == 1 or group <= down]
    model = stages_model(case, 3 if simulated else 8)
    variants = {f"group {group}": (group, case.stages) for group in groups}
    variants |= {f"stages {s}": (8, int(s)) for s in model["compiler"]}
    runners: dict[str, Callable[[], Any]] = {"library": lambda: torch.mm(a, b)}
    errors, failed = {}, {}
    for name, (group, stages) in variants.items():
        kernel, _ = variant(case, group, stages)
        result = torch.full_like(true, float("nan"))
        try:
            run = launched(kernel, [a, b, result], simulated)
            run()
        except BuildError as error:  # more shared memory or registers than there are
            failed[name] = str(error).splitlines()[0][:200]
            continue
        errors[name] = ((result.float() - true.float()).abs().max() / scale).item()
        runners[name] = run
    return {
        "order": case.order, "tile": case.tile, "num_warps": case.warps, "num_stages_of_numberings": case.stages,
        "operations": 2 * case.order**3,
        "numbering_model_bytes": numbering_model(case, groups, l2_bytes, multiprocessors),
        "stages_model_bytes": model, "errors": errors, "failed": failed,
        "times": {} if simulated else in_turn(runners, readings),
    }  # fmt: skip


def ridge(readings: int) -> list[dict[str, Any]]:
    """Square products by the library: operations per second by kind of number, in turn over the orders."""
    from staxlab.measure.matrix_traffic import peak_intensity

    kinds = {"float32": (torch.float32, False), "tf32": (torch.float32, True), "float16": (torch.float16, False),
             "bfloat16": (torch.bfloat16, False)}  # fmt: skip
    found = []
    for kind, (dtype, allow) in kinds.items():
        torch.backends.cuda.matmul.allow_tf32 = allow
        runners = {}
        for order in RIDGE_ORDERS:
            a, b = operands(order, "cuda", dtype)
            result = torch.empty_like(a)
            runners[str(order)] = lambda a=a, b=b, result=result: torch.mm(a, b, out=result)
        for order, entry in in_turn(runners, readings).items():
            n = int(order)
            intensity = float(peak_intensity(n, n, n, dtype.itemsize))
            found.append(
                {"dtype": kind, "order": n, "intensity": intensity, "rate": 2 * n**3 / entry["median_s"], **entry}
            )
    torch.backends.cuda.matmul.allow_tf32 = False
    return found


def report(found: dict[str, Any]) -> str:
    """The measurements of one case beside their models."""
    lines = [f"{found['order']} in tiles of {' x '.join(map(str, found['tile']))}"]
    for name, error in found["errors"].items():
        kind, number = name.split()
        if kind == "group":
            model = found["numbering_model_bytes"]
            served = f"main memory {model['1'][number] / 2**20:,.1f} or {model['2'][number] / 2**20:,.1f} MiB"
            words = f"{served} (least {model['least'] / 2**20:,.1f})"
        else:
            words = f"{found['stages_model_bytes']['compiler'][number] >> 10} KiB of shared memory"
        time = found["times"].get(name)
        rate = f"{found['operations'] / time['median_s'] / 1e12:7.1f} TFLOP/s" if time else "        not timed"
        lines.append(f"  {name:10} {rate}  model: {words}; error {error:.1e}")
    if "library" in found["times"]:
        rate = found["operations"] / found["times"]["library"]["median_s"] / 1e12
        lines.append(f"  {'library':10} {rate:7.1f} TFLOP/s")
    lines += [f"  {name:10} {why}" for name, why in found["failed"].items()]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 0 when every variant was right, 1 otherwise, 2 without a CUDA device."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.product_models", description=__doc__.split("\n")[0])
    p.add_argument("--readings", type=int, default=11)
    p.add_argument("--smoke", action="store_true", help="one small product in Triton's interpreter, without times")
    p.add_argument("--out", type=Path)
    options = p.parse_args(arguments)
    if not options.smoke and not torch.cuda.is_available():
        print("no CUDA device here; --smoke runs without one")
        return 2
    from benchmarks.records import header, save

    device = "cpu" if options.smoke else "cuda"
    record: dict[str, Any] = {**header(FORMAT, device), "cases": [], "ridge": []}
    wrong = 0
    for case in SMOKE if options.smoke else CASES:
        found = measure(case, options.readings, device)
        record["cases"].append(found)
        print(report(found))
        # not (x <= y): a NaN that was left where nothing was written is wrong, too
        wrong += sum(not error <= ALLOWED for error in found["errors"].values())
        if options.out:
            save(record, options.out)
    if not options.smoke:
        from benchmarks.gpu import copy_bandwidth

        record["copy_bandwidth"] = copy_bandwidth()
        record["ridge"] = ridge(options.readings)
        for entry in record["ridge"]:
            print(f"  {entry['dtype']:9} n = {entry['order']:5}  {entry['rate'] / 1e12:7.1f} TFLOP/s")
    if options.out:
        save(record, options.out)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
