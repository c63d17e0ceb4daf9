"""Benchmark runs that were saved, loaded by name and shown (Section 13.2): figures for readers without the machine.

``python -m benchmarks....`` leaves a JSON file with what it measured, on which machine, with which versions, by which
command. :func:`saved_run` reads one by name and gives a record that draws itself; where the file is not there, the
record says that nothing has been measured, and what would measure it. No number comes from anywhere else.

What is shown has an interval where the file has one. A ratio of two sides of which only the medians' intervals were
kept gets the quotients of their ends, which is wider than an interval of paired readings (Proposition 13.2) would be.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import OptionError
from .tables import Table, Tabular, quantity_text

#: What the peers of a run are called where a reader sees them.
PEERS = {
    "staxlab": "staxlab", "torch_compile": "torch.compile", "eager": "eager", "staxlab_whole": "not split",
    "staxlab_graphs": "staxlab, CUDA graphs", "torch_compile_graphs": "torch.compile, CUDA graphs",
    "max_autotune": "torch.compile, max-autotune", "flex": "FlexAttention", "sdpa": "PyTorch's own kernel",
}  # fmt: skip
RATIO = "time of the other / time of staxlab (times)"
RULES = "blocks and warps of the rules"
RATIO_COLUMN = "{} / staxlab, times"


def results_directory() -> Path:
    """Where the commands of ``benchmarks/`` leave their results, in a checkout of the project."""
    return Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def read_result(name: str, directory: Path | None = None) -> dict[str, Any] | None:
    """The content of a results file (``name`` without ".json"), or None if there is no such file.

    OptionError for a name that is a path, and for a file that is no JSON object.
    """
    if not name or Path(name).name != name:
        raise OptionError(f"{name!r} is no name of a result", remedy='give it without a folder, as "gpu_h200"')
    path = (directory or results_directory()) / f"{name}.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise OptionError(f"{path} is damaged: {error}", remedy="run the command that writes it again") from None
    if not isinstance(found, dict):
        raise OptionError(f"{path} is no record of a run", remedy="run the command that writes it again")
    return found


@dataclass(frozen=True)
class Reading:
    """A measured number of one case: ``value``, the ends of its interval (the value itself where none is known)."""

    case: str
    series: str
    value: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """As ``1.07 [1.06, 1.09]``; without an interval as ``1.07``."""
        if self.low == self.high:
            return f"{self.value:.3g}"
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True)
class Panel:
    """One quantity over all cases. ``label`` names it with its unit, ``column`` a series of it at the head of a table
    ("{}" stands for the series); at ``reference`` stands what ``meaning`` says."""

    label: str
    column: str
    readings: tuple[Reading, ...]
    reference: float | None = None
    meaning: str = ""

    @property
    def series(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(reading.series for reading in self.readings))

    def of(self, case: str, series: str) -> tuple[Reading, ...]:
        return tuple(r for r in self.readings if (r.case, r.series) == (case, series))

    def cell(self, case: str, series: str) -> str:
        """The readings of a case in one series as text: one with its interval, several as a range."""
        found = self.of(case, series)
        if len(found) < 2:
            return found[0].text if found else ""
        values = [reading.value for reading in found]
        return f"{min(values):.3g} to {max(values):.3g} ({len(found)} of them)"


@dataclass(frozen=True, repr=False)
class SavedRun(Tabular):
    """What a run measured: ``cases`` by title, and for each of ``panels`` a number for every case. ``where`` names
    machine and versions, ``command`` and ``date`` the run; ``notes`` say how to read the numbers."""

    name: str
    title: str
    where: str
    command: str
    date: str
    cases: tuple[str, ...]
    panels: tuple[Panel, ...]
    notes: tuple[str, ...] = ()

    def summary(self) -> str:
        """The first series of every panel: from, to, and the geometric mean."""
        parts = []
        for panel in self.panels:
            series = panel.series[0]
            values = [reading.value for reading in panel.readings if reading.series == series]
            name = panel.column.format(series)
            mean = ""
            if min(values) > 0:
                mean = f", geometric mean {math.exp(sum(map(math.log, values)) / len(values)):.3g}"
            parts.append(f"{name}: {min(values):.3g} to {max(values):.3g}{mean}")
        return "; ".join(parts)

    def description(self) -> str:
        """The picture in words: every number."""
        parts = [f"{self.title}, {self.where}."]
        for case in self.cases:
            said = [f"{panel.column.format(series)} {panel.cell(case, series)}" for panel in self.panels
                    for series in panel.series if panel.of(case, series)]  # fmt: skip
            parts.append(f"{case}: {'; '.join(said)}.")
        return " ".join(parts)

    def table(self) -> Table:
        columns = ["case"] + [panel.column.format(series) for panel in self.panels for series in panel.series]
        rows = [
            [case, *(panel.cell(case, series) for panel in self.panels for series in panel.series)]
            for case in self.cases
        ]
        measured = f"measured on {self.where}, {self.date[:10]}, by: {self.command}"
        return Table.build(self.title, columns, rows, [self.summary(), measured, *self.notes])


@dataclass(frozen=True, repr=False)
class NotMeasured(Tabular):
    """There is no result of this name, or one of a trial without a device: ``command`` would measure it."""

    name: str
    command: str

    def __bool__(self) -> bool:
        return False

    def table(self) -> Table:
        notes = [f"measure it on a machine with a GPU: {self.command}"] if self.command else []
        rows = [[self.name, "these figures have not been measured yet"]]
        return Table.build(f"{self.name}: not measured yet", ["result", ""], rows, notes, text_columns=2)


def saved_run(name: str, command: str = "", directory: Path | None = None) -> SavedRun | NotMeasured:
    """A run by the name of its file, as ``"gpu_h200"``; a :class:`NotMeasured`, which is false, if there is none.

    ``command`` is what would make the file. Raises OptionError for a name that is a path, for a damaged file and for
    one that is no benchmark run of a kind that is known.

    >>> bool(saved_run("no_such_run"))
    False
    """
    record = read_result(name, directory)
    if record is None or not (record.get("measured", True) and record.get("device_present", True)):
        return NotMeasured(name, command)
    reader = _reader(record)
    if reader is None:
        raise OptionError(
            f"{name} has the format {record.get('format')!r}, which is not among those that are drawn",
            remedy=f"read_result({name!r}) gives its content",
        )
    try:
        return reader(name, record)
    except (KeyError, TypeError, ValueError, ZeroDivisionError, AttributeError) as error:
        raise OptionError(
            f"{name} does not hold what its format {record.get('format')!r} says: {error!r}",
            remedy="run the command that writes it again",
        ) from None


def _reader(record: Mapping[str, Any]) -> Callable[[str, Mapping[str, Any]], SavedRun] | None:
    by_format = {
        "staxlab-training-1": _training, "staxlab-autotune-benchmark-1": _searches, "staxlab-cuda-graphs-1": _graphs,
        "staxlab-gpu-matmul-1": _products, "staxlab-splitting-benchmark-1": _peers,
        "staxlab-hardware-models-benchmark-1": _hardware_models,
        "staxlab-product-models-benchmark-1": _product_models, "staxlab-attention-1": _attention,
        "staxlab-attention-cpu-1": _attention_cpu, "staxlab-systems-times-1": _systems,
        "staxlab-roofline-2": _roofline, "staxlab-reproduced-1": _reproduced,
    }  # fmt: skip
    kind = record.get("format")
    if kind == "staxlab-gpu-benchmark-1":
        swept = any("configurations" in case for case in record.get("cases", ()))
        return _configurations if swept else _peers
    return by_format.get(kind)


def machine_text(record: Mapping[str, Any]) -> str:
    """Machine and versions of a run in words, as its file names them."""
    machine, versions = record["machine"], record.get("versions", {})
    device = machine.get("device", "cpu")
    words = [machine["processor"] if device == "cpu" else device]
    words += [f"{what} {versions[key]}" for key, what in (("torch", "PyTorch"), ("triton", "Triton"), ("cuda", "CUDA"))
              if versions.get(key)]  # fmt: skip
    return ", ".join(words)


def _run(name: str, record: Mapping[str, Any], title: str, panels: Sequence[Panel], notes: Sequence[str]) -> SavedRun:
    kept = tuple(panel for panel in panels if panel.readings)
    if not kept:
        raise ValueError("no case has a number")
    cases = tuple(dict.fromkeys(reading.case for panel in kept for reading in panel.readings))
    said = tuple(note for note in notes if note)
    return SavedRun(name, title, machine_text(record), record["command"], record["date"], cases, kept, said)


# --- Peers taking turns, timed by events ------------------------------------------------------------------------------


def _timed(case: Mapping[str, Any]) -> dict[str, tuple[float, float, float]]:
    """Median and interval in seconds of the peers that have a name."""
    return {
        peer: (entry["median_s"], *entry["interval_s"])
        for peer, entry in case["peers"].items()
        if peer in PEERS and entry.get("median_s")
    }


def _peers(name: str, record: Mapping[str, Any]) -> SavedRun:
    copied, cache = record.get("copy_bandwidth"), record.get("l2_bytes")
    shares: list[Reading] = []
    ratios: list[Reading] = []
    inside: list[str] = []
    for case in record["cases"]:
        title, times = case.get("title", case["case"]), _timed(case)
        shares += _shares(title, case, times, copied)
        ratios += _ratios(title, times, others=("torch_compile", "staxlab_whole"))
        if cache and case.get("least_bytes", math.inf) < 4 * cache:
            inside.append(title)
    notes = [
        f"a copy in the same process reaches {quantity_text(copied, 'B/s')}" if shares else "",
        "intervals of ratios: quotients of the ends of both medians' intervals" if ratios else "",
        f"below four times the L2 cache, where it and the host's launches have a say: {', '.join(inside)}"
        if inside and shares else "",
    ]  # fmt: skip
    panels = [
        Panel("effective bandwidth / copy bandwidth (share)", "{} / copy", tuple(shares), 1.0, "as fast as a copy"),
        Panel(RATIO, RATIO_COLUMN, tuple(ratios), 1.0, "equally fast"),
    ]
    title = "Bandwidth, and speed beside the others" if shares else "Speed beside the others"
    return _run(name, record, title, panels, notes)


def _shares(title: str, case: Mapping[str, Any], times: Mapping[str, Any], copied: float | None) -> Iterator[Reading]:
    if copied and case.get("least_bytes"):
        for peer, (median, low, high) in sorted(times.items(), key=lambda item: list(PEERS).index(item[0])):
            per = case["least_bytes"] / copied
            yield Reading(title, PEERS[peer], per / median, per / high, per / low)


def _ratios(title: str, times: Mapping[str, Any], others: Sequence[str]) -> Iterator[Reading]:
    for peer in others:
        if peer in times and "staxlab" in times:
            (median, low, high), (own, own_low, own_high) = times[peer], times["staxlab"]
            yield Reading(title, PEERS[peer], median / own, low / own_high, high / own_low)


# --- What a machine can do --------------------------------------------------------------------------------------------


def _roofline(name: str, record: Mapping[str, Any]) -> SavedRun:
    """The ceilings that ``staxlab roofline`` measured; ``Roofline.load`` reads the same file as a roofline."""

    def found(kind: str, series: str, scale: float) -> tuple[Reading, ...]:
        return tuple(
            Reading(c["name"], series, c["value"] / scale, min(c["rounds"]) / scale, max(c["rounds"]) / scale)
            for c in record["ceilings"]
            if c["kind"] == kind
        )

    panels = [
        Panel("bandwidth (GB/s)", "{}, GB/s", found("bandwidth", "bandwidth", 1e9)),
        Panel("rate of products (TFLOP/s)", "{}, TFLOP/s", found("throughput", "rate", 1e12)),
    ]
    notes = ["the best of all rounds; in brackets the best of the worst round and of the best", *record["notes"]]
    return _run(name, record, "Limits of the machine", panels, notes)


def _reproduced(name: str, record: Mapping[str, Any]) -> SavedRun:
    """Speedups and shares of the roof that ``staxlab reproduce`` measured, a series for each round, beside the byte
    ratio; ``reproducing.load`` reads the same file as the records themselves."""
    speedups, ratios, shares, notes = [], [], [], list(record["tables"]["notes"])
    for case in record["tables"]["cases"]:
        title = case["title"].split(":")[0]
        if not case["decompositions"]:
            continue
        ratios.append(Reading(title, "rho", *3 * [case["rho"]]))
        for number, found in enumerate(case["decompositions"]):
            series, ends = f"round {chr(65 + number)}", found["interval"]
            speedups.append(Reading(title, series, found["speedup"], ends["low"], ends["high"]))
            share = case["roofs"][number]["shares"].get("compiled") if number < len(case["roofs"]) else None
            if share:
                ends = share["interval"]
                shares.append(Reading(title, series, *(100 * x for x in (share["median"], ends["low"], ends["high"]))))
        if case["verdict"] and not case["verdict"]["established"]:
            notes.append(f"{title}: not established: {case['verdict']['reason']}")
    panels = [
        Panel("S: time of eager / time of compiled (times)", "S, {}, times", tuple(speedups), 1.0, "as fast as eager"),
        Panel("byte ratio of the model (times)", "{}, times", tuple(ratios)),
        Panel("share of the roof (%)", "share of the roof, {}, %", tuple(shares)),
    ]
    return _run(name, record, "Tables 13.1 and 13.2", panels, notes)


# --- Training steps, in paired readings -------------------------------------------------------------------------------


def _training(name: str, record: Mapping[str, Any]) -> SavedRun:
    def reading(case: Mapping[str, Any], other: str, ratio: Mapping[str, Any]) -> Reading:
        return Reading(case["title"], other, ratio["median"], ratio["interval"]["low"], ratio["interval"]["high"])

    ratios = [reading(case, "torch.compile", case["times_torch_compile"]) for case in record["cases"]]
    ratios += [reading(case, "eager", case["times_eager"]["staxlab"]) for case in record["cases"]]
    panel = Panel(RATIO, RATIO_COLUMN, tuple(ratios), 1.0, "equally fast")
    return _run(name, record, "Training steps beside the others", [panel], ["medians of paired readings"])


# --- Launch configurations, tried by hand -----------------------------------------------------------------------------


def _configurations(name: str, record: Mapping[str, Any]) -> SavedRun:
    found = []
    for case in record["cases"]:
        least = min(entry["median_s"] for entry in case["configurations"])
        blocks, warps = case["rules"]
        for entry in case["configurations"]:
            same = entry["num_warps"] == warps and all(entry["blocks"].get(k) == v for k, v in blocks.items())
            value = entry["median_s"] / least
            found.append(Reading(case["title"], RULES if same else "others", value, value, value))
    found.sort(key=lambda reading: reading.series == "others")
    label = "time / time of the case's fastest configuration (times)"
    panel = Panel(label, "{} / fastest, times", tuple(found), 1.0, "the fastest")
    notes = ["medians; one marker for each configuration of blocks, warps and stages that was tried"]
    return _run(name, record, "Launch configurations, every one measured", [panel], notes)


# --- Searches for a configuration -------------------------------------------------------------------------------------


def _searches(name: str, record: Mapping[str, Any]) -> SavedRun:
    gains, efforts = [], []
    for case in record["cases"]:
        for kernel in case["kernels"]:
            label = case["title"] if len(case["kernels"]) == 1 else f"{case['title']}, {kernel['name']}"
            for entry in kernel["searches"]:
                gains.append(Reading(label, entry["method"], entry["ratio"], *entry["interval"]))
                efforts.append(Reading(label, entry["method"], *3 * [entry["compilations"]]))
    gain = Panel("time of the rule / time of what was found (times)", "rule / {}, times", tuple(gains), 1.0, "no gain")
    effort = Panel("configurations compiled (count)", "compiled, {}", tuple(efforts))
    rows = {**record, "cases": [{"title": label} for label in dict.fromkeys(reading.case for reading in gains)]}
    return _run(name, rows, "What searches found, and what they took", [gain, effort], ["paired readings, in turns"])


# --- Launches and graphs ----------------------------------------------------------------------------------------------


def _graphs(name: str, record: Mapping[str, Any]) -> SavedRun:
    comparisons = {"x * 2 + 1, 8 elements": record["region_8_elements"]}
    for count, chain in record.get("chains", {}).items():
        comparisons[f"{count} kernel{'s' * (count != '1')} in a row"] = chain["comparison"]
    found = []
    for label, comparison in comparisons.items():
        for timing in comparison["timings"]:
            if timing.get("median_s"):
                ends = timing["median_interval_s"] or {"low": timing["median_s"], "high": timing["median_s"]}
                values = (1e6 * seconds for seconds in (timing["median_s"], ends["low"], ends["high"]))
                found.append(Reading(label, PEERS.get(timing["name"], timing["name"]), *values))
    costs, notes = record.get("costs"), []
    if costs:
        notes = [
            f"straight lines through the chains: t_launch = {costs['launch_s'] * 1e6:.3g} us, "
            f"t_graph = {costs['graph_s'] * 1e6:.3g} us"
        ]
    return _run(name, record, "A call, with and without graphs", [Panel("time (us)", "{}, us", tuple(found))], notes)


# --- Products of matrices ---------------------------------------------------------------------------------------------


def _products(name: str, record: Mapping[str, Any]) -> SavedRun:
    rates, ratios = [], []
    for case in record["cases"]:
        times = {
            peer: (entry["median_s"], *entry["interval_s"])
            for peer, entry in case["peers"].items()
            if entry.get("median_s")
        }
        work = case["operations"] / 1e12
        for peer, (median, low, high) in times.items():
            rates.append(Reading(case["case"], PEERS.get(peer, peer), work / median, work / high, work / low))
            if peer != "eager" and "eager" in times:
                other, other_low, other_high = times["eager"]
                ends = other_low / high, other_high / low
                ratios.append(Reading(case["case"], PEERS.get(peer, peer), other / median, *ends))
    panels = [
        Panel("rate (TFLOP/s)", "{}, TFLOP/s", tuple(rates)),
        Panel("time of eager / time (times)", "eager / {}, times", tuple(ratios), 1.0, "as fast as eager"),
    ]
    notes = ["intervals of ratios: quotients of the ends of both medians' intervals"]
    return _run(name, record, "Products of matrices", panels, notes)


# --- Attention --------------------------------------------------------------------------------------------------------


def _attention(name: str, record: Mapping[str, Any]) -> SavedRun:
    """Rates of visible positions (for decoding, of bytes of keys and values), and how much longer the others take."""
    rates, bandwidths, ratios = [], [], []
    for case in record["cases"]:
        title, work = case["case"], case["work"] / 1e12
        times = {
            peer: (entry["median_s"], *entry["interval_s"])
            for peer, entry in case["peers"].items()
            if entry.get("median_s")
        }
        kept = bandwidths if case["direction"] == "decode" else rates
        for peer, (median, low, high) in times.items():
            kept.append(Reading(title, PEERS.get(peer, peer), work / median, work / high, work / low))
        ratios += _ratios(title, times, others=("flex", "sdpa"))
    panels = [
        Panel("rate, of visible positions (TFLOP/s)", "{}, TFLOP/s", tuple(rates)),
        Panel("bandwidth, of visible keys and values (TB/s)", "{}, TB/s", tuple(bandwidths)),
        Panel(RATIO, RATIO_COLUMN, tuple(ratios), 1.0, "equally fast"),
    ]
    notes = ["intervals of ratios: quotients of the ends of both medians' intervals"]
    return _run(name, record, "Attention beside the others", panels, notes)


def _attention_cpu(name: str, record: Mapping[str, Any]) -> SavedRun:
    """The same on a CPU, from paired readings; a rate of products of visible positions."""
    rates, ratios = [], []
    for case in record["cases"]:
        title = case["case"]
        rates.append(Reading(title, "staxlab", *3 * [case["gflops"]]))
        for peer, ratio in case["ratios"].items():
            ends = ratio["interval"] or {"low": ratio["median"], "high": ratio["median"]}
            ratios.append(Reading(title, PEERS.get(peer, peer), ratio["median"], ends["low"], ends["high"]))
    panels = [
        Panel(RATIO, RATIO_COLUMN, tuple(ratios), 1.0, "equally fast"),
        Panel("rate, of visible positions (GFLOP/s)", "{}, GFLOP/s", tuple(rates)),
    ]
    notes = [f"{record['threads']} threads; ratios are medians of paired readings"]
    return _run(name, record, "Attention on a CPU beside the others", panels, notes)


# --- Models of the hardware beside the device -------------------------------------------------------------------------


def _product_models(name: str, record: Mapping[str, Any]) -> SavedRun:
    """The rate of one template in different groups of tiles and numbers of stages, beside what the model of the cache
    says main memory has to serve."""
    rates, served = [], []
    for case in record["cases"]:
        for variant, entry in case["times"].items():
            label = f"n = {case['order']}, {variant}"
            ends = entry["interval_s"] or 2 * [entry["median_s"]]
            values = (case["operations"] / seconds / 1e12 for seconds in (entry["median_s"], *ends[::-1]))
            rates.append(Reading(label, "library" if variant == "library" else "template", *values))
            for resident in ("1", "2"):
                model = case["numbering_model_bytes"][resident].get(variant.removeprefix("group "))
                if variant.startswith("group ") and model:
                    series = f"model, {resident} instance{'s' * (resident != '1')} each"
                    served.append(Reading(label, series, *3 * [model / 2**30]))
    panels = [Panel("rate (TFLOP/s)", "{}, TFLOP/s", tuple(rates)),
              Panel("from main memory (GiB)", "{}, GiB", tuple(served))]  # fmt: skip
    return _run(name, record, "Numberings and stages of a template", panels, ["each: on every multiprocessor"])


def _hardware_models(name: str, record: Mapping[str, Any]) -> SavedRun:
    """Bandwidth over bytes in flight as Little's law has it and as it was, and both tilings of Example 6.1."""
    found = []

    def measured(case: str, entry: Mapping[str, Any]) -> None:
        median, low, high = (entry["bytes"] / s / 1e12 for s in (entry["median_s"], *entry["interval_s"][::-1]))
        found.append(Reading(case, "measured", median, low, high))

    for row in record["flight"]:
        case = f"{row['in_flight'] / 1e3:.3g} KB in flight: {row['instances']} x {row['step']}"
        found.append(Reading(case, "Little's law", *3 * [row["predicted_bandwidth"] / 1e12]))
        measured(case, row)
    for variant, entry in record["sectors"]["variants"].items():
        measured(f"x.t() + y {variant}, {100 * entry['efficiency']:.3g}% of sectors needed", entry)
    agree = sum(bool(row.get("agree")) for row in record["occupancy"])
    notes = [f"registers and resident blocks are the driver's for {agree} of {len(record['occupancy'])} kernels"]
    latency = record["summary"].get("latency_s")
    if latency:
        notes.append(f"latency where the memory is not saturated: {latency * 1e9:.3g} ns (median)")
    notes.append("in flight on each multiprocessor: program instances times elements of one step")
    panel = Panel("bandwidth (TB/s)", "{}, TB/s", tuple(found))
    return _run(name, record, "Bandwidth that bytes in flight allow", [panel], notes)


