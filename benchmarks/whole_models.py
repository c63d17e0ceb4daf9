"""Whole models, each a single region: eager PyTorch, ``torch.compile`` and staxlab on the same weights and inputs.

    python -m benchmarks.whole_models --threads 2 --out benchmarks/results/whole_models_cpu.json
    python -m benchmarks.whole_models --device cuda --out benchmarks/results/whole_models_h200.json
    python -m benchmarks.whole_models --smoke

Inference and a training step (a loss and the gradients of all parameters) of a Llama-style decoder (prefill, one token,
greedy generation), a vision transformer, ResNet-18 and a gated recurrence with a Python loop
(:mod:`benchmarks.models`). What is recorded of each peer:

- *time*: peers take turns reading by reading; ratios are medians over rounds with the interval of Proposition 13.2;
- *first call*: with empty disk caches, after each compiler has compiled something trivial, so that its own start is not
  counted; both halves of a training step are in it;
- *peak memory*: the most bytes that were allocated at once beyond those before the call (on a CPU staxlab's are counted
  in a process of its own, without its pool);
- *kernels*: generated ones and library calls as each compiler's code has them; on a GPU also the launches of a call, as
  the profiler counts them;
- *values*: the deviation from the same step in double precision, beside eager's own. Further off than ten times eager's
  is reported as wrong and not timed. Generated tokens are compared with eager's one by one.

staxlab compiles with ``strict_native=True``: an operator without a lowering is a failure here, not a fallback, and so
is a step that takes more than one region. ``--smoke`` compiles and checks the smallest sizes and times nothing.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = "staxlab-whole-models-1"
PEERS = ("eager", "torch_compile", "staxlab")

#: How much further from the truth than eager a peer may be: other orders of summation, rounded less often or more.
FURTHER_OFF = 10


@dataclass
class Prepared:
    """A peer's form of a step, called once: ``run()`` does it again."""

    run: Callable[[], Any]
    result: list[Any]
    first_call: float
    kernels: dict[str, Any] = field(default_factory=dict)


def results_of(step: Any, value: Any, module: Any) -> list[Any]:
    """What is compared: tokens, logits, or a loss and all gradients, in float64 where they are numbers."""
    from benchmarks.models.cases import GENERATION, TRAINING

    if step.kind == GENERATION:
        return [value]
    found = [value.detach().double()]
    if step.kind == TRAINING:
        found += [parameter.grad.double() for parameter in module.parameters()]
    return found


def prepare(step: Any, size: str, peer: str, device: str, dtype: Any, mode: str | None = None) -> Prepared:
    """Make, compile and call a step once. What a compiler raises passes through."""
    import torch

    module = step.module(size, device, dtype)
    arguments = step.arguments(size, module)
    compiled, codes = compiled_by(peer, module, mode)

    def run() -> Any:
        return step.call(size, compiled, module, arguments)

    def first() -> Any:
        start = time.perf_counter()
        value = run()
        if device == "cuda":
            torch.cuda.synchronize()
        return value, time.perf_counter() - start

    if codes is None:
        value, seconds = first()
        kernels = staxlab_kernels(compiled) if peer == "staxlab" else {}
    else:
        (value, seconds), written = codes(first)
        from benchmarks.kernel_counts import count_in_code

        kernels = {key: n for key, n in count_in_code(written).items() if key != "names"}
    return Prepared(run, results_of(step, value, module), seconds, kernels)


def compiled_by(peer: str, module: Any, mode: str | None) -> tuple[Any, Callable[..., Any] | None]:
    """The module as a peer runs it, and for torch.compile what keeps the code of a first call."""
    if peer == "eager":
        return module, None
    if peer == "torch_compile":
        import torch
        from torch._inductor.utils import run_and_get_code

        torch._dynamo.reset()
        return torch.compile(module, dynamic=False, mode=mode), run_and_get_code
    import staxlab

    return staxlab.compile(module, strict_native=True, mode=mode), None


def staxlab_kernels(compiled: Any) -> dict[str, Any]:
    """Kernels of all versions and halves, and whether that is all there is: no fallback, a region for each shape."""
    from benchmarks.preallocated import nothing_left_to_copy

    generated = library = 0
    reasons = []
    for version in compiled.versions:
        compilation = version.compilation
        halves = [compilation, *([compilation.backward] if compilation.partition is not None else [])]
        for half in halves:
            if half is None or half.fallback:
                reasons.append(half.fallback_reason if half is not None else "the backward half was not compiled")
                continue
            done = nothing_left_to_copy(half.schedule)
            kernels = [kernel for kernel in half.kernels if not done.intersection(kernel.nodes)]
            calls = sum(kernel.language == "extern" for kernel in kernels)
            generated, library = generated + len(kernels) - calls, library + calls
    found = {"kernels": generated + library, "generated": generated, "library_calls": library}
    return found | {"regions": len(compiled.versions), "fallbacks": reasons}


