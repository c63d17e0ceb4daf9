"""What locating an error costs (Algorithm 11.1): seconds, prefixes run, and graphs tried for a small program.

    python -m benchmarks.locate --out benchmarks/results/locate.json

Five programs, each compiled rightly and with a mistake planted: the lowering rule of one of its operators is another
operator's. The sides take turns: a first call that finds its kernels compiled, a search that finds nothing, one that
finds the mistake, and one that also makes the small program. Plans are not restored, since a rule that is exchanged
while the process runs is not in their key. Checks and graphs are counted, and do not depend on the machine; ratios to
the first call are medians of readings side by side.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import staxlab
from benchmarks.records import header, save
from staxlab.loops.lowering import RULES
from staxlab.measure.tables import Table, Tabular, seconds_text
from staxlab.measure.timing import Timing, median, pairwise

FORMAT = "staxlab-locate-1"
aten = torch.ops.aten


@dataclass(frozen=True)
class Program:
    """A program, and the operator whose lowering is replaced by that of another."""

    function: Callable[..., Any]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    operator: Any
    instead: Any


def example_1_1(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (torch.relu(x + w) * 2).sum(-1)


def softmax_of_operators(x: torch.Tensor) -> torch.Tensor:
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def perceptron(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return F.silu(x @ first) @ second


def normalized(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.tanh(F.layer_norm(x, (x.shape[-1],), weight))


def recurrence(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    state = torch.zeros_like(x)
    for _ in range(8):
        state = torch.sigmoid(x + state * w) * torch.tanh(state + x)
    return state.sum()


def _drawn(*shapes: tuple[int, ...], grad: bool = False) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator).requires_grad_(grad) for shape in shapes)


PROGRAMS: dict[str, Program] = {
    "Example 1.1": Program(example_1_1, lambda: _drawn((64, 128), (64, 128)), aten.relu.default, aten.neg.default),
    "softmax": Program(softmax_of_operators, lambda: _drawn((64, 200)), aten.exp.default, aten.expm1.default),
    "perceptron": Program(
        perceptron, lambda: _drawn((16, 64), (64, 48), (48, 8)), aten.silu.default, aten.sigmoid.default
    ),
    "training step": Program(
        normalized, lambda: _drawn((16, 64), (64,), grad=True), aten.tanh.default, aten.sin.default
    ),
    "recurrence": Program(recurrence, lambda: _drawn((8, 32), (8, 32)), aten.sigmoid.default, aten.tanh.default),
}


@contextlib.contextmanager
def planted(program: Program) -> Iterator[None]:
    """The mistake, for a while."""
    right = RULES[program.operator]
    RULES[program.operator] = RULES[program.instead]
    try:
        yield
    finally:
        RULES[program.operator] = right


@dataclass(frozen=True)
class Searches(Tabular):
    """What was measured, program by program."""

    results: tuple[dict[str, Any], ...]

    def table(self) -> Table:
        columns = ("program", "found", "checks", "checks, wrong", "graphs tried", "calls left", "first call",
                   "no error", "error", "and program", "no error / call")  # fmt: skip
        rows = [
            (r["program"], r["found"], r["checks"], r["checks_with_fault"], r["trials"], f"{r['calls']} -> {r['left']}",
             *(seconds_text(median(r["seconds"][side])) for side in SIDES), f"{r['ratio']['median']:.2f}")
            for r in self.results
        ]  # fmt: skip
        note = "ratios are medians of readings side by side; kernels of the right program are in the disk cache"
        return Table.build("Locating errors (Algorithm 11.1)", columns, rows, (note,), 2)


SIDES = ("first call", "no error", "error", "and program")


def measure(names: Sequence[str], repeats: int) -> dict[str, Any]:
    """Every side of every program, in turns. An interruption ends it, with what there is."""
    results = []
    for name in names:
        program = PROGRAMS[name]
        readings: dict[str, list[float]] = {side: [] for side in SIDES}
        counts: dict[str, Any] = {}
        try:
            for turn in range(repeats + 1):
                for side in SIDES:
                    seconds = _read(program, side, counts)
                    if turn:  # the first turn fills the caches
                        readings[side].append(seconds)
        except KeyboardInterrupt:
            return {"complete": False, "results": results}
        ratio = pairwise(Timing("no error", tuple(readings["no error"])), Timing("call", tuple(readings["first call"])))
        results.append({"program": name, **counts, "seconds": readings, "ratio": ratio.to_json()})
    return {"complete": True, "results": results}


def _read(program: Program, side: str, counts: dict[str, Any]) -> float:
    trials = 0

    def progress(text: str) -> None:
        nonlocal trials
        trials += ", trial " in text

    with warnings.catch_warnings(), planted(program) if side in SIDES[2:] else contextlib.nullcontext():
        warnings.simplefilter("ignore")
        inputs = program.inputs()
        start = time.perf_counter()
        if side == "first call":
            staxlab.compile(program.function)(*inputs)
            return time.perf_counter() - start
        found = staxlab.locate_error(program.function, *inputs, minimise=side == "and program", progress=progress)
        seconds = time.perf_counter() - start
    if side == "no error":
        counts["checks"] = len(found.checks)
        assert found.culprit is None, found
    elif side == "error":
        assert found.culprit is not None, found
        counts |= {"found": str(found.culprit), "checks_with_fault": len(found.checks)}
    else:
        calls = len(staxlab.trace(program.function, *inputs).graph.calls)
        body = found.script.split("def f(")[1].split("    return")[0].splitlines()[1:]
        counts |= {"trials": trials, "calls": calls, "left": len(body)}
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.locate", description=__doc__.split("\n")[0])
    parser.add_argument("--programs", metavar="NAMES", default=",".join(PROGRAMS), help="with commas between them")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="readings of each side (5)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write JSON")
    options = parser.parse_args(arguments)
    names = [name.strip() for name in options.programs.split(",")]
    unknown = [name for name in names if name not in PROGRAMS]
    if unknown:
        parser.error(f"unknown program {unknown[0]!r}; known: {', '.join(PROGRAMS)}")
    if options.repeats < 1:
        parser.error("--repeats is 1 or more")
    os.environ["STAXLAB_PLANS"] = "0"
    record = measure(names, options.repeats)
    if record["results"]:
        print(Searches(tuple(record["results"])))
    if options.out:
        print(f"wrote {save({**header(FORMAT), **record}, options.out)}")
    return 0 if record["complete"] else 130


if __name__ == "__main__":
    raise SystemExit(main())
