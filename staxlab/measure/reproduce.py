"""Tables 13.1 and 13.2 and Figure 13.1, measured here (Section 13.2).

Every case is run eagerly and compiled, on the same inputs, in turns. What is found of it:

* ``rho``, the ratio of the bytes that eager and compiled execution move by the byte model (Definition 13.2), counted
  from the operators eager ran and from the kernels *this* compiler made of the case, which is not always what the text
  counts; and once more with write-allocate, where an ordinary store moves its line twice;
* the speedup ``S`` of each round with its interval, and its two factors, ``S = rho * beta_c / beta_e`` (Proposition
  13.3), with the effective bandwidths;
* the share of the roof: how much of the bandwidth that the machine had *in the same readings*, for the kernel's own mix
  of reads and writes, it attained (:mod:`.roofs`);
* whether the difference is established (:mod:`.rounds`): all cases are measured in round A, then all in round B, so
  that the two readings of a case lie as far apart as a run allows.

Before anything is timed, results are held against double precision: a fast wrong answer is not a result.

``compile`` is the compiler under test, ``functools.partial(staxlab.compile, strict_native=True)`` for this one: strict,
or a fallback would be timed for a kernel (Section 13.5, construct validity). Peers are callables of the same kind.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from ..errors import OptionError
from ..files import write_whole
from . import machine
from .bytes import TrafficModel, traffic_model
from .chapter_cases import CHAPTER_CASES, Case
from .reproduction import CaseRun, Reproduction
from .roofs import Roofs, roofs_for
from .rounds import Rounds, round_name
from .tables import bytes_text
from .timing import Comparison, Progress, compare, device_synchronize
from .tolerance import beside_eager

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]

#: What ``staxlab reproduce`` may be asked for, and the tables of the cases it needs.
TABLES = {"table-13.1": ("13.1",), "table-13.2": ("13.2",), "figure-13.1": ("13.1", "13.2")}

#: Seconds between readings, for a spinning thread pool to come to rest before the next side's turn.
PAUSE = 2e-3

#: Inputs are to exceed the last cache by this factor, so that main memory is what is measured (Section 13.5).
BEYOND_CACHE = 2


@dataclass(frozen=True)
class Settings:
    """How a run is made: ``rounds`` over all cases, ``readings`` of each side per round, ``scale`` times the rows of
    the text's tensors. ``roof`` measures the machine's bandwidth in turns with each case."""

    readings: int = 15
    warmup: int = 3
    rounds: int = 2
    scale: float = 1.0
    device: str = "cpu"
    dtype: str = "float32"
    seed: int = 0
    roof: bool = True
    pause: float = PAUSE

    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)


def cases_for(what: str) -> tuple[Case, ...]:
    """The cases of one of :data:`TABLES`, or of "all"; or one case by name. OptionError for anything else."""
    if what == "all":
        return CHAPTER_CASES
    if what in TABLES:
        return tuple(case for case in CHAPTER_CASES if case.table in TABLES[what])
    found = tuple(case for case in CHAPTER_CASES if case.name == what)
    if not found:
        names = ", ".join([*TABLES, "all", *(case.name for case in CHAPTER_CASES)])
        raise OptionError(f"there is nothing called {what!r} to reproduce", remedy=f"choose among {names}")
    return found


# --- Memory -----------------------------------------------------------------------------------------------------------


def bytes_needed(case: Case, size: tuple[int, int], itemsize: int) -> int:
    """Bytes that measuring a case has allocated at most: inputs, eager's intermediate values and results, the same in
    double precision for the reference, and two buffers of the roof."""
    elements = size[0] * size[1]
    live = case.inputs + 3  # no case holds more than three whole tensors besides its inputs at any time
    return elements * (live * (itemsize + 8) + 2 * itemsize)


def available_memory(device: str) -> int | None:
    """Bytes that may be allocated on a device; None where the system does not say."""
    if device != "cpu":
        return torch.cuda.mem_get_info(torch.device(device))[0]
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return None


def require_memory(cases: Sequence[Case], settings: Settings, available: int | None = None) -> None:
    """OptionError if the largest case needs more memory than is ``available`` (by default: than the device has), naming
    a scale that fits."""
    if available is None:
        available = available_memory(settings.device)
    if available is None:
        return
    itemsize = settings.torch_dtype().itemsize
    need, case = max(
        ((bytes_needed(case, case.scaled(settings.scale), itemsize), case) for case in cases), key=lambda pair: pair[0]
    )
    if need > available:
        fits = settings.scale * available / need
        digits = 10.0 ** (math.floor(math.log10(fits)) - 1) if fits > 0 else 1.0
        raise OptionError(
            f"{case.title} at {'x'.join(map(str, case.scaled(settings.scale)))} needs about {bytes_text(need)}, and "
            f"{bytes_text(available)} are free",
            remedy=f"smaller tensors: --scale {max(math.floor(fits / digits) * digits, 1e-6):.2g}",
        )


# --- One case ---------------------------------------------------------------------------------------------------------


@dataclass
class _Prepared:
    """A case between its rounds: what was compiled, what is known of it, and the comparisons so far. Inputs are made
    anew for every round, and lie somewhere else in memory."""

    case: Case
    size: tuple[int, int]
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)
    traffic: TrafficModel | None = None
    first_calls: dict[str, float] = field(default_factory=dict)
    kernels: tuple[str, ...] = ()
    errors: dict[str, float] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    comparisons: list[Comparison] = field(default_factory=list)
    roofs: list[dict[str, Any]] = field(default_factory=list)


def flat(result: Any) -> tuple[torch.Tensor, ...]:
    """The tensors a function returned."""
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def largest_error(outputs: Sequence[torch.Tensor], reference: Sequence[torch.Tensor]) -> float:
    """Largest error relative to the size of the reference's elements (at least 1 for the small ones). NaN counts as
    inf, and so do other shapes."""
    if [tuple(o.shape) for o in outputs] != [tuple(r.shape) for r in reference]:
        return math.inf
    worst = 0.0
    for output, true in zip(outputs, reference, strict=True):
        if true.numel():
            gap = (output.to(true.device).double() - true).abs() / true.abs().clamp(min=1.0)
            worst = max(worst, torch.nan_to_num(gap, nan=math.inf).max().item())
    return worst


def reference_of(case: Case, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The answer computed in double precision."""
    return flat(case.function(*(t.double() if t.is_floating_point() else t for t in inputs)))