def peak_bytes(run: Callable[[], Any], device: str) -> int:
    """The most bytes that PyTorch's allocator gave out at once during a call beyond those at its start."""
    from benchmarks.peak_memory import peak_on

    if device == "cuda":
        run()  # workspaces are allocated the first time
    return peak_on(device, run)


def peak_without_pool(step: Any, size: str, dtype: str, mode: str | None) -> int:
    """The peak of staxlab's region on a CPU, in a process of its own where all memory comes from PyTorch's allocator:
    what a pool has lent and what PyTorch has given out have their peaks at different times, so their sum says little.
    The kernels come from the disk cache."""
    from staxlab.measure.fresh_process import run_python

    code = f"from benchmarks import whole_models as w; w.print_peak({step.name!r}, {size!r}, {dtype!r}, {mode!r})"
    return run_python(code, {"STAXLAB_NATIVE": "0"})


def print_peak(name: str, size: str, dtype: str, mode: str | None) -> None:
    """What :func:`peak_without_pool` runs."""
    import torch

    from benchmarks.models.cases import select

    (step,) = select(name)
    one = prepare(step, size, "staxlab", "cpu", getattr(torch, dtype), mode)
    one.result.clear()
    one.run()
    print(peak_bytes(one.run, "cpu"))


def launches(run: Callable[[], Any]) -> int:
    """Kernels that a call starts on a GPU, copies and fills left out, as the profiler sees them."""
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    names = [event.name for event in profiler.events() if event.device_type == DeviceType.CUDA]
    return sum(not name.startswith(("Memcpy", "Memset")) for name in names)


def compared(step: Any, results: dict[str, list[Any]], reference: list[Any] | None) -> tuple[dict, dict[str, str]]:
    """What each peer's values are like, and who is wrong."""
    from benchmarks.training import error_of

    found: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    if reference is None:
        eager = results.get("eager")
        for peer, values in results.items():
            if eager is not None:
                same = (values[0] == eager[0]).double().mean().item()
                found[peer] = {"tokens_equal_to_eager": same}
        return found, wrong
    for peer, values in results.items():
        error = error_of(values, [t.to(v.device) for t, v in zip(reference, values, strict=True)])
        found[peer] = {"error": error if math.isfinite(error) else None}
        allowed = FURTHER_OFF * (found.get("eager", {}).get("error") or 1e-6)
        if peer != "eager" and not error <= allowed:
            wrong[peer] = f"wrong: off by {error:.2g}, where eager is by {found['eager']['error']:.2g}"
    return found, wrong


def run_step(step: Any, size: str, peers: Sequence[str], options: Any) -> dict[str, Any]:
    """Prepare, check, measure and time one step; the record of it."""
    import torch

    from benchmarks.models.cases import GENERATION
    from staxlab.measure.timing import compare

    device, dtype = options.device, getattr(torch, options.dtype)
    record: dict[str, Any] = {"step": step.name, "title": step.title, "size": repr(step.sizes[size]), "problems": {}}
    reference = None
    if step.kind != GENERATION:
        module = step.module(size, device, dtype).double()
        arguments = step.arguments(size, module)
        reference = results_of(step, step.call(size, module, module, arguments), module)
        del module, arguments
    prepared: dict[str, Prepared] = {}
    for peer in peers:
        try:
            prepared[peer] = prepare(step, size, peer, device, dtype, options.mode)
        except Exception as error:  # a peer's failure is a finding, not the end of the run
            first = (str(error).splitlines() or [""])[0]
            record["problems"][peer] = f"failed: {type(error).__name__}: {first}"
    record["values"], wrong = compared(step, {peer: p.result for peer, p in prepared.items()}, reference)
    record["problems"] |= wrong
    record["peers"] = {}
    for peer, one in prepared.items():
        one.result.clear()
        found: dict[str, Any] = {"first_call_s": one.first_call, **one.kernels}
        if not options.smoke:
            if peer == "staxlab" and device == "cpu":
                found["peak_bytes"] = peak_without_pool(step, size, options.dtype, options.mode)
            else:
                found["peak_bytes"] = peak_bytes(one.run, device)
            if device == "cuda":
                found["launches"] = launches(one.run)
        record["peers"][peer] = found
    ours = record["peers"].get("staxlab")
    if ours is not None and (complaint := not_one_region(step, ours)):
        record["problems"]["staxlab"] = complaint
    timed = {peer: one.run for peer, one in prepared.items() if peer not in wrong}
    if not options.smoke and timed:
        comparison = compare(timed, readings=options.readings, warmup=3, order="random", device=device, pause=2e-3)
        record["comparison"] = comparison.to_json()
        record["times"] = {
            f"{one} over {other}": comparison.ratio(one, other).to_json()
            for one, other in (("staxlab", "eager"), ("torch_compile", "eager"), ("staxlab", "torch_compile"))
            if {one, other} <= set(timed)
        }
        print(comparison.table().text())
    print(text_of(record), flush=True)
    return record


