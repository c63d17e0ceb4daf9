"""From which size on compiling pays: a chain of two operators on 2^6 to 2^26 elements (Proposition 13.6).

    python -m benchmarks.small_sizes --threads 2 --out benchmarks/results/small_sizes_cpu.json

Fusing two operators saves half their traffic, but a call of a compiled function has a cost of its own. Proposition 13.6
says where the two meet: at ``N* = (tau_c - k tau_e) beta / (8 (k - 1))`` elements. Here the time of ``x * 2 + 1`` is
measured at every power of two, eager, under ``torch.compile`` and under staxlab, taking turns; beside the curve stands
``N*`` from the overheads at the smallest size, and the smallest size from which on a peer is never slower than eager
beyond the interval of its ratio: 0 if it never is.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

FORMAT = "staxlab-small-sizes-1"
OPERATORS = 2


def function(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def sides(peers: Sequence[str], x: torch.Tensor) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """Callables on ``x`` by peer, compiled and called once; and why others are missing. ``torch.compile`` specializes
    on the size, as staxlab does."""
    from benchmarks.peers import PEERS

    found: dict[str, Callable[[], Any]] = {}
    missing: dict[str, str] = {}
    for peer in peers:
        reason = PEERS[peer].missing("cpu")
        if reason is not None:
            missing[peer] = reason
            continue
        called: Callable[..., Any] = function
        if peer == "torch_compile":
            torch._dynamo.reset()
            called = torch.compile(function, dynamic=False)
        elif peer == "staxlab":
            import staxlab

            called = staxlab.compile(function, strict_native=True)
        elif peer == "xla":
            import jax
            import jax.numpy as jnp

            jitted, array = jax.jit(function), jnp.asarray(x.numpy())
            jax.block_until_ready(jitted(array))
            found[peer] = lambda jitted=jitted, array=array: jax.block_until_ready(jitted(array))
            continue
        if not torch.equal(called(x), function(x)):
            missing[peer] = "wrong: not what eager computes"
            continue
        found[peer] = lambda called=called: called(x)
    return found, missing


def measure(
    peers: Sequence[str], exponents: Sequence[int], readings: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Points per peer, smallest size first. Ctrl-C ends the run with the sizes measured until then."""
    from staxlab.measure.timing import compare

    points: dict[str, list[dict[str, Any]]] = {}
    missing: dict[str, str] = {}
    complete = True
    for exponent in exponents:
        x = torch.randn(1 << exponent)
        found, gone = sides(peers, x)
        missing |= gone
        calls = None if exponent > 16 else 200
        comparison = compare(found, readings=readings, warmup=20 if exponent <= 16 else 2, order="random", calls=calls)
        if not comparison.complete:
            complete = False
            break
        for timing in comparison.timings:
            ratio = comparison.ratio(timing.name, "eager") if timing.name != "eager" and "eager" in found else None
            interval = timing.interval()
            points.setdefault(timing.name, []).append(
                {
                    "elements": 1 << exponent,
                    "median_s": timing.median,
                    "low_s": interval.low,
                    "high_s": interval.high,
                    "calls_per_reading": timing.calls,
                    "speedup": ratio.to_json() if ratio is not None else None,
                }
            )
        say(
            f"2^{exponent}: "
            + ", ".join(
                f"{peer} {some[-1]['median_s'] * 1e6:.4g} us"
                + (f" ({some[-1]['speedup']['median']:.2f}x)" if some[-1]["speedup"] else "")
                for peer, some in points.items()
            )
        )
    return {"points": points, "missing": missing, "complete": complete}


def never_slower_from(points: Sequence[Mapping[str, Any]]) -> int | None:
    """The smallest measured size from which on a peer is nowhere slower than eager beyond the interval of its ratio; 0
    if it nowhere is, None if it is slower at the largest size."""
    smallest: int | None = 0
    for i, point in enumerate(points):
        if point["speedup"] is not None and point["speedup"]["interval"]["high"] < 1.0:
            smallest = points[i + 1]["elements"] if i + 1 < len(points) else None
    return smallest


def predicted(points: Mapping[str, Sequence[Mapping[str, Any]]], peer: str, bandwidth: float) -> float | None:
    """``N*`` of Proposition 13.6, at least 0, from the times at the smallest size."""
    from staxlab.measure.amortize import minimum_size

    if not points.get("eager") or not points.get(peer):
        return None
    eager, own = points["eager"][0]["median_s"], points[peer][0]["median_s"]
    return max(minimum_size(OPERATORS, eager / OPERATORS, own, bandwidth), 0.0)


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m benchmarks.small_sizes", description=__doc__.split("\n")[0])
    p.add_argument("--peers", default="eager,torch_compile,staxlab", help="names separated by commas, eager first")
    p.add_argument("--from", dest="first", type=int, default=6, help="smallest size, a power of two (default 6)")
    p.add_argument("--to", dest="last", type=int, default=26, help="largest size (default 26)")
    p.add_argument("--readings", type=int, default=15)
    p.add_argument("--threads", type=int, help="cores every peer may use (default: all)")
    p.add_argument("--out", type=Path, help="write JSON, and a plot beside it as SVG")
    options = p.parse_args(arguments)
    from benchmarks.peers import PEERS, limit_cores
    from benchmarks.records import header, save
    from staxlab.errors import MissingDependencyError
    from staxlab.measure.amortization import copy_bandwidth
    from staxlab.view.benchmark_roofs import write_sizes_plot

    names = [name.strip() for name in options.peers.split(",") if name.strip()]
    for name in names:
        if name not in PEERS:
            p.error(f"no peer named {name!r}; peers: {', '.join(PEERS)}")
    if not 0 <= options.first <= options.last <= 30:
        p.error("sizes are powers of two from 2^0 to 2^30, the smallest first")
    limit_cores(options.threads)
    start = header(FORMAT)  # the machine as it is before measuring
    found = measure(
        names, range(options.first, options.last + 1), options.readings, lambda text: print(text, flush=True)
    )
    for name, reason in found["missing"].items():
        print(f"{name}: {reason}")
    bandwidth = copy_bandwidth("cpu")
    record = {
        **start,
        "program": "x * 2 + 1",
        "operators": OPERATORS,
        "bandwidth": bandwidth,
        "missing": found["missing"],
        "complete": found["complete"],
        "peers": {
            peer: {
                "points": points,
                "smallest_size_never_slower": never_slower_from(points) if peer != "eager" else None,
                "minimum_size_of_proposition_13_6": predicted(found["points"], peer, bandwidth),
            }
            for peer, points in found["points"].items()
        },
    }
    for peer, entry in record["peers"].items():
        if peer == "eager":
            continue
        smallest, model = entry["smallest_size_never_slower"], entry["minimum_size_of_proposition_13_6"]
        said = "slower than eager at the largest size" if smallest is None else f"never slower from {smallest:,} on"
        more = f"; N* = {model:,.0f} by Proposition 13.6" if model is not None else ""
        print(f"{peer}: {said}{more}")
    if options.out:
        print(f"wrote {save(record, options.out)}")
        try:
            print(f"wrote {write_sizes_plot(record, options.out.with_suffix('.svg'))}")
        except MissingDependencyError as error:
            print(f"no plot: {error}")
    return 0 if found["complete"] else 130


if __name__ == "__main__":
    raise SystemExit(main())
