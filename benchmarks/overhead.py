"""What a call costs when there is almost nothing to do: ``x * 2 + 1`` on 8 elements (Section 13.4).

    python -m benchmarks.overhead --peers eager,torch_compile,xla,staxlab --out overhead.json

A compiled call checks its guards before it works. Calling again with the *same* tensor may take a shorter way than
calling with a *new* one, so both are measured. The same function behind a data gate (``if x.sum() > 0``) shows what
replaying a question costs: a compiler that keeps one graph must ask it again at every call. Proposition 13.6 turns the
difference to eager into the smallest tensor for which fusing the two operators pays.

What a region costs once it is entered is measured by itself (Section 8.5): regions of 1, 5 and 20 kernels, and with
PyTorch's operators between kernels, each through its one entry in C, and through the Python wrapper that says the same.
Both run the same kernels on the same tensors, so the difference is the wrapper:

    python -m benchmarks.overhead --only-regions --out overhead_regions.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

FORMAT = "staxlab-overhead-1"


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
    from staxlab.measure import amortization
    from staxlab.measure.amortization import chain_of_two

    same = torch.randn(elements, device=device)
    pool = [torch.randn(elements, device=device) for _ in range(512)]
    positive = [tensor.abs() for tensor in pool]
    found: dict[str, Callable[[], Any]] = {}
    missing: dict[str, str] = {}

    def add(name: str, fn: Callable[[Any], Any], one: Any, many: Sequence[Any]) -> None:
        found.update(amortization.call_sides(name, fn, one, many))

    def build(name: str) -> None:
        if name == "eager":
            add(name, chain_of_two, same, pool)
            add(f"{name}, data gate", gated, same.abs(), positive)
        elif name == "torch_compile":
            add(name, torch.compile(chain_of_two), same, pool)
            add(f"{name}, data gate", torch.compile(gated), same.abs(), positive)
        elif name == "staxlab":
            import staxlab

            add(name, staxlab.compile(chain_of_two, strict_native=True), same, pool)
            add(f"{name}, data gate", staxlab.compile(gated, strict_native=True), same.abs(), positive)
        elif name == "xla":
            import jax
            import jax.numpy as jnp

            jitted = jax.jit(chain_of_two)
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


def chain(count: int, between: Callable[[Any], Any] | None = None) -> Callable[[Any], Any]:
    """``count`` kernels, scans along one dimension and the other, with ``between`` after each."""

    def run(x: Any) -> Any:
        for position in range(count):
            x = (x / 8).cumsum(position % 2)
            if between is not None:
                x = between(x)
        return x

    return run


def regions() -> dict[str, Callable[[Any], Any]]:
    """Functions by what their regions consist of; kernels are not fused, so that there are so many."""
    import torch

    from staxlab.measure.amortization import chain_of_two

    return {
        "1 kernel": chain_of_two,
        "5 kernels": chain(5),
        "20 kernels": chain(20),
        "3 kernels, 3 operators": chain(3, lambda x: torch.sort(x)[0]),
        "a view as result": lambda x: (x + 1).t(),
        "a subscript that is checked": lambda x: x[x.argmax(0)] + 1,
    }


def region_sides(rows: int) -> tuple[dict[str, Callable[[], Any]], dict[str, dict[str, int]]]:
    """Calls of each region through C and through Python, on ``rows`` x ``rows`` elements, and what each consists of."""
    import torch

    import staxlab

    x = torch.randn(rows, rows)
    timed: dict[str, Callable[[], Any]] = {}
    parts: dict[str, dict[str, int]] = {}
    for name, fn in regions().items():
        compilation = staxlab.explain(fn, x, options={"fuse": False})
        artifact, inputs = compilation.artifact, [x]
        languages = [kernel.language for kernel in compilation.kernels]
        parts[name] = {"kernels": languages.count("cpp"), "operators": languages.count("extern")}
        parts[name]["entries"] = _entries(artifact.call, inputs)
        timed[f"{name}, C"] = lambda call=artifact.call, inputs=inputs: call(inputs)
        timed[f"{name}, Python"] = lambda call=artifact.wrapper_call, inputs=inputs: call(inputs)
    return timed, parts


def _entries(call: Callable[[list[Any]], Any], inputs: list[Any]) -> int:
    """How often one call enters C for the region: 1, and 0 without the extension."""
    from staxlab import native

    before = native.counters().get("entries", 0)
    call(inputs)
    return native.counters().get("entries", 0) - before


def measure_regions(options: argparse.Namespace) -> dict[str, Any]:
    """The regions' part of the record."""
    from staxlab.measure.timing import compare

    timed, parts = region_sides(options.rows)
    comparison = compare(timed, readings=options.readings, warmup=50, order="random", calls=options.calls)
    print(comparison.table().text())
    ratios = {}
    for name, consists in parts.items():
        if all(timing.readings for timing in comparison.timings if timing.name.startswith(f"{name}, ")):
            ratio = ratios[name] = comparison.ratio(f"{name}, Python", f"{name}, C")
            entries = f"{name}: {consists['entries']} entry per call"
            print(f"{entries}, {ratio.median:.3g} of the Python wrapper's time ({ratio})")
    return {
        "elements": options.rows**2,
        "consists_of": parts,
        "comparison": comparison.to_json(),
        "of_python_wrapper": {name: ratio.to_json() for name, ratio in ratios.items()},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__.split("\n")[0])
    p.add_argument("--peers", default="eager,torch_compile,xla,staxlab")
    p.add_argument("--elements", type=int, default=8)
    p.add_argument("--readings", type=int, default=31)
    p.add_argument("--calls", type=int, default=1000, help="calls one reading averages over (default 1000)")
    p.add_argument("--rows", type=int, default=8, help="regions work on so many rows and columns (default 8)")
    p.add_argument("--only-regions", action="store_true", help="leave the peers out")
    p.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    p.add_argument(
        "--bandwidth", type=float, help="bytes/s for the break-even size (default: measured here by copying)"
    )
    p.add_argument("--out", type=Path, help="write JSON")
    options = p.parse_args(arguments)
    from benchmarks.peers import PEERS
    from benchmarks.records import header, save
    from staxlab.measure import amortization, amortize
    from staxlab.measure.timing import compare

    names = [name.strip() for name in options.peers.split(",") if name.strip()]
    for name in names:
        if name not in PEERS:
            p.error(f"no peer named {name!r}; peers: {', '.join(PEERS)}")
    if options.only_regions:
        record = {**header(FORMAT, "cpu"), "regions": measure_regions(options)}
        if options.out:
            print(f"wrote {save(record, options.out)}")
        return 0
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
        bandwidth = options.bandwidth or amortization.copy_bandwidth(options.device)
        for timing in comparison.timings:
            if not timing.name.startswith("eager") and "data gate" not in timing.name and timing.readings:
                sizes[timing.name] = max(amortize.minimum_size(2, eager.median / 2, timing.median, bandwidth), 0.0)
        for name, size in sizes.items():
            above = f"above {size:,.0f} elements" if size > 0 else "at any size"
            print(f"{name}: fusing two operators pays {above}, at {bandwidth / 1e9:.3g} GB/s (Proposition 13.6)")
    inside = measure_regions(options) if options.device == "cpu" and "staxlab" in names else None
    if options.out:
        record = {
            **header(FORMAT, options.device),
            "elements": options.elements,
            "missing": missing,
            "comparison": comparison.to_json(),
            "of_eager": ratios,
            "smallest_size_worth_fusing": sizes,
            **({"regions": inside} if inside else {}),
        }
        print(f"wrote {save(record, options.out)}")
    return 0 if comparison.complete else 130


if __name__ == "__main__":
    raise SystemExit(main())