def not_one_region(step: Any, found: dict[str, Any]) -> str | None:
    """Generation takes two regions, prefill and one token; every other step one. None if that is so."""
    from benchmarks.models.cases import GENERATION

    wanted = 2 if step.kind == GENERATION else 1
    if found["fallbacks"]:
        return f"fallback: {found['fallbacks'][0]}"
    return None if found["regions"] == wanted else f"{found['regions']} regions instead of {wanted}"


def text_of(record: dict[str, Any]) -> str:
    """What a record says, in lines."""
    from staxlab.measure.tables import Table, bytes_text, seconds_text

    rows = []
    for peer, found in record["peers"].items():
        kernels = f"{found['kernels']} ({found['library_calls']} of a library)" if "kernels" in found else ""
        values = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in
                           record["values"].get(peer, {}).items() if value is not None)  # fmt: skip
        peak = bytes_text(found["peak_bytes"]) if "peak_bytes" in found else ""
        rows.append((peer, seconds_text(found["first_call_s"]), peak, kernels, found.get("launches", ""), values))
    notes = [f"{peer}: {problem}" for peer, problem in record["problems"].items()]
    for name, ratio in record.get("times", {}).items():
        notes.append(f"speed of {name}: {ratio['median']:.3g}")
    head = ("peer", "first call", "peak", "kernels", "launches", "values")
    return Table.build(record["title"], head, rows, notes).text()


def warm_up(peers: Sequence[str], device: str) -> None:
    """Let each compiler compile something trivial, so that no step pays for its start."""
    import torch

    import staxlab

    def trivial(x: Any) -> Any:
        return (x * 2 + 1).sum()

    x = torch.ones(64, device=device, requires_grad=True)
    for peer in peers:
        if peer == "torch_compile":
            torch.compile(trivial)(x).backward()
        elif peer == "staxlab":
            staxlab.compile(trivial)(x).backward()


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m benchmarks.whole_models", description=__doc__.split("\n")[0])
    p.add_argument("--steps", default="all", help="names separated by commas, or all")
    p.add_argument("--peers", default=",".join(PEERS))
    p.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    p.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="default: bfloat16 on a GPU")
    p.add_argument("--size", choices=("smoke", "cpu", "cuda"), help="default: that of the device")
    p.add_argument("--mode", help="of both compilers, such as reduce-overhead")
    p.add_argument("--readings", type=int, default=15)
    p.add_argument("--threads", type=int, help="cores every peer may use (default: all)")
    p.add_argument("--smoke", action="store_true", help="the smallest sizes, checked and not timed")
    p.add_argument("--out", type=Path, help="write JSON, after every step")
    options = p.parse_args(arguments)
    options.dtype = options.dtype or ("bfloat16" if options.device == "cuda" else "float32")
    size = "smoke" if options.smoke else options.size or options.device
    peers = [name.strip() for name in options.peers.split(",")]
    for name in peers:
        if name not in PEERS:
            p.error(f"no peer named {name!r}; peers: {', '.join(PEERS)}")
    from benchmarks.models.cases import select

    try:
        steps = select(options.steps)
    except KeyError as error:
        p.error(error.args[0])
    with tempfile.TemporaryDirectory(prefix="staxlab-whole-models-") as caches:
        for variable in ("STAXLAB_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            os.environ[variable] = str(Path(caches) / variable.lower())  # empty, and before the peers are imported
        from benchmarks.peers import limit_cores
        from benchmarks.records import header, save

        limit_cores(options.threads)
        run = {**header(FORMAT, options.device), "dtype": options.dtype, "mode": options.mode, "complete": False}
        run |= {"readings": options.readings, "sizes": size, "steps": []}
        warm_up(peers, options.device)
        try:
            for step in steps:
                run["steps"].append(run_step(step, size, peers, options))
                if options.out:  # a run that is cut short keeps what it has
                    save(run, options.out)
            run["complete"] = True
        except KeyboardInterrupt:
            print("interrupted: what was measured until then is above" + (" and in the file" if options.out else ""))
        if options.out:
            print(f"wrote {save(run, options.out)}")
    failed = [record["step"] for record in run["steps"] if "staxlab" in record["problems"]]
    print(f"{len(run['steps']) - len(failed)} of {len(run['steps'])} steps are one region with the right values")
    return 1 if failed else 0 if run["complete"] else 130


if __name__ == "__main__":
    raise SystemExit(main())