def prepare(case: Case, compile: Compiler, settings: Settings, peers: Mapping[str, Compiler]) -> _Prepared:
    """Compile a case, check every side's answer, count bytes. A peer that fails is kept as a problem; an error of the
    compiler under test passes through."""
    prepared = _Prepared(case, case.scaled(settings.scale))
    inputs = case.make_inputs(prepared.size, settings.torch_dtype(), settings.device, settings.seed)
    wait = device_synchronize(settings.device) or (lambda: None)
    reference = reference_of(case, inputs)
    prepared.functions["eager"] = case.function
    eager_error = prepared.errors["eager"] = largest_error(flat(case.function(*inputs)), reference)
    allowed = beside_eager(eager_error, settings.torch_dtype(), max(prepared.size))
    for name, compiler in {"compiled": compile, **peers}.items():
        try:
            start = perf_counter()
            function = compiler(case.function)
            function(*inputs)
            wait()
            prepared.first_calls[name] = perf_counter() - start
            error = prepared.errors[name] = largest_error(flat(function(*inputs)), reference)
        except Exception as failure:
            if name == "compiled":
                raise
            said = str(failure).splitlines()
            prepared.problems[name] = f"{type(failure).__name__}: {said[0] if said else ''}"
            continue
        if not error <= allowed:
            prepared.problems[name] = f"wrong: off by {error:.3g}, eager by {eager_error:.3g}"
            continue
        prepared.functions[name] = function
        if name == "compiled":
            compilation = function.versions[-1].compilation
            prepared.traffic = traffic_model(compilation)
            prepared.kernels = tuple(kernel.name for kernel in compilation.kernels)
    return prepared


def measure_round(prepared: _Prepared, settings: Settings, progress: Progress | None = None) -> bool:
    """Add a round to a case: fresh inputs, all sides and the roof in turns. Whether it ran to its end."""
    inputs = prepared.case.make_inputs(prepared.size, settings.torch_dtype(), settings.device, settings.seed)
    sides = {name: (lambda function=function: function(*inputs)) for name, function in prepared.functions.items()}
    roof: Roofs | None = None
    if settings.roof:
        roof = roofs_for(max(t.numel() * t.element_size() for t in inputs), settings.device)
    comparison = compare(
        sides | (roof.sides if roof is not None else {}), readings=settings.readings, warmup=settings.warmup,
        device=settings.device, pause=settings.pause, progress=progress,
    )  # fmt: skip
    if roof is not None:
        comparison = roof.take(comparison)
        prepared.roofs.append(_shares(prepared, comparison, roof))
    prepared.comparisons.append(comparison)
    return comparison.complete


def _shares(prepared: _Prepared, comparison: Comparison, roof: Roofs) -> dict[str, Any]:
    """The bandwidths of the round, and which share of its roof each side that has a model reached."""
    found: dict[str, Any] = {"bandwidth": {}, "shares": {}}
    if any(not seconds for seconds in roof.readings.values()) or not roof.readings:
        return found
    found["bandwidth"] = {ceiling.name: ceiling.value for ceiling in roof.typical().of("bandwidth")}
    if prepared.traffic is not None:
        for name, side in (("eager", prepared.traffic.eager), ("compiled", prepared.traffic.compiled)):
            if side is not None:
                found["shares"][name] = roof.share(side.rows, comparison[name].readings)
    return found