# --- Several systems on the same functions ----------------------------------------------------------------------------


def _systems(name: str, record: Mapping[str, Any]) -> SavedRun:
    """Speedups over eager of every round (the median of the rounds, the widest interval), and first calls."""
    speedups, firsts, faults, problems = [], [], [], []
    for case in record["cases"]:
        label = f"{case['title'].split(':')[0]}, {'x'.join(map(str, case['size']))}"
        for entry in case["peers"]:
            series = record["titles"].get(entry["peer"], entry["peer"])
            if entry["problem"]:
                problems.append(f"{label}, {series}: {entry['problem']}")
            found = [r for r in entry["speedups_over_eager"] if r.get("interval")]
            if found:
                middle = sorted(r["median"] for r in found)[(len(found) - 1) // 2]
                low, high = min(r["interval"]["low"] for r in found), max(r["interval"]["high"] for r in found)
                speedups.append(Reading(label, series, middle, low, high))
            if entry["first_call_s"] and entry["peer"] != "eager":
                firsts.append(Reading(label, series, *3 * [entry["first_call_s"]]))
            if "page_faults" in entry["details"]:
                faults.append(Reading(label, series, *3 * [entry["details"]["page_faults"] / 1000]))
    load = record["machine"].get("load_average")
    panels = [
        Panel("time of eager / time (times)", "eager / {}, times", tuple(speedups), 1.0, "as fast as eager"),
        Panel("first call, compilation included (s)", "first call of {}, s", tuple(firsts)),
        Panel("page faults of a call (thousands)", "faults of {}, thousands", tuple(faults)),
    ]
    notes = [f"{load} processes wanted to run before the run began" if load is not None else "", *problems]
    return _run(name, record, "The same functions in several systems", panels, notes)
