"""Split reductions on a CUDA device (Section 6.5): eager, torch.compile, and staxlab with splitting on and off.

    python -m benchmarks.splitting --out benchmarks/results/splitting_h200.json

Full sums, column sums and row sums with few outputs, float32, timed as ``benchmarks.gpu`` times: CUDA events around
several calls, peers taking turns reading by reading, inputs in rotation so that every call reads memory and not the
cache. The figure of merit is the time of a call; the bytes of the input over it is the effective bandwidth. Errors are
relative to ``sum(|a|)``, the quantity that the bound of Section 6.5 is in terms of. It takes less than a minute.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import READING_SECONDS, copy_bandwidth, reading

FORMAT = "staxlab-splitting-benchmark-1"
MOST_SETS = 24


@dataclass(frozen=True)
class SumCase:
    """A sum over dimensions of a contiguous tensor; ``dim`` None sums all of it."""

    kind: str
    shape: tuple[int, ...]
    dim: int | None
    dtype: torch.dtype = torch.float32

    @property
    def name(self) -> str:
        size = "x".join(_count(extent) for extent in self.shape)
        return f"{self.kind} {size} {str(self.dtype).removeprefix('torch.')}"

    def function(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """A function object of its own for each peer, so that none meets another's specializations."""
        dim = self.dim
        return lambda x: x.sum() if dim is None else x.sum(dim)

    @property
    def input_bytes(self) -> int:
        count = self.dtype.itemsize
        for extent in self.shape:
            count *= extent
        return count


def _count(extent: int) -> str:
    return f"{extent >> 20}M" if extent >= 1 << 20 and extent % (1 << 20) == 0 else str(extent)


def all_cases() -> list[SumCase]:
    return [
        SumCase("full sum", (1 << 20,), None),
        SumCase("full sum", (2048, 2048), None),
        SumCase("full sum", (1 << 24,), None),
        SumCase("full sum", (1 << 24,), None, torch.bfloat16),
        SumCase("full sum", (1 << 28,), None),
        SumCase("column sum", (4096, 1024), 0),
        SumCase("column sum", (65536, 256), 0),
        SumCase("column sum", (1 << 20, 8), 0),
        SumCase("row sum", (64, 16384), 1),
        SumCase("row sum", (16, 1 << 20), 1),
        SumCase("row sum", (8192, 2048), 1),  # enough outputs: nothing is split, and both settings are the same code
    ]


def peers_of(case: SumCase) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    import staxlab

    torch._dynamo.reset()
    return {
        "eager": case.function(),
        "torch_compile": torch.compile(case.function()),
        "staxlab": staxlab.compile(case.function(), strict_native=True),
        "staxlab_whole": staxlab.compile(
            case.function(), strict_native=True, options={"split_reductions": False}
        ),
    }  # fmt: skip


def measure(case: SumCase, readings: int) -> dict[str, Any]:
    """All peers on one case. ``staxlab_region`` is the compiled region without dispatch."""
    from staxlab.loops.splitting import TOPIC
    from staxlab.measure.timing import median_interval

    generator = torch.Generator("cuda").manual_seed(0)
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    count = min(MOST_SETS, max(1, -(-4 * cache // case.input_bytes)))
    sets = [torch.randn(case.shape, generator=generator, device="cuda").to(case.dtype) for _ in range(count)]
    first = sets[0].double()
    true = case.function()(first)
    scale = case.function()(first.abs()).clamp(min=1e-300)
    del first
    peers = peers_of(case)
    entries: dict[str, dict[str, Any]] = {}
    runners: dict[str, Callable[[list[torch.Tensor]], Any]] = {}
    for name, function in peers.items():
        began = time.perf_counter()
        result = function(sets[0])
        torch.cuda.synchronize()
        entries[name] = {"first_call_s": time.perf_counter() - began}
        entries[name]["max_error"] = ((result.double() - true).abs() / scale).max().item()
        entries[name]["repeats"] = bool(torch.equal(result, function(sets[0])))
        runners[name] = lambda given, function=function: function(*given)
    compilation = peers["staxlab"].versions[-1].compilation
    entries["staxlab_region"] = {}
    runners["staxlab_region"] = compilation.artifact.call
    turns = {name: itertools.cycle([[x] for x in sets]) for name in runners}
    calls = {}
    for name, run in runners.items():
        reading(run, turns[name], 3)
        calls[name] = max(2, min(100, int(READING_SECONDS / max(reading(run, turns[name], 3), 1e-7))))
    taken: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(readings):
        for name, run in runners.items():
            taken[name].append(reading(run, turns[name], calls[name]))
    for name, values in taken.items():
        middle, interval = statistics.median(values), median_interval(values)
        entries[name] |= {
            "median_s": middle, "interval_s": [interval.low, interval.high], "calls_per_reading": calls[name],
            "readings": len(values), "effective_bandwidth": case.input_bytes / middle,
        }  # fmt: skip
    ratios = {
        name: statistics.median(a / b for a, b in zip(values, taken["staxlab"], strict=True))
        for name, values in taken.items()
    }
    return {
        "case": case.name, "shape": case.shape, "dim": case.dim, "input_bytes": case.input_bytes, "input_sets": count,
        "peers": entries, "times_staxlab": ratios,
        "decisions": [
            {"choice": d.choice, "reason": d.reason, "facts": dict(d.inputs)}
            for d in compilation.loops.decisions if d.topic == TOPIC
        ],
        "kernels": [
            {
                "name": k.name, "form": k.launch.get("form"), "grid": k.launch.get("grid"),
                "blocks": k.launch.get("constants"), "num_warps": k.launch.get("num_warps"),
            }
            for k in compilation.kernels
        ],
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 0 when every case was measured and right, 2 without a CUDA device."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.splitting", description=__doc__.split("\n")[0])
    p.add_argument("--readings", type=int, default=11)
    p.add_argument("--only", default="", help="only cases whose name contains this")
    p.add_argument("--list", action="store_true", help="name the cases and stop")
    p.add_argument("--out", type=Path)
    options = p.parse_args(arguments)
    cases = [case for case in all_cases() if options.only in case.name]
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    if not torch.cuda.is_available():
        print("no CUDA device here")
        return 2
    from benchmarks.records import header, save_progress
    from staxlab.measure.tolerance import beside_eager

    record: dict[str, Any] = {
        **header(FORMAT, "cuda"),
        "l2_bytes": torch.cuda.get_device_properties(0).L2_cache_size, "copy_bandwidth": copy_bandwidth(), "cases": [],
    }  # fmt: skip
    print(f"{record['machine']['device']}: copy {record['copy_bandwidth'] / 1e12:.2f} TB/s; times in microseconds")
    wrong = 0
    for case in cases:
        found = measure(case, options.readings)
        record["cases"].append(found)
        times = {name: f"{entry['median_s'] * 1e6:.1f}" for name, entry in found["peers"].items()}
        split = ", ".join(str(d["choice"]) for d in found["decisions"])
        print(f"{found['case']:30s} segments {split:6s} {times}")
        worst = max(entry.get("max_error", 0.0) for entry in found["peers"].values())
        allowed = beside_eager(found["peers"]["eager"]["max_error"], case.dtype)
        if worst > allowed or not found["peers"]["staxlab"]["repeats"]:
            wrong += 1
            print(f"   wrong: {found['peers']}")
        save_progress(record, options.out)
        torch.cuda.empty_cache()
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
