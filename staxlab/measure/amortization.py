"""When compiling pays on this machine (Section 13.4): the numbers that Propositions 13.4 and 13.6 ask for, measured.

* ``C``, what the first call costs, once with an empty cache and once with one that an earlier process filled, each in a
  process of its own (:mod:`.fresh_process`). The difference is what the cache saves: the C++ compiler, and with the
  plan kept also lowering, scheduling and code generation (Section 11.1); "kernels" is the state between, where only
  compiled kernels are found.
* ``t_e - t_c``, what each further call saves, for Example 1.1 at its full size, in the rounds of :mod:`.reproduce`.
  Their quotient is ``m*``, the number of calls after which compiling has paid for itself.
* the fixed overhead of a call, on tensors so small that nothing else counts: ``tau_e`` per eager operator, ``tau_c``
  per compiled call, with the same tensor again and with a new one. From them and a bandwidth follows ``N*``, the number
  of elements above which fusing a chain of ``k`` operators pays. Where ``tau_c < k tau_e`` no size is too small.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import StaxError
from . import machine
from .amortize import BreakEven, break_even, minimum_size
from .fresh_process import ProcessFailed, run_python
from .reproduction import CaseRun
from .rounds import round_name
from .tables import Table, Tabular, quantity_text, seconds_text
from .timing import Comparison, Progress, compare, device_synchronize, median, sample

FORMAT = "staxlab-amortization-1"

#: The cheapest call there is: two operators on eight elements.
ELEMENTS, OPERATORS = 8, 2

#: States of a cache: its title, and what else the environment says.
STATES = {"cold": ("an empty cache", {}), "kernels": ("kernels in the cache", {"STAXLAB_PLANS": "0"}),
          "warm": ("plans and kernels in the cache", {})}  # fmt: skip

#: Example 1.1 in a fresh process: a first call and a second one, on ``rows`` x ``columns`` elements of ``device``. The
#: clock starts after the imports, and after eager has paid for PyTorch's own first use.
FIRST_CALL = """
import json, time, torch, staxlab
def f(x, w):
    return (torch.relu(x + w) * 2).sum(-1)
