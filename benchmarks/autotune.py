"""Searching for launch configurations on a CUDA device: what each method finds, and what it spends (Section 9.6).

    python -m benchmarks.autotune --out benchmarks/results/autotune_h200.json
    python -m benchmarks.autotune --all --only softmax       all cases of benchmarks.gpu, of these those of one name
    python -m benchmarks.autotune --smoke                    no GPU: small cases, interpreted, a made-up clock

For every kernel of a case: the rule's configuration against what the candidate set, coordinate descent, random search
(60 draws), successive halving, and all of a small space around the rule's end with. Every method begins with nothing
compiled. The chosen configurations are then timed beside the rule's, in turns, by CUDA events; a ratio above 1 says how
many times as long the rule's takes, with the interval of the median of pairwise ratios (Proposition 13.2). A
kernel takes some hundred compilations, most of them for random search and for the small space: ``--methods`` and
``--only`` divide the work. With ``--smoke`` nothing is measured: the file says so, and its seconds mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_cases import GpuCase, all_cases, from_table, fused_cases, norm_case, transpose_add

FORMAT = "staxlab-autotune-benchmark-1"
METHODS = ("candidates", "descent", "random", "halving", "exhaustive")
SMALL_SPACE = 48  # configurations that are all tried

Launch = Callable[..., None]


# --- Where kernels run ------------------------------------------------------------------------------------------------


class Cuda:
    """The device itself: Triton's compiler, and CUDA events for a clock."""

    name, target, measured = "cuda", "cuda", True

    def __init__(self) -> None:
        from staxlab.codegen.triton.launcher import load
        from staxlab.runtime.autotune_launch import EventTimer
        from staxlab.runtime.triton_builds import compile_kernels

        self.load, self.timer, self.ahead = load, EventTimer(), compile_kernels


class Pretended:
    """No device: kernels run once in Triton's interpreter, and the clock reads a model of registers and resident warps
    (:class:`staxlab.runtime.autotune_landscapes.RegisterCliff`). For trying the command, never for a result."""

    name, target, measured, ahead = "cpu", "sm_90", False, None

    def __init__(self) -> None:
        from staxlab.runtime.autotune_landscapes import RegisterCliff

        self.model = RegisterCliff(elements=1 << 20)

    def load(self, kernel: Any) -> Launch:
        from staxlab.codegen.triton.interpreter import interpret

        def launch(*tensors: torch.Tensor) -> None:
            interpret(kernel, tensors)

        launch.kernel = kernel
        return launch

    def timer(self, launch: Any, tensors: Sequence[torch.Tensor]) -> float:
        made = launch.kernel.launch
        tile = math.prod(made["constants"].values())
        seconds = self.model((tile, made["num_warps"]))
        return seconds if math.isfinite(seconds) else 1.0


@contextlib.contextmanager
def nothing_compiled() -> Iterator[None]:
    """Empty caches, on disk and in memory, so that a method pays for every compilation it asks for."""
    from staxlab.codegen.triton import source_files

    names = ("STAXLAB_CACHE_DIR", "TRITON_CACHE_DIR")
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    with tempfile.TemporaryDirectory(prefix="staxlab-autotune-") as directory:
        os.environ[names[0]] = directory
        source_files.clear()
        try:
            yield
        finally:
            source_files.clear()
            del os.environ[names[0]]
            os.environ.update(before)


# --- One kernel -------------------------------------------------------------------------------------------------------


def small_space(tuning: Any) -> Any:
    """The configurations within a factor of two of the rule's, parameter by parameter, while there are few enough."""
    from staxlab.codegen.configurations import ConfigurationSpace

    sets = {}
    for parameter, value in zip(tuning.space.parameters, tuning.rule, strict=True):
        near = [v for v in parameter.values if value / 2 <= v <= 2 * value]
        others = math.prod(len(kept) for kept in sets.values())
        sets[parameter.name] = near if others * len(near) <= SMALL_SPACE else [value]
    return ConfigurationSpace.of(sets)


