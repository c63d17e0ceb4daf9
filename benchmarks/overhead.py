"""What a call costs when there is almost nothing to do: ``x * 2 + 1`` on 8 elements (Section 13.4).

    python -m benchmarks.overhead --peers eager,torch_compile,xla,staxlab --out overhead.json

A compiled call checks its guards before it works. Calling again with the *same* tensor may take a shorter way than
calling with a *new* one, so both are measured. The same function behind a data gate (``if x.sum() > 0``) shows what
replaying a question costs: a compiler that keeps one graph must ask it again at every call. Proposition 13.6 turns the
difference to eager into the smallest tensor for which fusing the two operators pays.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

FORMAT = "staxlab-overhead-1"


def function(x: Any) -> Any:
    return x * 2 + 1


def gated(x: Any) -> Any:
    if x.sum() > 0:
        return x * 2 + 1
    return x - 1


def sides(
    peers: Sequence[str], elements: int, device: str = "cpu"
) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """Callables by name, and the peers that are missing with the reason. New tensors come from a pool made
    beforehand."""
    import torch

    from benchmarks.peers import PEERS

    same = torch.randn(elements, device=device)
    pool = [torch.randn(elements, device=device) for _ in range(512)]
    positive = [tensor.abs() for tensor in pool]
    found: dict[str, Callable[[], Any]] = {}
    missing: dict[str, str] = {}

    def add(name: str, fn: Callable[[Any], Any], one: Any, many: Sequence[Any]) -> None:
        fn(one)
        following = itertools.cycle(many).__next__
        found[f"{name}, same tensor"] = lambda: fn(one)
        found[f"{name}, new tensor"] = lambda: fn(following())

    def build(name: str) -> None:
        if name == "eager":
            add(name, function, same, pool)
            add(f"{name}, data gate", gated, same.abs(), positive)
        elif name == "torch_compile":
            add(name, torch.compile(function), same, pool)
            add(f"{name}, data gate", torch.compile(gated), same.abs(), positive)
        elif name == "staxlab":
            import staxlab

            add(name, staxlab.compile(function, strict_native=True), same, pool)
            add(f"{name}, data gate", staxlab.compile(gated, strict_native=True), same.abs(), positive)
        elif name == "xla":
            import jax
            import jax.numpy as jnp

            jitted = jax.jit(function)
            arrays = [jnp.asarray(t.cpu().numpy()) for t in (same, *pool)]
            add(name, lambda a: jax.block_until_ready(jitted(a)), arrays[0], arrays[1:])

    for name in peers:
        reason = PEERS[name].missing(device)
        if reason is not None:
            missing[name] = f"missing: {reason}" + (f"; {PEERS[name].install}" if PEERS[name].install else "")
            continue
        try:
            build(name)
        except Exception as error:  # a peer's failure is a finding, not the end of the run
            missing[name] = f"failed: {type(error).__name__}: {error}"
    return found, missing


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__.split("\n")[0])
    p.add_argument("--peers", default="eager,torch_compile,xla,staxlab")
    p.add_argument("--elements", type=int, default=8)
    p.add_argument("--readings", type=int, default=31)
    p.add_argument("--calls", type=int, default=1000, help="calls one reading averages over (default 1000)")
    p.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    p.add_argument(
        "--bandwidth", type=float, help="bytes/s for the break-even size (default: measured here by copying)"
    )
    p.add_argument("--out", type=Path, help="write JSON")
    options = p.parse_args(arguments)
    from benchmarks.peers import PEERS
    from benchmarks.records import header, save
    from staxlab.measure import amortize
    from staxlab.measure.timing import compare

    names = [name.strip() for name in options.peers.split(",") if name.strip()]
    for name in names:
        if name not in PEERS:
            p.error(f"no peer named {name!r}; peers: {', '.join(PEERS)}")
    timed, missing = sides(names, options.elements, options.device)
    for name, reason in missing.items():
        print(f"{name}: {reason}")
    if not timed:
        return 2
    comparison = compare(
        timed, readings=options.readings, warmup=50, order="random", device=options.device, calls=options.calls
    )
    print(comparison.table().text())
    ratios = {}
    for timing in comparison.timings:
        peer, _, call = timing.name.partition(", ")
        if peer != "eager" and f"eager, {call}" in timed and timing.readings:
            ratio = comparison.ratio(f"eager, {call}", timing.name)  # time of the peer over time of eager
            ratios[timing.name] = ratio.to_json()
            print(f"{timing.name}: {ratio.median:.3g} of eager's time ({ratio})")
    eager = next((t for t in comparison.timings if t.name == "eager, new tensor"), None)
    sizes: dict[str, float] = {}
    if eager is not None and eager.readings:
        bandwidth = options.bandwidth or _bandwidth(options.device)
        for timing in comparison.timings:
            if not timing.name.startswith("eager") and "data gate" not in timing.name and timing.readings:
                sizes[timing.name] = max(amortize.minimum_size(2, eager.median / 2, timing.median, bandwidth), 0.0)
        for name, size in sizes.items():
            above = f"above {size:,.0f} elements" if size > 0 else "at any size"
            print(f"{name}: fusing two operators pays {above}, at {bandwidth / 1e9:.3g} GB/s (Proposition 13.6)")
    if options.out:
        record = {
            **header(FORMAT, options.device),
            "elements": options.elements,
            "missing": missing,
            "comparison": comparison.to_json(),
            "of_eager": ratios,
            "smallest_size_worth_fusing": sizes,
        }
        print(f"wrote {save(record, options.out)}")
    return 0 if comparison.complete else 130


def _bandwidth(device: str) -> float:
    """Bytes per second of the best of a few copies."""
    import torch

    from staxlab.measure.timing import sample

    source, target = torch.ones(1 << 24, device=device), torch.zeros(1 << 24, device=device)
    return 8 * source.numel() / sample(lambda: target.copy_(source), readings=7, device=device).minimum


if __name__ == "__main__":
    raise SystemExit(main())
