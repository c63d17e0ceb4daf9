"""The most memory a call has allocated at once, eager, ``torch.compile`` and staxlab, in counted bytes.

    python -m benchmarks.peak_memory --out benchmarks/results/peak_memory_cpu.json

Counted is what a call asks PyTorch's CPU allocator for, beyond what was there before it: results, gradients, and
temporaries inside PyTorch's own operators. PyTorch's profiler reports every allocation and release in order; the peak
is the largest running sum. staxlab's results and arena come from a pool of its own, which that profiler does not see,
so they are taken from the allocator here (``STAXLAB_NATIVE=0``: the generated wrapper runs instead of the C program,
both after the same memory plan). With ``--native`` the C program runs, and what is counted is the most that the pool
had lent, in whole blocks, plus the most that PyTorch had allocated: at least the peak, for the two need not coincide.
Arrays of one row on a thread's stack are not counted on either side. A program that exceeds eager's peak is named, and
the command exits with 1.

Bytes are those asked for. What pads a tensor of staxlab's to whole cache lines counts, so a few hundred bytes
(``SLACK``) more than eager are no failure.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

if __name__ == "__main__" and "--native" not in sys.argv:
    os.environ["STAXLAB_NATIVE"] = "0"  # before staxlab is imported, which the corpus does

from benchmarks import corpus

FORMAT = "staxlab-peak-memory-1"

#: Padding of small intermediate results, which no program here has more than a few dozen of.
SLACK = 4096


def allocation_peak(run: Callable[[], Any]) -> int:
    """The most bytes PyTorch's CPU allocator has given out at once during ``run()``, beyond those at its start. What
    was allocated before and is released meanwhile does not count. The result is kept until the end of the call."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = run()
    del result
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def peak_on(device: str, run: Callable[[], Any]) -> int:
    """:func:`allocation_peak`, or on "cuda" that of the GPU's allocator, which counts what stays as well."""
    if device != "cuda":
        return allocation_peak(run)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def measure(program: corpus.Program, peer: str) -> dict[str, Any]:
    """Peak bytes of a program under a peer ("eager", "torch_compile" or "staxlab"), compiled and warmed up before."""
    import staxlab

    function, inputs = program.instance()
    called: Any = function
    if peer == "torch_compile":
        torch._dynamo.reset()
        called = torch.compile(function, dynamic=False)
    elif peer == "staxlab":
        called = staxlab.compile(function)
    for _ in range(2):
        corpus.call(program, called, inputs)
        corpus.forget_gradients(function, inputs)
    before = staxlab.memory_stats(restart=True)
    found = {"peak_bytes": allocation_peak(lambda: corpus.call(program, called, inputs))}
    if peer == "staxlab":
        lent = staxlab.memory_stats().peak_lent_bytes - before.lent_bytes
        if not before.missing:
            found = {"peak_bytes": found["peak_bytes"] + lent, "pool_bytes": lent}
        found |= planned(called.versions[-1].compilation, program.training)
    return found


def planned(compilation: Any, training: bool) -> dict[str, Any]:
    """What the memory plans of a compilation say: the peak within forward and within backward, of our own memory."""
    halves = {"forward": compilation}
    if training and compilation.backward is not None:
        halves["backward"] = compilation.backward
    plans = {name: getattr(half.schedule, "memory", None) for name, half in halves.items()}
    return {"planned_peak_bytes": {name: plan.peak_bytes for name, plan in plans.items() if plan is not None}}


def run(programs: Sequence[corpus.Program], peers: Sequence[str], say: Callable[[str], None]) -> list[dict[str, Any]]:
    """A record per program."""
    records = []
    for program in programs:
        record: dict[str, Any] = {"program": program.name, "title": program.title, "group": program.group, "peers": {}}
        for peer in peers:
            try:
                record["peers"][peer] = measure(program, peer)
            except Exception as error:  # a peer's failure is a finding, not the end of the run
                record["peers"][peer] = {"problem": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        record["exceeds_eager"] = exceeds(record)
        say(line(record))
        records.append(record)
    return records


def exceeds(record: dict[str, Any]) -> bool:
    """Whether staxlab's peak is above eager's; True too where staxlab failed."""
    eager, ours = (record["peers"].get(peer, {}).get("peak_bytes") for peer in ("eager", "staxlab"))
    if "staxlab" not in record["peers"] or eager is None:
        return False
    return ours is None or ours > eager + SLACK


def line(record: dict[str, Any]) -> str:
    from staxlab.measure.tables import bytes_text

    eager = record["peers"].get("eager", {}).get("peak_bytes")
    parts = []
    for peer, found in record["peers"].items():
        if "problem" in found:
            parts.append(f"{peer} failed ({found['problem']})")
            continue
        share = f" ({found['peak_bytes'] / eager:.2f})" if eager and peer != "eager" else ""
        parts.append(f"{peer} {bytes_text(found['peak_bytes'])}{share}")
    return f"{record['title']}: {', '.join(parts)}" + ("  ABOVE EAGER" if record["exceeds_eager"] else "")


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m benchmarks.peak_memory", description=__doc__.split("\n")[0])
    p.add_argument("--programs", default="all", help="names, cases, fragments, training, or all, by commas")
    p.add_argument("--peers", default="eager,torch_compile,staxlab")
    p.add_argument("--native", action="store_true", help="run the C program: an upper bound of its peak")
    p.add_argument("--out", type=Path, help="write JSON")
    options = p.parse_args(arguments)
    try:
        programs = corpus.select(options.programs)
    except KeyError as error:
        p.error(error.args[0])
    from benchmarks.records import header, save
    from staxlab import native

    if native.available != options.native:
        p.error(native.reason or "staxlab was imported already: its memory would not be seen")
    records = run(programs, [name.strip() for name in options.peers.split(",")], lambda text: print(text, flush=True))
    above = [record["program"] for record in records if record["exceeds_eager"]]
    print(f"{len(records) - len(above)} of {len(records)} programs within eager's peak")
    if options.out:
        how = {"native": options.native, "slack_bytes": SLACK}
        record = {**header(FORMAT), **how, "programs": records, "above_eager": above}
        print(f"wrote {save(record, options.out)}")
    return 1 if above else 0


if __name__ == "__main__":
    raise SystemExit(main())
