"""One version for many sequence lengths: a transformer block over a range of lengths (Section 10.4).

    python -m benchmarks.dynamic_shapes --lengths 50 --out benchmarks/results/dynamic_shapes_cpu.json

A pre-norm transformer block (layer norms, attention over heads, a feed-forward layer with GELU) is called with many
sequence lengths in turn, forward and, with ``--training``, backward. Counted: versions, back ends planned, libraries
compiled, and how many of the lengths needed the compiler at all. Timed: the first call at each length, and then, at a
few of the lengths and taking turns, a call of the dynamic version against a function specialized on that very shape,
eager execution, and ``torch.compile(dynamic=True)``. Values are held against eager's before anything is timed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import records
from staxlab.measure.timing import compare

FORMAT = "staxlab-dynamic-shapes-1"


class Block(nn.Module):
    """A pre-norm transformer block of ``width`` channels in ``heads`` heads."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.project(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.merge(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(nn.functional.gelu(self.widen(self.second(x))))


def lengths_between(least: int, most: int, count: int) -> list[int]:
    """``count`` different lengths, spread evenly and in an order without a trend."""
    step = (most - least) / max(count - 1, 1)
    found = sorted({round(least + step * k) for k in range(count)})
    generator = torch.Generator().manual_seed(0)
    return [found[k] for k in torch.randperm(len(found), generator=generator)]


def run_of(function: Callable, block: Block, x: torch.Tensor, training: bool) -> Callable[[], Any]:
    """One call: forward, or forward and backward."""
    if not training:
        return torch.no_grad()(lambda: function(x))

    def step() -> torch.Tensor:
        block.zero_grad(set_to_none=True)
        result = function(x)
        result.backward(torch.ones_like(result))
        return result

    return step


def errors(function: Callable, block: Block, x: torch.Tensor, training: bool) -> float:
    """The largest difference from eager, relative to the largest value: of results, and of gradients."""
    pairs = []
    for called in (function, block):
        results = [run_of(called, block, x, training)()]
        if training:
            results += [p.grad.clone() for p in block.parameters()]
        pairs.append([r.detach().clone() for r in results])
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(*pairs, strict=True))


def measure(block: Block, batch: int, width: int, lengths: Sequence[int], training: bool, timed: int, readings: int,
            peers: Sequence[str]) -> dict[str, Any]:  # fmt: skip
    """The record of one run of a block over its lengths."""
    import staxlab
    from staxlab.runtime import size_parameters

    size_parameters.clear()
    x = {n: torch.randn(batch, n, width, requires_grad=training) for n in lengths}
    dynamic = staxlab.compile(block, dynamic=True)
    first, compiled_for, worst = [], [], 0.0
    for n in lengths:
        started = time.perf_counter()
        run_of(dynamic, block, x[n], training)()
        first.append(time.perf_counter() - started)
        version = dynamic.versions[-1].compilation
        halves = [version.instances.of(_flat(dynamic, x[n]))]
        halves += [half for half in (halves[0].backward,) if half is not None]
        compiled_for.append(sum(not hit for half in halves for hit in half.artifact.cache_hits.values()))
        worst = max(worst, errors(dynamic, block, x[n], training))
    families = size_parameters.statistics()
    found: dict[str, Any] = {
        "versions": len(dynamic.versions), "back ends": sum(v.compilation.instances.made for v in dynamic.versions),
        "lengths": list(lengths), "seconds of the first call": first, "libraries compiled": compiled_for,
        "families": families, "largest relative difference from eager": worst, "timed": [],
    }  # fmt: skip
    others = {"torch_compile": torch.compile(block, dynamic=True)} if "torch_compile" in peers else {}
    for n in sorted(lengths)[:: max(len(lengths) // timed, 1)][:timed]:
        special = staxlab.compile(block)
        sides = {"dynamic": dynamic, "specialized": special, "eager": block, **others}
        runs = {name: run_of(called, block, x[n], training) for name, called in sides.items()}
        for run in runs.values():
            run()
        result = compare(runs, readings=readings, warmup=2)
        ratios = {name: result.ratio("dynamic", name) for name in runs if name != "dynamic"}
        found["timed"].append({
            "length": n, "seconds": {name: result[name].median for name in runs},
            "over dynamic": {name: [r.median, r.interval.low, r.interval.high] for name, r in ratios.items()},
        })  # fmt: skip
    return found


def _flat(dynamic: Any, x: torch.Tensor) -> list[torch.Tensor]:
    return dynamic.versions[-1].region.capture.bind((x,), {})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, default=50)
    parser.add_argument("--least", type=int, default=16)
    parser.add_argument("--most", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--timed", type=int, default=5, help="how many of the lengths are timed against the others")
    parser.add_argument("--readings", type=int, default=15)
    parser.add_argument("--peers", default="torch_compile")
    parser.add_argument("--inference-only", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    torch.manual_seed(0)
    lengths = lengths_between(given.least, given.most, given.lengths)
    record = {**records.header(FORMAT), "batch": given.batch, "width": given.width, "heads": given.heads, "cases": {}}
    for name in ("inference", "training")[: 1 if given.inference_only else 2]:
        block = Block(given.width, given.heads)
        training = name == "training"
        found = measure(block, given.batch, given.width, lengths, training, given.timed, given.readings,
                        given.peers.split(","))  # fmt: skip
        record["cases"][name] = found
        needed = sum(map(bool, found["libraries compiled"]))
        print(f"{name}: {found['versions']} version(s), {found['back ends']} back ends for {len(lengths)} lengths, "
              f"{sum(found['libraries compiled'])} libraries compiled, at {needed} of the lengths; "
              f"largest difference {found['largest relative difference from eager']:.2g}")  # fmt: skip
        for row in found["timed"]:
            ratios = ", ".join(f"{k} {v[0]:.2f} [{v[1]:.2f}, {v[2]:.2f}]" for k, v in row["over dynamic"].items())
            print(f"  length {row['length']}: {row['seconds']['dynamic'] * 1e3:.2f} ms; others' time / its: {ratios}")
    if given.out:
        records.save(record, given.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
