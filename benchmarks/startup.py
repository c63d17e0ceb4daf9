"""What the first call costs in a fresh process (Section 13.4): cold, with a warm disk cache, and stage by stage.

    python -m benchmarks.startup --repeats 5 --out startup.json
    python -m benchmarks.startup --programs mlp_training,block,decoder_prefill --peers staxlab --out programs.json

Every figure comes from processes of its own, the kinds taking turns. The clock of a first call starts after ``import
torch`` and ``import staxlab``, so what is counted is compiling: capture, transformation, lowering, code generation,
the C++ compiler (cold) or the disk cache (warm), and the modules of the package that are loaded on the way. Of the
package there are two warm starts: "kernels" has the compiled kernels in its cache, "warm" the whole plan (Section
11.1). ``torch.compile`` is measured the same way with its own cache directory. Import time is that of ``import
staxlab`` after ``import torch``. Python's own bytecode is there, as for any installed package: it lies in a directory
of the benchmark's, which a run that does not count has filled. Seconds of processor time stand beside those of the
clock: on a machine that does something else as well they tell more.

``--programs`` are programs of :mod:`benchmarks.corpus` and steps of :mod:`benchmarks.models`, by name; a training step
is a loss with its backward pass.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from staxlab.measure.amortization import FIRST_CALL
from staxlab.measure.fresh_process import ProcessFailed, run_python

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

#: A program by name: eager first, then compiled, as ``FIRST_CALL`` of the package does it.
PROGRAM = """
import json, time, warnings, torch, staxlab
from benchmarks import startup
warnings.simplefilter("ignore")
function, call, forget = startup.program({name!r})
call(function)
forget()
compiled = staxlab.compile(function)
start, busy = time.perf_counter(), time.process_time()
call(compiled)
first, busy = time.perf_counter() - start, time.process_time() - busy
forget()
start = time.perf_counter()
call(compiled)
second = time.perf_counter() - start
compilation = compiled.versions[-1].compilation
restored = float(compilation.restored and all(half.restored for _, half in compilation.backward_halves()))
stages = dict(compilation.timings)
for _, half in compilation.backward_halves():
    stages |= {{f"backward {{stage}}": seconds for stage, seconds in half.timings.items()}}