def _finished(prepared: _Prepared, settings: Settings) -> CaseRun:
    """The record of a case, as far as it was measured."""
    case, traffic, rows = prepared.case, prepared.traffic, {}
    if traffic is not None and traffic.compiled is not None:
        for name, side in (("eager", traffic.eager), ("compiled", traffic.compiled)):
            rows[name] = {"read": side.bytes_read, "written": side.bytes_written, "operations": side.operations}
    return CaseRun(
        name=case.name, title=case.title, table_number=case.table, size=prepared.size, traffic=rows,
        rounds=Rounds(tuple(prepared.comparisons), settings.rounds), roofs=tuple(prepared.roofs),
        kernels=prepared.kernels, first_calls=prepared.first_calls, errors=prepared.errors, problems=prepared.problems,
        reported=case.reported,
    )  # fmt: skip


# --- The whole run ----------------------------------------------------------------------------------------------------


def reproduce(
    what: str | Sequence[Case],
    compile: Compiler,
    settings: Settings | None = None,
    peers: Mapping[str, Compiler] | None = None,
    progress: Progress | None = None,
) -> Reproduction:
    """Measure the cases of a table ("table-13.1", "table-13.2", "figure-13.1", "all"), a case by name, or these cases.

    Ctrl-C ends early with what was measured, marked incomplete. Raises OptionError for an unknown name or device,
    fewer than one round or reading, and too little memory, and passes on what ``compile`` raises (BuildError without a
    C++ compiler).
    """
    settings = settings if settings is not None else Settings()
    cases = cases_for(what) if isinstance(what, str) else tuple(what)
    _require_sensible(settings)
    require_memory(cases, settings)
    before = machine.machine_record(settings.device)
    prepared: list[_Prepared] = []
    complete = True
    # Preparing a case compiles it, which takes about as long as a round of it.
    parts = len(cases) * (settings.rounds + 1)

    def report(part: int, words: str) -> Progress:
        return lambda fraction, message: progress and progress((part + fraction) / parts, f"{words}: {message}")

    try:
        for number, case in enumerate(cases):
            report(number, case.title)(0.0, "compiling, and checking results")
            prepared.append(prepare(case, compile, settings, peers or {}))
        for r in range(settings.rounds):
            for number, one in enumerate(prepared):
                words = f"round {round_name(r)}, {one.case.title}"
                if not measure_round(one, settings, report((r + 1) * len(cases) + number, words)):
                    raise KeyboardInterrupt
    except KeyboardInterrupt:
        complete = False
    if progress is not None:
        progress(1.0, "done" if complete else "interrupted")
    return Reproduction(
        cases=tuple(_finished(one, settings) for one in prepared if one.comparisons or one.problems),
        settings=dict(settings.__dict__),
        machine=before,
        versions=machine.version_record(),
        command=machine.command_line(),
        date=machine.timestamp(),
        notes=tuple(note for note in (machine.busy_note(before), _cache_note(cases, settings, before)) if note),
        complete=complete,
    )


def _require_sensible(settings: Settings) -> None:
    if settings.rounds < 1 or settings.readings < 1:
        raise OptionError("at least one round of one reading is needed")
    if not (settings.scale > 0 and math.isfinite(settings.scale)):
        raise OptionError(f"a scale is positive, not {settings.scale:g}", remedy="1 is the size of the text's tensors")
    if settings.device != "cpu" and not (settings.device.startswith("cuda") and torch.cuda.is_available()):
        raise OptionError(f"there is no device {settings.device!r} here", remedy="--device cpu")


def _cache_note(cases: Sequence[Case], settings: Settings, record: Mapping[str, Any]) -> str | None:
    """A warning where tensors are not far larger than the last cache, and None where they are."""
    cache = record.get("last_level_cache_bytes")
    if settings.device != "cpu":
        cache = getattr(torch.cuda.get_device_properties(torch.device(settings.device)), "L2_cache_size", None)
    itemsize = settings.torch_dtype().itemsize
    smallest = min((case.inputs * math.prod(case.scaled(settings.scale)) * itemsize for case in cases), default=0)
    if not cache or smallest >= BEYOND_CACHE * cache:
        return None
    return (
        f"the smallest inputs have {bytes_text(smallest)} and the last cache reports {bytes_text(cache)}: part of the "
        "traffic may stay in it, which the byte model counts as main memory's"
    )


def write_json(record: Mapping[str, Any], path: Path) -> Path:
    """Write a record as JSON: whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(path, (json.dumps(record, indent=1, allow_nan=False) + "\n").encode(), private=False)