x, w = torch.randn({rows}, {columns}, device="{device}"), torch.randn({rows}, {columns}, device="{device}")
wait = torch.cuda.synchronize if x.is_cuda else lambda: None
eager = f(x, w)
wait()
compiled = staxlab.compile(f, strict_native=True)
start, busy = time.perf_counter(), time.process_time()
result = compiled(x, w)
wait()
first, busy = time.perf_counter() - start, time.process_time() - busy
start = time.perf_counter()
compiled(x, w)
wait()
second = time.perf_counter() - start
assert torch.allclose(result, eager, rtol=1e-4, atol=1e-4)
compilation = compiled.versions[-1].compilation
restored = float(getattr(compilation, "restored", False))
stages = dict(compilation.timings)
print(json.dumps({{
    "first_call": first, "processor": busy, "second_call": second, "restored": restored, "stages": stages
}}))
"""

#: What the text has, on another machine.
REPORTED = (
    "the text has: a cold first call of 5.2 to 5.9 s and a warm one of about 1.2 s; m* of 420 to 510 calls, and about "
    "100 with a warm cache",
    "the text has: 1.8 us per eager operator; 12.0 to 12.7 us per compiled call with the same tensor and 22.0 to 22.6 "
    "us with a new one; N* of 5e4 and 1.1e5 elements",
)


def chain_of_two(x: Any) -> Any:
    """The function whose calls cost little more than their overhead."""
    return x * 2 + 1


def call_sides(name: str, function: Callable[[Any], Any], same: Any, pool: Sequence[Any]) -> dict[str, Callable]:
    """Two ways of calling: again with the same tensor, and with a new one each time, taken from a pool made before.
    The function is called once at this point."""
    function(same)
    following = itertools.cycle(pool).__next__
    return {
        f"{name}, same tensor": lambda: function(same),
        f"{name}, new tensor": lambda: function(following()),
    }


@dataclass(frozen=True, repr=False)
class Amortization(Tabular):
    """Costs of compiling on a machine. ``first_calls`` has seconds by state of the cache, a number per process;
    ``example`` the timed case whose calls are saved; ``overheads`` the smallest calls; ``bandwidth`` bytes per second.

    ``example``, ``overheads`` or a state is missing where measuring was interrupted or failed (``notes``).
    """

    first_calls: Mapping[str, tuple[float, ...]]
    example: CaseRun | None
    overheads: Comparison | None
    bandwidth: float
    notes: tuple[str, ...] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    date: str = ""
    complete: bool = True

    def cost(self, state: str) -> float:
        """``C`` in seconds: the median first call in a state of the cache; NaN if it was not measured."""
        return median(self.first_calls.get(state, ()))

    def break_evens(self, state: str) -> tuple[BreakEven, ...]:
        """Proposition 13.4 with each round's times; empty without them."""
        if self.example is None or not self.first_calls.get(state):
            return ()
        return tuple(
            break_even(self.cost(state), found.eager_seconds, found.compiled_seconds)
            for found in self.example.decompositions()
        )

    @property
    def eager_overhead(self) -> float:
        """``tau_e``: seconds per eager operator, with a new tensor each time; NaN if it was not measured."""
        return self._overhead("eager, new tensor") / OPERATORS

    def compiled_overhead(self, call: str) -> float:
        """``tau_c``: seconds per compiled call, for ``call`` "same tensor" or "new tensor"; NaN if not measured."""
        return self._overhead(f"compiled, {call}")

    def _overhead(self, side: str) -> float:
        known = self.overheads is not None and side in {t.name for t in self.overheads.timings}
        return self.overheads[side].median if known else math.nan

    def smallest_size(self, call: str = "new tensor", operators: int = OPERATORS) -> float:
        """``N*`` of a chain of ``operators`` (Proposition 13.6), in float32 elements. 0: fusing pays at every size, for
        a compiled call costs no more than the operators' own overhead. NaN if a number is missing."""
        compiled = self.compiled_overhead(call)
        if math.isnan(compiled) or math.isnan(self.eager_overhead) or math.isnan(self.bandwidth):
            return math.nan
        return max(minimum_size(operators, self.eager_overhead, compiled, self.bandwidth), 0.0)

    def table(self) -> Table:
        rows = [
            (f"C, {title}", _several(self.first_calls[state]), "", "")
            for state, (title, _) in STATES.items()
            if self.first_calls.get(state)
        ]
        if self.example is not None:
            rows += [
                (
                    f"{self.example.title.split(':')[0]}, eager call, round {round_name(r)}",
                    seconds_text(d.eager_seconds),
                    "",
                    "",
                )
                for r, d in enumerate(self.example.decompositions())
            ]
            rows += [
                (
                    f"{self.example.title.split(':')[0]}, compiled call, round {round_name(r)}",
                    seconds_text(d.compiled_seconds),
                    "",
                    "",
                )
                for r, d in enumerate(self.example.decompositions())
            ]
        for state, (title, _) in STATES.items():
            if found := self.break_evens(state):
                calls = ("never" if b.first_winning_call is None else str(b.first_winning_call) for b in found)
                rows.append((f"m*, {title}", "", " / ".join(calls), ""))
        if self.overheads is not None:
            rows.append(("tau_e, per operator", seconds_text(self.eager_overhead), "", ""))
            for call in ("same tensor", "new tensor"):
                rows.append((f"tau_c, {call}", seconds_text(self.compiled_overhead(call)), "", ""))
            rows += [(f"N*, {k} operators, {call}", "", "", size_text(self.smallest_size(call, k)))
                     for call in ("same tensor", "new tensor") for k in (OPERATORS, 5)]  # fmt: skip
        notes = [f"N* at {quantity_text(self.bandwidth, 'B/s')}, the best of a few copies", *REPORTED, *self.notes]
        if not self.complete:
            notes.append("interrupted: what was measured until then")
        columns = ("quantity", "time", "calls", "elements")
        return Table.build("When compiling pays (Section 13.4)", columns, rows, notes)

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types; :meth:`from_json` is its inverse."""
        return {
            "format": FORMAT, "date": self.date, "command": self.command, "machine": dict(self.machine),
            "versions": dict(self.versions), "complete": self.complete,
            "first_calls_s": {state: list(seconds) for state, seconds in self.first_calls.items()},
            "example": self.example.to_json() if self.example is not None else None,
            "overheads": self.overheads.to_json() if self.overheads is not None else None,
            "bandwidth": None if math.isnan(self.bandwidth) else self.bandwidth, "notes": list(self.notes),
            "break_even_calls": {s: [b.to_json()["calls"] for b in self.break_evens(s)] for s in self.first_calls},
            "smallest_size": {call: _number(self.smallest_size(call)) for call in ("same tensor", "new tensor")},
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Amortization:
        """ValueError for data of another format."""
        if data.get("format") != FORMAT:
            raise ValueError(f"no amortization written by this version (format {data.get('format')!r})")
        return cls(
            {state: tuple(seconds) for state, seconds in data["first_calls_s"].items()},
            CaseRun.from_json(data["example"]) if data["example"] else None,
            Comparison.from_json(data["overheads"]) if data["overheads"] else None,
            math.nan if data["bandwidth"] is None else data["bandwidth"], tuple(data["notes"]), data["machine"],
            data["versions"], data["command"], data["date"], data["complete"],
        )  # fmt: skip


def size_text(elements: float) -> str:
    """``N*`` in words: ``above 51,000``; ``at any size`` where eager never wins, ``never`` where compiled never
    does."""
    if math.isnan(elements):
        return "n/a"
    if math.isinf(elements):
        return "never"
    return f"above {elements:,.0f}" if elements > 0 else "at any size"


def first_calls(
    size: tuple[int, int] = (64, 128),
    device: str = "cpu",
    *,
    repeats: int = 3,
    progress: Progress | None = None,
    runner: Callable[..., Any] = run_python,
) -> tuple[dict[str, list[float]], bool]:
    """Seconds of a first call in each state of a cache, ``repeats`` processes each, and whether all ran. Each
    repetition begins with a cache of its own, empty. Ctrl-C ends early. StaxError where a process fails."""
    code = FIRST_CALL.format(rows=size[0], columns=size[1], device=device)
    found: dict[str, list[float]] = {state: [] for state in STATES}
    try:
        for r in range(repeats):
            with tempfile.TemporaryDirectory(prefix="staxlab-first-calls-") as directory:
                for number, (state, (title, more)) in enumerate(STATES.items()):
                    if progress is not None:
                        done = (r * len(STATES) + number) / (repeats * len(STATES))
                        progress(done, f"first call in a new process, {title}")
                    found[state].append(runner(code, {"STAXLAB_CACHE_DIR": directory, **more})["first_call"])
    except KeyboardInterrupt:
        return found, False
    except ProcessFailed as error:
        raise StaxError(
            f"a first call in a new process {error}", remedy="staxlab doctor says what is missing here"
        ) from None
    return found, True


def call_overheads(
    compile: Callable[..., Any], device: str = "cpu", *, readings: int = 31, calls: int = 1000,
    progress: Progress | None = None,
) -> Comparison:  # fmt: skip
    """Calls of :func:`chain_of_two` on :data:`ELEMENTS` elements, eager and compiled, with the same and a new
    tensor."""
    same = torch.randn(ELEMENTS, device=device)
    pool = [torch.randn(ELEMENTS, device=device) for _ in range(512)]
    sides = call_sides("eager", chain_of_two, same, pool)
    sides |= call_sides("compiled", compile(chain_of_two), same, pool)
    return compare(sides, readings=readings, warmup=50, order="random", device=device, calls=calls, progress=progress)


def copy_bandwidth(device: str = "cpu", elements: int | None = None) -> float:
    """Bytes per second of the best of a few copies of float32, one read and one write counted (Proposition 13.1).

    By default 64 MiB are copied, and 1 GiB on a GPU, whose last cache may hold the former.
    """
    elements = elements if elements is not None else 1 << (24 if device == "cpu" else 28)
    source, target = torch.ones(elements, device=device), torch.zeros(elements, device=device)
    wait = device_synchronize(device)
    if wait is not None:
        wait()
    return 8 * elements / sample(lambda: target.copy_(source), readings=7, device=device).minimum


def _several(seconds: Sequence[float]) -> str:
    middle, number = seconds_text(median(seconds)), len(seconds)
    processes = f"{number} process{'' if number == 1 else 'es'}"
    return f"{middle} ({seconds_text(min(seconds))} to {seconds_text(max(seconds))}, {processes})"


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def measure_amortization(
    compile: Callable[..., Any],
    example: CaseRun | None,
    device: str = "cpu",
    *,
    repeats: int = 3,
    readings: int = 31,
    calls: int = 1000,
    elements: int | None = None,
    progress: Progress | None = None,
    runner: Callable[..., Any] = run_python,
) -> Amortization:
    """Measure first calls, the overhead of calls and a bandwidth here; ``example`` was timed by :mod:`.reproduce`.

    ``compile`` is the compiler under test; what it raises passes through. A process that fails leaves a note and no
    ``C``. Ctrl-C ends early with what was measured.
    """
    before = machine.machine_record(device)
    notes = [note for note in (machine.busy_note(before),) if note]
    overheads, bandwidth, started = None, math.nan, {}

    def part(low: float, high: float) -> Progress | None:
        return (lambda fraction, message: progress(low + fraction * (high - low), message)) if progress else None

    complete = True
    try:
        try:
            started, complete = first_calls(device=device, repeats=repeats, progress=part(0.0, 0.7), runner=runner)
        except StaxError as error:
            notes.append(error.what)
        if complete:
            overheads = call_overheads(compile, device, readings=readings, calls=calls, progress=part(0.7, 0.95))
            complete = overheads.complete
            bandwidth = copy_bandwidth(device, elements)
    except KeyboardInterrupt:
        complete = False
    if progress is not None:
        progress(1.0, "done" if complete else "interrupted")
    return Amortization(
        {state: tuple(seconds) for state, seconds in started.items() if seconds}, example, overheads, bandwidth,
        tuple(notes), before, machine.version_record(), machine.command_line(), machine.timestamp(), complete,
    )  # fmt: skip
