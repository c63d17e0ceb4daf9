"""Building a region's kernels with 1 to P workers, against the bounds of list scheduling (Section 11.2).

    python -m benchmarks.parallel_build --repeats 5 --out benchmarks/results/parallel_build_cpu.json

Two regions of a dozen kernels or more, each in a fresh process with an empty cache: in C++, compiled and run at the
first call; in Triton for a GPU that need not be here, compiled to machine code (``sm_90``). The numbers of workers take
turns, and so does ``torch.compile`` on the first region with as many of its own. A ratio is of two processes of one
round, and its interval that of the median (Proposition 13.2).

What bounds a build is computed from the very durations it had, so a machine on which two compilers slow each other down
shows as more *work*, not as a build that misses its bounds. One Triton worker is the parent compiling alone, in which
case no process is started; where there are several, starting them counts.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from staxlab.measure.fresh_process import ProcessFailed, run_python
from staxlab.runtime.order_statistics import median, median_interval

FORMAT = "staxlab-parallel-build-1"
CAPABILITY = "sm_90"

_FUNCTION = """
def f(x, w):
    for k in range({repeated}):
        x = torch.softmax(torch.tanh(x @ w) * k + 1, -1 if k % 2 else 0) + k
    return x
torch.manual_seed(0)
x, w = torch.randn(64, 64), torch.randn(64, 64)
"""

CPP = (
    "import json, time, torch, staxlab\nfrom staxlab.runtime.build_report import of_compilation\n"
    + _FUNCTION
    + """
expected = f(x, w)
compiled = staxlab.compile(f, strict_native=True)
start = time.perf_counter()
result = compiled(x, w)
first = time.perf_counter() - start
assert torch.allclose(result, expected, rtol=1e-4, atol=1e-4)
report = of_compilation(compiled.versions[-1].compilation)
print(json.dumps({{"seconds": first, "serial": report.serial, "kernels": len(report.compiled), "work": report.work,
                  "makespan": report.makespan, "low": report.bound[0], "high": report.bound[1],
                  "hits": len(report.tasks) - len(report.compiled)}}))
"""
)

TRITON = (
    "import json, time, torch, staxlab\n"
    + _FUNCTION
    + """
start = time.perf_counter()
compilation = staxlab.explain(f, x, w, target={target!r})
serial = time.perf_counter() - start
from staxlab.codegen.triton.compile import aot_compile
from staxlab.runtime.build_report import Recorder, worker_count
from staxlab.runtime.triton_builds import compile_kernels
kernels = [kernel for kernel in compilation.kernels if kernel.language == "triton"]
record = Recorder(worker_count())
began = time.perf_counter()
if worker_count() == 1:
    for kernel in kernels:
        with record.task(kernel, 0.0):
            aot_compile(kernel)
else:
    assert compile_kernels(kernels, listing=True, record=record) == {{}}
seconds = time.perf_counter() - began
report = record.report()
print(json.dumps({{"seconds": serial + seconds, "serial": serial, "kernels": len(kernels), "work": report.work,
                  "makespan": seconds, "low": report.bound[0], "high": report.bound[1],
                  "hits": len(report.tasks) - len(report.compiled)}}))
"""
)

TORCH_COMPILE = (
    "import json, time, torch\n"
    + _FUNCTION
    + """
