"""What the first call costs in a fresh process (Section 13.4): cold, with a warm disk cache, and stage by stage.

    python -m benchmarks.startup --repeats 5 --out startup.json

Every figure comes from processes of its own, the kinds taking turns. The clock of a first call starts after ``import
torch`` and ``import staxlab``, so what is counted is compiling: capture, transformation, lowering, code generation,
the C++ compiler (cold) or the disk cache (warm). ``torch.compile`` is measured the same way with its own cache
directory. Import time is that of ``import staxlab`` after ``import torch``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.fresh import ProcessFailed, run_python

FORMAT = "staxlab-startup-1"

_FUNCTION = """
def f(x, w):
    return (torch.relu(x + w) * 2).sum(-1)
x, w = torch.randn({rows}, {columns}), torch.randn({rows}, {columns})
eager = f(x, w)  # torch's own first-use costs (thread pool, allocator) are not the compiler's
"""

IMPORT = """
import json, time
start = time.perf_counter()
import torch
between = time.perf_counter()
import staxlab
print(json.dumps({"import_torch": between - start, "import_staxlab": time.perf_counter() - between}))
"""

STAXLAB = (
    """
import json, time, torch, staxlab
"""
    + _FUNCTION
    + """
compiled = staxlab.compile(f, strict_native=True)
start = time.perf_counter()
result = compiled(x, w)
first = time.perf_counter() - start
start = time.perf_counter()
compiled(x, w)
second = time.perf_counter() - start
assert torch.allclose(result, eager, rtol=1e-4, atol=1e-4)
stages = dict(compiled.versions[-1].compilation.timings)
print(json.dumps({{"first_call": first, "second_call": second, "stages": stages}}))
"""
)

TORCH_COMPILE = (
    """
import json, time, torch
"""
    + _FUNCTION
    + """
compiled = torch.compile(f)
start = time.perf_counter()
result = compiled(x, w)
first = time.perf_counter() - start
assert torch.allclose(result, eager, rtol=1e-4, atol=1e-4)
print(json.dumps({{"first_call": first}}))
"""
)

XLA = """
import json, time, jax, jax.numpy as jnp
x, w = jnp.ones(({rows}, {columns})), jnp.ones(({rows}, {columns}))
jax.block_until_ready(x + w)
f = jax.jit(lambda x, w: (jax.nn.relu(x + w) * 2).sum(-1))
start = time.perf_counter()
jax.block_until_ready(f(x, w))
print(json.dumps({{"first_call": time.perf_counter() - start}}))
"""

#: Kind of process: (snippet, environment variables that name its disk cache).
COMPILERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "staxlab": (STAXLAB, ("STAXLAB_CACHE_DIR",)),
    "torch_compile": (TORCH_COMPILE, ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")),
    "xla": (XLA, ("JAX_COMPILATION_CACHE_DIR",)),
}


def measure_compiler(name: str, size: tuple[int, int], runner: Callable[..., Any] = run_python) -> dict[str, Any]:
    """One cold and one warm first call, in two new processes that share one cache directory."""
    snippet, variables = COMPILERS[name]
    code = snippet.format(rows=size[0], columns=size[1])
    with tempfile.TemporaryDirectory(prefix="staxlab-startup-") as directory:
        environment = dict.fromkeys(variables, directory)
        return {"cold": runner(code, environment), "warm": runner(code, environment)}


def summarise(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Minimum and median of every figure over the repetitions, nested like one sample."""
    if isinstance(samples[0], dict):
        keys = dict.fromkeys(key for sample in samples for key in sample)
        return {key: summarise([s[key] for s in samples if key in s]) for key in keys}
    return {"minimum": min(samples), "median": statistics.median(samples), "readings": list(samples)}


def measure(
    compilers: Sequence[str],
    size: tuple[int, int],
    repeats: int,
    slow_repeats: int,
    say: Callable[[str], None] = print,
    runner: Callable[..., Any] = run_python,
) -> dict[str, Any]:
    """Repeat everything in turns. torch.compile, tens of times slower, is repeated ``slow_repeats`` times.

    A compiler that fails is reported under "failed" and left out; Ctrl-C ends early with what was measured.
    """
    samples: dict[str, list[dict[str, Any]]] = {}
    failed: dict[str, str] = {}
    complete = True
    try:
        for r in range(repeats):
            samples.setdefault("import", []).append(runner(IMPORT))
            for name in compilers:
                if name in failed or (name != "staxlab" and r >= slow_repeats):
                    continue
                try:
                    samples.setdefault(name, []).append(measure_compiler(name, size, runner))
                except ProcessFailed as error:
                    failed[name] = str(error)
            say(f"  repetition {r + 1} of {repeats}")
    except KeyboardInterrupt:
        complete = False
    return {
        "size": list(size),
        "complete": complete,
        "failed": failed,
        "results": {name: summarise(values) for name, values in samples.items() if values},
    }


def table(record: dict[str, Any]) -> Any:
    """The record as a text table."""
    from staxlab.measure.tables import Table, seconds_text

    rows = []

    def add(label: str, figure: dict[str, Any]) -> None:
        cells = (seconds_text(figure["minimum"]), seconds_text(figure["median"]), len(figure["readings"]))
        rows.append((label, *cells))

    for name, result in record["results"].items():
        if name == "import":
            add("import torch", result["import_torch"])
            add("import staxlab, after torch", result["import_staxlab"])
            continue
        for state in ("cold", "warm"):
            add(f"{name}, first call, {state}", result[state]["first_call"])
            for stage, figure in result[state].get("stages", {}).items():
                add(f"    {stage}", figure)
    size = "x".join(map(str, record["size"]))
    notes = [f"{name}: {reason}" for name, reason in record["failed"].items()]
    if not record["complete"]:
        notes.append("interrupted: what was measured until then")
    columns = ("what", "minimum", "median", "processes")
    return Table.build(f"First call of Example 1.1 at {size} in a fresh process", columns, rows, notes)


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__.split("\n")[0])
    p.add_argument("--size", default="64x128", help="rows x columns (default 64x128)")
    p.add_argument("--repeats", type=int, default=5, help="fresh processes per figure (default 5)")
    p.add_argument("--slow-repeats", type=int, default=1, help="repetitions of the peers (default 1)")
    p.add_argument("--peers", default="staxlab,torch_compile", help=f"of {', '.join(COMPILERS)}")
    p.add_argument("--out", type=Path, help="write JSON")
    options = p.parse_args(arguments)
    from benchmarks.run import parse_size

    try:
        size = parse_size(options.size)
    except argparse.ArgumentTypeError as error:
        p.error(str(error))
    names = [name.strip() for name in options.peers.split(",") if name.strip()]
    for name in names:
        if name not in COMPILERS:
            p.error(f"no peer named {name!r}; peers: {', '.join(COMPILERS)}")
    record = measure(names, size, options.repeats, options.slow_repeats)
    if record["results"]:
        print(table(record).text())
    for name, reason in record["failed"].items():
        print(f"{name} failed: {reason}")
    if options.out:
        from benchmarks.records import header, save

        print(f"wrote {save({**header(FORMAT), **record}, options.out)}")
    return 130 if not record["complete"] else 1 if "staxlab" in record["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