def search(tuning: Any, method: str, device: Any, tensors: Sequence[torch.Tensor], readings: int) -> dict[str, Any]:
    """One method on one kernel: what it chose, and what that took. Seconds of the host's clock."""
    from staxlab.runtime.autotune import exhaustive
    from staxlab.runtime.autotune_launch import KernelCost, search_kernel
    from staxlab.runtime.autotune_noise import Interleaved

    with nothing_compiled():
        cost = KernelCost(tuning, device.load, device.timer, tensors, device.ahead)
        began = time.perf_counter()
        if method == "exhaustive":
            found = exhaustive(small_space(tuning), Interleaved(cost, max(readings // 3, 1)), start=tuning.rule)
        else:
            found = search_kernel(tuning, cost, method, readings=readings)
        seconds = time.perf_counter() - began
    searches = [found, *([found.before] if found.before else [])]
    excluded = {tuning.space.words(c): why for c, why in cost.excluded.items()}
    return {
        "method": method,
        "chosen": dict(zip(tuning.space.names, found.chosen, strict=True)),
        "reason": found.reason,
        "space": found.space.size,
        "compilations": len(cost.launchers) + len(cost.excluded),
        "evaluations": max(one.evaluations for one in searches),  # one meter counts for both
        "acceptances": sum(one.acceptances for one in searches),
        "undecided": sum(len(one.undecided) for one in searches),
        "excluded": excluded,
        "seconds": seconds,
        "configuration": list(found.chosen),
    }


def tensors_of(compilation: Any, kernel: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Arguments for one kernel: the case's inputs, and memory of the right layout for every other buffer."""
    schedule, known = compilation.schedule, dict(zip(compilation.schedule.inputs, inputs, strict=False))
    found = []
    for argument in kernel.arguments:
        if argument.buffer not in known:
            layout = schedule.layouts[argument.buffer]
            made = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype, device=inputs[0].device)
            known[argument.buffer] = made.zero_() if argument.role != "output" else made
        found.append(known[argument.buffer])
    return found


def beside_the_rule(
    tuning: Any, chosen: dict[str, tuple], device: Any, tensors: Sequence[torch.Tensor], readings: int
) -> dict[str, Any]:
    """Every chosen configuration timed in turns with the rule's: median seconds, and the ratio with its interval."""
    from staxlab.runtime.order_statistics import median_interval

    launches = {}
    for configuration in dict.fromkeys([tuning.rule, *chosen.values()]):
        launches[configuration] = device.load(tuning.kernel(configuration))
        launches[configuration](*tensors)
    taken: dict[tuple, list[float]] = {configuration: [] for configuration in launches}
    for _ in range(readings):
        for configuration, launch in launches.items():
            taken[configuration].append(device.timer(launch, tensors))
    found = {}
    for method, configuration in chosen.items():
        ratios = [a / b for a, b in zip(taken[tuning.rule], taken[configuration], strict=True)]
        interval = median_interval(ratios)
        found[method] = {
            "median_s": statistics.median(taken[configuration]),
            "ratio": statistics.median(ratios),
            "interval": [interval.low, interval.high],
            "readings": readings,
        }
    found["rule"] = {"median_s": statistics.median(taken[tuning.rule]), "readings": readings}
    return found


def measure(case: GpuCase, device: Any, methods: Sequence[str], readings: int) -> dict[str, Any]:
    """All kernels of one case."""
    import staxlab

    inputs = case.inputs(0, device.name)
    compilation = staxlab.explain(case.function, *inputs, target=device.target, strict_native=True)
    record: dict[str, Any] = {
        "case": case.name, "title": case.title, "shapes": case.shapes, "least_bytes": case.least_bytes, "kernels": [],
    }  # fmt: skip
    for kernel in compilation.kernels:
        tuning = kernel.tuning
        if tuning is None or len(tuning.candidates) == 1:
            continue
        from staxlab.runtime.autotune_launch import stand_ins

        tensors = stand_ins(kernel, tensors_of(compilation, kernel, inputs))
        entries = [search(tuning, method, device, tensors, readings) for method in methods]
        chosen = {entry["method"]: tuple(entry.pop("configuration")) for entry in entries}
        timed = beside_the_rule(tuning, chosen, device, tensors, 2 * readings + 1)
        for entry in entries:
            entry |= timed[entry["method"]]
        record["kernels"].append(
            {
                "name": kernel.name, "form": kernel.launch["form"], "space": tuning.space.size,
                "bytes_moved": kernel.bytes_read + kernel.bytes_written,
                "rule": {"chosen": dict(zip(tuning.space.names, tuning.rule, strict=True)), **timed["rule"]},
                "searches": entries,
            }
        )  # fmt: skip
    return record


# --- The command ------------------------------------------------------------------------------------------------------


def tuning_cases(everything: bool = False) -> list[GpuCase]:
    """One case of each form and of a few sizes, or all that ``benchmarks.gpu`` has, each once."""
    if everything:
        return list({case.title: case for case in (*all_cases(), *fused_cases())}.values())
    large = (65536, 2048)
    return [
        from_table("example_1_1", large), from_table("example_1_1", (8192, 2048)),
        from_table("row_sum", (16384, 8192)), from_table("add", large), from_table("exp", large), transpose_add(16384),
        from_table("softmax_library", (16384, 1000)), from_table("softmax_library", (4096, 32768)),
        norm_case((65536, 1024), torch.bfloat16),
    ]  # fmt: skip


def smoke_cases() -> list[GpuCase]:
    """Small ones of three forms, which the interpreter is through with in seconds."""
    return [
        from_table("example_1_1", (8, 128)),
        dataclasses.replace(transpose_add(48), name="transpose_add"),
        from_table("row_sum", (4, 5000)),
    ]


def lines(record: dict[str, Any]) -> Iterator[str]:
    """A case in words."""
    for kernel in record["kernels"]:
        rule = kernel["rule"]
        yield f"{record['title']}: {kernel['name']}, rule {rule['chosen']} {rule['median_s'] * 1e6:.1f} us"
        for entry in kernel["searches"]:
            low, high = entry["interval"]
            yield (
                f"    {entry['method']:11s} {entry['ratio']:.3f} times as fast [{low:.3f}, {high:.3f}] "
                f"{entry['chosen']}; {entry['compilations']} compilations, {entry['evaluations']} readings, "
                f"{entry['seconds']:.1f} s"
            )


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 0 when every case was searched."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.autotune", description=__doc__.split("\n")[0])
    p.add_argument("--readings", type=int, default=9, help="of each side of a comparison (default 9)")
    p.add_argument("--methods", default=",".join(METHODS), help=f"of {', '.join(METHODS)}")
    p.add_argument("--all", action="store_true", help="every case of benchmarks.gpu")
    p.add_argument("--only", default="", help="only cases whose title contains this")
    p.add_argument("--smoke", action="store_true", help="no GPU: small cases, interpreted, a made-up clock")
    p.add_argument("--out", type=Path)
    options = p.parse_args(arguments)
    methods = [name.strip() for name in options.methods.split(",") if name.strip()]
    for name in methods:
        if name not in METHODS:
            p.error(f"no method {name!r}; methods: {', '.join(METHODS)}")
    if options.readings < 1 or not methods:
        p.error("at least one reading and one method are needed")
    if not options.smoke and not torch.cuda.is_available():
        print("no CUDA device here; --smoke tries the command without one")
        return 2
    from benchmarks.records import header, save

    device = Pretended() if options.smoke else Cuda()
    cases = smoke_cases() if options.smoke else tuning_cases(options.all)
    record: dict[str, Any] = {
        **header(FORMAT, device.name), "measured": device.measured, "readings": options.readings, "cases": [],
    }  # fmt: skip
    if options.smoke:
        print("no device: the times below are made up, only the steps are real")
    for case in cases:
        if options.only not in case.title:
            continue
        found = measure(case, device, methods, options.readings)
        record["cases"].append(found)
        print("\n".join(lines(found)), flush=True)
        if options.out is not None:
            save(record, options.out)
        if device.measured:
            torch.cuda.empty_cache()
    if not options.smoke:
        print(summary(record, methods))
    return 0


def summary(record: dict[str, Any], methods: Sequence[str]) -> str:
    """Geometric means of the ratios over all kernels, by method."""
    said = []
    for method in methods:
        ratios = [
            entry["ratio"] for case in record["cases"] for kernel in case["kernels"] for entry in kernel["searches"]
            if entry["method"] == method
        ]  # fmt: skip
        if ratios:
            said.append(f"{method} {math.exp(statistics.fmean(map(math.log, ratios))):.3f} of {len(ratios)} kernels")
    return "geometric mean of (rule's time / chosen one's): " + ", ".join(said)


if __name__ == "__main__":
    raise SystemExit(main())