print(json.dumps({{
    "first_call": first, "processor": busy, "second_call": second, "restored": restored, "stages": stages
}}))
"""

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
    "staxlab": (FIRST_CALL, ("STAXLAB_CACHE_DIR",)),
    "torch_compile": (TORCH_COMPILE, ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")),
    "xla": (XLA, ("JAX_COMPILATION_CACHE_DIR",)),
}


def program(name: str) -> tuple[Callable[..., Any], Callable[[Callable[..., Any]], Any], Callable[[], None]]:
    """A program: its function or module, what calls it (or what was compiled of it) once, and what forgets gradients.
    KeyError for a name that neither the corpus nor the models have."""
    from benchmarks import corpus
    from benchmarks.models.cases import STEPS

    step = next((step for step in STEPS if step.name == name), None)
    if step is not None:
        module = step.module("smoke")
        arguments = step.arguments("smoke", module)
        return module, lambda compiled: step.call("smoke", compiled, module, arguments), lambda: None
    (found,) = corpus.select(name)
    function, inputs = found.instance()
    return (
        function,
        lambda compiled: corpus.call(found, compiled, inputs),
        lambda: corpus.forget_gradients(function, inputs),
    )


def measure_compiler(name: str, size: tuple[int, int], runner: Callable[..., Any] = run_python) -> dict[str, Any]:
    """A cold first call and warm ones, in new processes that share one cache directory."""
    snippet, variables = COMPILERS[name]
    code = snippet.format(rows=size[0], columns=size[1], device="cpu")
    return measure_code(code, variables, name == "staxlab", runner)


def measure_program(name: str, runner: Callable[..., Any] = run_python) -> dict[str, Any]:
    """:func:`measure_compiler` of this package for a program by name."""
    return measure_code(PROGRAM.format(name=name), COMPILERS["staxlab"][1], True, runner)


def measure_code(code: str, variables: Sequence[str], ours: bool, runner: Callable[..., Any]) -> dict[str, Any]:
    """The states of a cache, one after the other; ``ours`` has a warm one where only kernels are there."""
    with tempfile.TemporaryDirectory(prefix="staxlab-startup-") as directory:
        environment = dict.fromkeys(variables, directory)
        found = {"cold": runner(code, environment)}
        if ours:
            found["kernels"] = runner(code, {**environment, "STAXLAB_PLANS": "0"})
        return found | {"warm": runner(code, environment)}


@contextlib.contextmanager
def bytecode() -> Iterator[None]:
    """Processes find Python's bytecode in a directory of its own, and put it there."""
    names = ("PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="staxlab-bytecode-") as directory:
        os.environ.update(zip(names, (directory, ""), strict=True))
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


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
    programs: Sequence[str] = (),
) -> dict[str, Any]:
    """Repeat everything in turns. torch.compile, tens of times slower, is repeated ``slow_repeats`` times. With
    ``programs`` they are measured instead, compiled by this package.

    A compiler that fails is reported under "failed" and left out; Ctrl-C ends early with what was measured.
    """
    samples: dict[str, list[dict[str, Any]]] = {}
    failed: dict[str, str] = {}
    complete = True
    kinds: dict[str, Callable[[], dict[str, Any]]] = {
        name: (lambda name=name: measure_compiler(name, size, runner)) for name in compilers
    }
    if programs:
        kinds = {name: (lambda name=name: measure_program(name, runner)) for name in programs}
    try:
        for name in (*programs, *(() if programs else compilers)):
            if programs or name == "staxlab":
                with contextlib.suppress(ProcessFailed):  # said below, where it counts
                    kinds[name]()
        for r in range(repeats):
            samples.setdefault("import", []).append(runner(IMPORT))
            for name, sample in kinds.items():
                if name in failed or (not programs and name != "staxlab" and r >= slow_repeats):
                    continue
                try:
                    samples.setdefault(name, []).append(sample())
                except ProcessFailed as error:
                    failed[name] = str(error)
            say(f"  repetition {r + 1} of {repeats}")
    except KeyboardInterrupt:
        complete = False
    return {
        "size": list(size),
        "programs": list(programs),
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
        for state in result:
            add(f"{name}, first call, {state}", result[state]["first_call"])
            if "processor" in result[state]:
                add("    processor time", result[state]["processor"])
            for stage, figure in result[state].get("stages", {}).items():
                add(f"    {stage}", figure)
    what = "programs" if record.get("programs") else f"Example 1.1 at {'x'.join(map(str, record['size']))}"
    notes = [f"{name}: {reason}" for name, reason in record["failed"].items()]
    for name, result in record["results"].items():
        found = result.get("warm", {}).get("restored") if name != "import" else None
        if found is not None and not found["minimum"]:
            notes.append(f"{name}, warm: not every process found the plan (were the package's files edited meanwhile?)")
    if not record["complete"]:
        notes.append("interrupted: what was measured until then")
    columns = ("what", "minimum", "median", "processes")
    return Table.build(f"First call of {what} in a fresh process", columns, rows, notes)


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__.split("\n")[0])
    p.add_argument("--size", default="64x128", help="rows x columns (default 64x128)")
    p.add_argument("--repeats", type=int, default=5, help="fresh processes per figure (default 5)")
    p.add_argument("--slow-repeats", type=int, default=1, help="repetitions of the peers (default 1)")
    p.add_argument("--peers", default="staxlab,torch_compile", help=f"of {', '.join(COMPILERS)}")
    p.add_argument("--programs", default="", help="names of the corpus and of models' steps, in place of the peers")
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
    programs = [name.strip() for name in options.programs.split(",") if name.strip()]
    with bytecode():
        record = measure(names, size, options.repeats, options.slow_repeats, programs=programs)
    if record["results"]:
        print(table(record).text())
    for name, reason in record["failed"].items():
        print(f"{name} failed: {reason}")
    if options.out:
        from benchmarks.records import header, save

        print(f"wrote {save({**header(FORMAT), **record}, options.out)}")
    return 130 if not record["complete"] else 1 if {"staxlab", *programs} & {*record["failed"]} else 0


if __name__ == "__main__":
    raise SystemExit(main())
