"""Running one case on several peers, and the record of a whole run (Section 13.2).

Peers take turns reading by reading in one process, so that drift hits them alike; or each gets a process of its own,
when one might disturb another (thread pools, allocators), and processes take turns instead. Before anything is timed,
every peer's result is held against a double-precision reference: a fast wrong answer is not a result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks import deviations, summary
from benchmarks.cases import Case
from benchmarks.peers import Peer, Side
from benchmarks.records import header
from staxlab.measure import roofs
from staxlab.measure.bytes import TrafficModel, decompose, traffic_model
from staxlab.measure.reproduce import flat, largest_error, reference_of
from staxlab.measure.tables import Table, bytes_text, quantity_text, seconds_text
from staxlab.measure.timing import Comparison, Ratio, Timing, compare, median, median_interval
from staxlab.measure.tolerance import beside_eager

FORMAT = "staxlab-benchmark-1"

#: Seconds between readings, for a spinning thread pool to come to rest before the next peer's turn.
PAUSE = 2e-3


@dataclass(frozen=True)
class Settings:
    """How a run is made. ``rounds`` whole repetitions show how far medians drift (Section 13.1); with ``preallocated``
    every peer overwrites results made beforehand; ``roof`` lets the machine's bandwidth be measured in turns with the
    peers, and the speedup explained."""

    readings: int = 15
    warmup: int = 3
    rounds: int = 2
    dtype: str = "float32"
    device: str = "cpu"
    seed: int = 0
    pause: float = PAUSE
    preallocated: bool = False
    roof: bool = True

    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)


@dataclass
class Entry:
    """One peer on one case: what it did before being timed, and its timing in every round."""

    peer: str
    first_call: float = math.nan
    max_error: float = math.nan
    model_bytes: int = 0
    details: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None
    timings: list[Timing] = field(default_factory=list)
    speedups: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "peer": self.peer,
            "first_call_s": _number(self.first_call),
            "max_error": _number(self.max_error),
            "model_bytes": self.model_bytes,
            "details": self.details,
            "problem": self.problem,
            "rounds": [t.to_json() for t in self.timings],
            "speedups_over_eager": self.speedups,
        }


@dataclass
class CaseResult:
    """All peers on one case at one size, whose largest input has ``largest_bytes``.

    ``roof`` is what the machine could have done in the same readings, and ``deviation`` why the speedup of staxlab is
    not the predicted one; None where that was not measured.
    """

    case: Case
    size: tuple[int, int]
    entries: list[Entry]
    model: dict[str, Any]
    complete: bool = True
    largest_bytes: int = 0
    traffic: TrafficModel | None = None
    roof: dict[str, Any] | None = None
    deviation: deviations.Deviation | None = None

    def entry(self, peer: str) -> Entry | None:
        return next((e for e in self.entries if e.peer == peer), None)

    @property
    def rho(self) -> float:
        """Model byte ratio of staxlab (of the lower bound, where staxlab did not run)."""
        return self.model["eager_bytes"] / self.model["compiled_bytes"]

    def to_json(self) -> dict[str, Any]:
        rows = []
        for entry in self.entries:
            row = entry.to_json()
            row["effective_bandwidth"] = [entry.model_bytes / t.median for t in entry.timings if t.readings]
            eager = self.entry("eager")
            if entry.peer != "eager" and eager is not None:
                row["decomposition"] = [
                    decompose(eager.model_bytes, entry.model_bytes, e, t).to_json()
                    for e, t in zip(eager.timings, entry.timings, strict=False)
                    if e.readings and t.readings
                ]
            rows.append(row)
        return {
            "case": self.case.name,
            "title": self.case.title,
            "table": self.case.table,
            "size": list(self.size),
            "model": self.model,
            "rho": self.rho,
            "complete": self.complete,
            "roof": self.roof,
            "prediction": self.deviation.to_json() if self.deviation is not None else None,
            "peers": rows,
        }


# --- Preparing --------------------------------------------------------------------------------------------------------


def prepare(
    case: Case, size: tuple[int, int], peers: Sequence[Peer], settings: Settings
) -> tuple[CaseResult, dict[str, Side]]:
    """Build every peer's side, check its answer, and count bytes. What cannot run is kept as an entry with a
    problem."""
    inputs = case.make_inputs(size, settings.torch_dtype(), settings.device, settings.seed)
    reference = reference_of(case, inputs)
    eager_error = largest_error(flat(case.function(*inputs)), reference)
    entries, sides = [], {}
    for peer in peers:
        entry = Entry(peer.name)
        entries.append(entry)
        reason = peer.missing(settings.device)
        make = peer.prepare_into if settings.preallocated else peer.prepare
        if reason is None and make is None:
            reason = "it cannot write into given results"
        if reason is not None:
            entry.problem = f"missing: {reason}" + (f"; {peer.install}" if peer.install else "")
            continue
        try:
            side = make(case, inputs)
            entry.max_error = largest_error(side.outputs(), reference)
        except Exception as error:  # a peer's failure is a finding, not the end of the run
            entry.problem = f"failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            continue
        entry.first_call, entry.details = side.first_call, side.details
        if not entry.max_error <= beside_eager(eager_error, settings.torch_dtype(), max(size)):
            entry.problem = f"wrong: off by {entry.max_error:.3g}, eager by {eager_error:.3g}"
            continue
        sides[peer.name] = side
    side = sides.get("staxlab")
    traffic = traffic_model(side.compilation) if side is not None and side.compilation is not None else None
    model = _model(case, size, settings, traffic)
    for entry in entries:
        entry.model_bytes = {"eager": model["eager_bytes"], "staxlab": model["compiled_bytes"]}.get(
            entry.peer, model["bound_bytes"]
        )
    largest = max((t.numel() * t.element_size() for t in inputs), default=0)
    return CaseResult(case, size, entries, model, largest_bytes=largest, traffic=traffic), sides


def _model(case: Case, size: tuple[int, int], settings: Settings, traffic: TrafficModel | None) -> dict[str, Any]:
    """Bytes by the byte model run on staxlab's compilation; by the case's formula where staxlab did not run."""
    itemsize = settings.torch_dtype().itemsize
    eager, bound = case.elements("eager", size), case.elements("compiled", size)
    model = {
        "source": "formula",
        "eager_elements": eager,
        "eager_bytes": eager * itemsize,
        "compiled_bytes": bound * itemsize,
        "bound_bytes": bound * itemsize,
        "operations": case.operations * size[0] * size[1],
    }
    if traffic is not None:
        model |= {
            "source": "recorded operators and schedule",
            "eager_elements": traffic.eager.elements,
            "eager_bytes": traffic.eager.nbytes,
            "compiled_bytes": traffic.compiled.nbytes if traffic.compiled else traffic.bound.nbytes,
            "bound_bytes": traffic.bound.nbytes,
        }
    return model


# --- Timing -----------------------------------------------------------------------------------------------------------


def run_case(
    case: Case,
    size: tuple[int, int],
    peers: Sequence[Peer],
    settings: Settings,
    progress: Callable[[str], None] = print,
) -> CaseResult:
    """All peers in this process, taking turns reading by reading, ``settings.rounds`` times over."""
    result, sides = prepare(case, size, peers, settings)
    for entry in result.entries:
        progress(f"  {entry.peer}: {entry.problem or 'ready, first call ' + seconds_text(entry.first_call)}")
    roof = None
    wanted = settings.roof and settings.device == "cpu"
    if wanted and result.traffic is not None and result.traffic.compiled is not None and "staxlab" in sides:
        roof = roofs.roofs_for(result.largest_bytes, settings.device)
    for r in range(settings.rounds if sides else 0):
        comparison = compare(
            {name: side.run for name, side in sides.items()} | (roof.sides if roof is not None else {}),
            readings=settings.readings,
            warmup=settings.warmup,
            device=settings.device,
            synchronize=lambda: [side.wait() for side in sides.values()],
            pause=settings.pause,
        )
        if roof is not None:
            comparison = roof.take(comparison)
        record_round(result, comparison)
        progress(f"  round {r + 1} of {settings.rounds}: {_medians(comparison.timings)}")
        if not comparison.complete:
            result.complete = False
            break
    if roof is not None and result.complete:
        explain(result, sides, roof, peers, settings)
    return result


def explain(
    result: CaseResult, sides: dict[str, Side], roof: roofs.Roofs, peers: Sequence[Peer], settings: Settings
) -> None:
    """Add to a timed case how near staxlab came to the roof, and where its speedup over eager comes from."""
    traffic, entry = result.traffic, result.entry("staxlab")
    readings = [t for timing in entry.timings for t in timing.readings]
    single = len(traffic.compiled.rows) == 1 and traffic.compiled.nbytes <= 1.01 * traffic.bound.nbytes
    result.roof = {
        **roof.to_json(),
        "single_pass": single,
        "share": roof.share(traffic.compiled.rows, readings),
    }
    eager = result.entry("eager")
    if eager is None or not eager.timings:
        return
    speedup = median([s["median"] for s in entry.speedups])
    typical = roof.typical()
    faults = {name: deviations.faults_of(sides[name].run) for name in ("eager", "staxlab")}

    def budget(name: str, in_cache: dict[str, float | None]) -> deviations.Budget:
        return deviations.budget(
            name,
            median([t for timing in result.entry(name).timings for t in timing.readings]),
            (traffic.eager if name == "eager" else traffic.compiled).rows,
            typical,
            streaming=name == "staxlab" and entry.details["streaming_stores"],
            faults=faults[name],
            fault_seconds=deviations.seconds_per_fault(),
            in_cache=in_cache.get(name),
            copied_bytes=entry.details.get("bytes_copied_afterwards", 0) if name == "staxlab" else 0,
        )

    def deviation(in_cache: dict[str, float | None]) -> deviations.Deviation:
        return deviations.Deviation(speedup, result.rho, budget("eager", in_cache), budget("staxlab", in_cache))

    result.deviation = deviation({})
    if abs(result.deviation.relative) > deviations.LARGE:  # worth another measurement
        by_name = {peer.name: peer for peer in peers}
        in_cache = {
            name: deviations.seconds_in_cache(result.case, result.size, by_name[name], settings)
            for name in ("eager", "staxlab")
        }
        result.deviation = deviation(in_cache)


def record_round(result: CaseResult, comparison: Comparison) -> None:
    """Add a round in which all peers took turns: paired ratios."""
    names = [t.name for t in comparison.timings]
    for timing in comparison.timings:
        entry = result.entry(timing.name)
        entry.timings.append(timing)
        if timing.name != "eager" and "eager" in names:
            entry.speedups.append(_speedup(comparison.ratio(timing.name, "eager")))


def _speedup(ratio: Ratio) -> dict[str, Any]:
    return {"paired": True, **ratio.to_json()}


def record_separate_round(result: CaseResult, timings: Sequence[Timing]) -> None:
    """Add a round in which every peer had its own process: no pairs, so the ratio's interval combines two medians'.

    If both medians lie in their intervals (95% each, independently: 90% together), their ratio lies between the extreme
    quotients.
    """
    by_name = {t.name: t for t in timings}
    eager = by_name.get("eager")
    for timing in timings:
        entry = result.entry(timing.name)
        entry.timings.append(timing)
        above, below = (median_interval(t.readings) if t is not None else None for t in (eager, timing))
        if timing.name != "eager" and above and below:
            entry.speedups.append(
                {
                    "paired": False,
                    "slower": "eager",
                    "faster": timing.name,
                    "median": eager.median / timing.median,
                    "interval": {
                        "low": above.low / below.high,
                        "high": above.high / below.low,
                        "coverage": above.coverage * below.coverage,
                    },
                }
            )


def _medians(timings: Sequence[Timing]) -> str:
    return ", ".join(f"{t.name} {seconds_text(t.median)}" for t in timings)


# --- The record of a run ----------------------------------------------------------------------------------------------


def run_record(results: Sequence[CaseResult], settings: Settings, isolated: bool, complete: bool) -> dict[str, Any]:
    """Everything a reader needs to judge or repeat the run, as a dict of JSON types."""
    cases = [r.to_json() for r in results]
    return {
        **header(FORMAT, settings.device),
        "settings": {**settings.__dict__, "isolated": isolated},
        "complete": complete and all(r.complete for r in results),
        "summary": summary.summarize(cases),
        "cases": cases,
    }


def result_table(result: CaseResult) -> Table:
    """One case as text: a row per peer, a column of medians per round."""
    rounds = max((len(e.timings) for e in result.entries), default=0)
    columns = [
        "peer",
        *(f"median {chr(65 + r)}" for r in range(rounds)),
        "bandwidth",
        "speedup",
        "interval",
        "first call",
    ]
    rows = []
    for entry in result.entries:
        if not entry.timings or not entry.timings[-1].readings:
            continue
        medians = [seconds_text(t.median) for t in entry.timings] + [""] * (rounds - len(entry.timings))
        bandwidth = quantity_text(entry.model_bytes / min(t.median for t in entry.timings), "B/s")
        speedups = " / ".join(f"{s['median']:.2f}" for s in entry.speedups)
        intervals = " / ".join(
            f"{s['interval']['low']:.2f}..{s['interval']['high']:.2f}" for s in entry.speedups if s["interval"]
        )
        rows.append([entry.peer, *medians, bandwidth, speedups, intervals, seconds_text(entry.first_call)])
    model = result.model
    notes = [
        f"model bytes: eager {bytes_text(model['eager_bytes'])}, staxlab {bytes_text(model['compiled_bytes'])}, "
        f"lower bound {bytes_text(model['bound_bytes'])}; rho = {result.rho:.3g} ({model['source']})",
    ]
    if result.roof is not None and (share := result.roof["share"]) is not None:
        ends = f"[{share['interval']['low']:.0%}, {share['interval']['high']:.0%}]"
        rates = ", ".join(f"{k} {quantity_text(v, 'B/s')}" for k, v in result.roof["bandwidth"].items())
        passes = "one pass" if result.roof["single_pass"] else "more than one pass or kernel"
        notes.append(f"staxlab at {share['median']:.0%} {ends} of the roof ({passes}); {rates}")
    if result.deviation is not None:
        notes.append(result.deviation.text())
    notes += [f"{entry.peer}: {entry.problem or 'not timed'}" for entry in result.entries if not entry.timings]
    size = "x".join(map(str, result.size))
    return Table.build(f"{result.case.title}, {size}", columns, rows, notes)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