expected = f(x, w)
compiled = torch.compile(f)
start = time.perf_counter()
result = compiled(x, w)
first = time.perf_counter() - start
assert torch.allclose(result, expected, rtol=1e-4, atol=1e-4)
print(json.dumps({{"seconds": first}}))
"""
)

#: side: its snippet, how often the loop runs (so that there are twelve kernels), the variables that name its cache and
#: its number of workers.
SIDES: dict[str, tuple[str, int, tuple[str, ...], str]] = {
    "cpp": (CPP, 8, ("STAXLAB_CACHE_DIR",), "STAXLAB_BUILD_WORKERS"),
    "triton": (TRITON, 12, ("STAXLAB_CACHE_DIR",), "STAXLAB_BUILD_WORKERS"),
    "torch_compile": (TORCH_COMPILE, 8, ("TORCHINDUCTOR_CACHE_DIR",), "TORCHINDUCTOR_COMPILE_THREADS"),
}


def run_side(name: str, workers: int, runner: Callable[..., Any] = run_python) -> dict[str, Any]:
    """One build in a fresh process with an empty cache."""
    snippet, repeated, caches, count = SIDES[name]
    with tempfile.TemporaryDirectory(prefix="staxlab-parallel-build-") as directory:
        environment = {**dict.fromkeys(caches, directory), count: str(workers)}
        return runner(snippet.format(repeated=repeated, target=CAPABILITY), environment)


def measure(
    sides: Sequence[str],
    counts: Sequence[int],
    repeats: int,
    say: Callable[[str], None] = print,
    runner: Callable[..., Any] = run_python,
) -> dict[str, Any]:
    """All sides with all numbers of workers, in turns, ``repeats`` times. One that fails is reported and left out;
    Ctrl-C ends early with the whole rounds measured until then."""
    rounds: list[dict[str, dict[str, Any]]] = []
    failed: dict[str, str] = {}
    complete = True
    try:
        for number in range(repeats):
            found: dict[str, dict[str, Any]] = {}
            for name in sides:
                for count in counts if number % 2 == 0 else reversed(counts):
                    key = f"{name} {count}"
                    if name in failed:
                        continue
                    try:
                        found[key] = run_side(name, count, runner)
                    except ProcessFailed as error:
                        failed[name] = str(error)
            rounds.append(found)
            say(f"  round {number + 1} of {repeats}, load {os.getloadavg()[0]:.2g}")
    except KeyboardInterrupt:
        complete = False
    return {
        "counts": list(counts), "complete": complete, "failed": failed, "rounds": rounds,
        "summary": summary(rounds, sides, counts),
    }  # fmt: skip


def summary(rounds: Sequence[dict[str, Any]], sides: Sequence[str], counts: Sequence[int]) -> dict[str, Any]:
    """Medians with intervals, for each side and number of workers: seconds, and for ours the share of the bounds."""
    found: dict[str, Any] = {}
    for name in sides:
        for count in counts:
            taken = [round_ for round_ in rounds if f"{name} {count}" in round_]
            if not taken:
                continue
            own = [round_[f"{name} {count}"] for round_ in taken]
            row = {"seconds": figure([one["seconds"] for one in own])}
            if "work" in own[0]:
                row |= {key: figure([one[key] for one in own]) for key in ("makespan", "work", "serial")}
                row["kernels"] = own[0]["kernels"]
                row["over_lower_bound"] = figure([one["makespan"] / one["low"] for one in own])
                row["of_upper_bound"] = figure([one["makespan"] / one["high"] for one in own])
                row["work_over_makespan"] = figure([one["work"] / one["makespan"] for one in own])
            first = f"{name} {counts[0]}"
            paired = [r for r in taken if first in r]
            row["speedup"] = figure([r[first]["seconds"] / r[f"{name} {count}"]["seconds"] for r in paired])
            if "work" in own[0]:
                row["speedup_of_build"] = figure(
                    [r[first]["makespan"] / r[f"{name} {count}"]["makespan"] for r in paired]
                )
            peer = [r for r in taken if name == "cpp" and f"torch_compile {count}" in r]
            if peer:
                ratios = [r[f"torch_compile {count}"]["seconds"] / r[f"cpp {count}"]["seconds"] for r in peer]
                row["torch_compile_over_this"] = figure(ratios)
            found[f"{name} {count}"] = row
    return found


def figure(readings: Sequence[float]) -> dict[str, Any]:
    """A median with its interval (Proposition 13.2) and the readings."""
    interval = median_interval(readings)
    return {
        "median": median(readings),
        "interval": [interval.low, interval.high, interval.coverage] if interval else None,
        "readings": list(readings),
    }


def table(record: dict[str, Any]) -> Any:
    """The record as a text table."""
    from staxlab.measure.tables import Table, seconds_text

    def cell(row: dict[str, Any], key: str, seconds: bool = False) -> str:
        if key not in row:
            return ""
        middle = row[key]["median"]
        low, high, _ = row[key]["interval"]
        return seconds_text(middle) if seconds else f"{middle:.2f} [{low:.2f}, {high:.2f}]"

    rows = [
        (
            name, row.get("kernels", ""), cell(row, "seconds", True), cell(row, "makespan", True),
            cell(row, "work_over_makespan"), cell(row, "over_lower_bound"), cell(row, "of_upper_bound"),
            cell(row, "speedup"), cell(row, "torch_compile_over_this"),
        )
        for name, row in record["summary"].items()
    ]  # fmt: skip
    notes = [f"{name}: {reason}" for name, reason in record["failed"].items()]
    if not record["complete"]:
        notes.append("interrupted: what was measured until then")
    columns = (
        "side, workers", "kernels", "all", "build", "busy workers", "/ lower bound", "/ upper bound", "speedup",
        "torch.compile / this",
    )  # fmt: skip
    return Table.build("Cold builds by the number of workers; ratios with the interval of their median", columns, rows,
                       notes)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m benchmarks.parallel_build", description=__doc__.split("\n")[0])
    p.add_argument("--repeats", type=int, default=5, help="rounds (default 5)")
    p.add_argument("--workers", default="", help="numbers of workers, separated by commas (default 1,2,4,.. to cores)")
    p.add_argument("--sides", default=",".join(SIDES), help=f"of {', '.join(SIDES)}")
    p.add_argument("--out", type=Path, help="write JSON")
    options = p.parse_args(arguments)
    from staxlab.runtime.build_report import worker_count

    most = worker_count()
    given = options.workers.split(",") if options.workers else [str(k) for k in powers_up_to(most)]
    if not all(number.strip().isdecimal() and int(number) > 0 for number in given):
        p.error(f"numbers of workers are whole and above 0, not {options.workers!r}")
    sides = [name.strip() for name in options.sides.split(",") if name.strip()]
    for name in sides:
        if name not in SIDES:
            p.error(f"no side named {name!r}; sides: {', '.join(SIDES)}")
    if options.repeats < 1:
        p.error("at least one round is needed")
    before = os.getloadavg()
    record = measure(sides, [int(number) for number in given], options.repeats)
    print(table(record).text())
    if options.out:
        from benchmarks.records import header, save

        whole = {**header(FORMAT), "load_before": list(before), "load_after": list(os.getloadavg()), **record}
        print(f"wrote {save(whole, options.out)}")
    return 130 if not record["complete"] else 1 if set(record["failed"]) & {"cpp", "triton"} else 0


def powers_up_to(most: int) -> list[int]:
    """1, 2, 4, ... and ``most``."""
    return sorted({*(1 << k for k in range(most.bit_length()) if 1 << k <= most), most})


if __name__ == "__main__":
    raise SystemExit(main())
