"""What a processor can start in a cycle: a simplified port model for the loops of Section 8.1.

A processor takes instructions apart into micro-operations; each runs on one of a few *ports*, and a port starts one in
a cycle. If the micro-operations of a loop body may only use the ports of a set ``S``, the body takes at least their
cycles over ``|S|``; the largest such quotient over all sets is what the best assignment reaches (the fractional form of
Hall's theorem). Two more limits are as simple: the front end delivers a fixed number of fused micro-operations per
cycle, and ports of their own serve loads and stores.

The tables are *simplified*: one row for a kind of instruction, not for each of thousands. Their entries agree with
Fog, "Instruction tables" (Technical University of Denmark, editions since 2022), with Abel and Reineke (2019),
"uops.info: Characterizing Latency, Throughput, and Port Usage of Instructions on Intel Microarchitectures", and, for
Zen 4, with AMD (2023), "Software Optimization Guide for the AMD Zen4 Microarchitecture". What they leave out: caches
(every access hits the first level), addressing modes that split a fused load, bypass delays, and branch prediction.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..errors import OptionError

Uop = tuple[frozenset[str], float]  # ports it may use, cycles it keeps one busy


@dataclass(frozen=True)
class PortModel:
    """A processor core. ``ports`` are execution ports, ``memory_ports`` those of loads and stores, both as ``(key,
    label)``; ``costs`` maps a group of instructions and a width in bits to the micro-operations; ``latencies`` to the
    cycles until the result can be used; ``load_latency`` by width (0: a general register)."""

    key: str
    title: str
    issue_width: int
    ports: tuple[tuple[str, str], ...]
    memory_ports: tuple[tuple[str, str], ...]
    costs: Mapping[tuple[str, int], tuple[Uop, ...]]
    latencies: Mapping[tuple[str, int], int]
    load_latency: Mapping[int, int]
    source: str

    def uops(self, group: str, width: int) -> tuple[Uop, ...]:
        """The micro-operations of an instruction; an unknown group counts as one of general arithmetic."""
        return self.costs.get((group, _column(width)), self.costs["general", 0])

    def latency(self, group: str, width: int) -> int:
        return self.latencies.get((group, _column(width)), 1)

    def __str__(self) -> str:
        return f"{self.title}: {self.issue_width} fused micro-operations per cycle, {len(self.ports)} execution ports"

    __repr__ = __str__


def _column(width: int) -> int:
    return 0 if width == 0 else 128 if width <= 128 else 256 if width <= 256 else 512


def _uops(text: str) -> tuple[Uop, ...]:
    """``"p01 2*p5 8:pD"``: one on port 0 or 1, two on port 5, and one that keeps port D busy for eight cycles."""
    found: list[Uop] = []
    for part in text.split():
        count, cycles, ports = re.fullmatch(r"(?:(\d+)\*)?(?:([\d.]+):)?p(\w+)", part).groups()
        found += [(frozenset(ports), float(cycles or 1))] * int(count or 1)
    return tuple(found)


# -- Intel -------------------------------------------------------------------------------------------------------------
# A group: micro-operations and latency up to 256 bits, then of 512. Port D is the divider, A is port 10, B port 11.

_SKYLAKE_X = {
    "fp add": ("p01", 4, "p05", 4), "fp multiply": ("p01", 4, "p05", 4), "fma": ("p01", 4, "p05", 4),
    "fp extreme": ("p01", 4, "p05", 4), "fp compare": ("p01", 4, "p5", 3), "compare to mask": ("p5", 3, "p5", 3),
    "blend": ("p015", 1, "p05", 1), "variable blend": ("2*p015", 2, "2*p05", 2),
    "integer": ("p015", 1, "p05", 1), "integer extreme": ("p01", 1, "p0", 1), "shift": ("p01", 1, "p0", 1),
    "integer multiply": ("2*p01", 10, "2*p05", 10), "logic": ("p015", 1, "p05", 1),
    "shuffle": ("p5", 1, "p5", 1), "shuffle across": ("p5", 3, "p5", 3), "narrow": ("2*p5", 4, "2*p5", 4),
    "convert": ("p01", 4, "p05", 4), "convert wide": ("p01 p5", 5, "p05 p5", 7), "round": ("2*p01", 8, "2*p05", 8),
    "vector move": ("", 0, "", 0), "vector to general": ("p0", 3, "p0", 3), "general to vector": ("p5", 3, "p5", 3),
    "approximate": ("p0", 4, "2*p0 p05", 7),
}  # fmt: skip
_GENERAL_INTEL = {
    "general": ("p0156", 1), "general move": ("", 0), "address": ("p15", 1), "multiply": ("p1", 3),
    "general shift": ("p06", 1), "branch": ("p6", 1), "mask": ("p0", 1), "general to mask": ("p5", 3),
    "mask to general": ("p0", 3), "nothing": ("", 0), "prefetch": ("p23", 5), "load": ("p23", 5),
    "integer divide": ("10*p0156", 40), "call": ("", 0),
}  # fmt: skip
#: Cycles the divider is busy and latencies, for 128, 256 and 512 bits.
_DIVIDE_INTEL = {
    "divide single": ((3, 5, 10), (11, 11, 17)), "divide double": ((4, 8, 16), (14, 14, 23)),
    "root single": ((3, 6, 12), (12, 12, 20)), "root double": ((6, 12, 24), (18, 19, 32)),
}  # fmt: skip
_ICE_LAKE = _SKYLAKE_X | {"shuffle": ("p15", 1, "p5", 1)}
_GOLDEN_COVE = _ICE_LAKE | {"fp add": ("p15", 3, "p05", 4), "variable blend": ("3*p015", 3, "3*p05", 3)}


def _intel(
    key: str, title: str, issue: int, vector: dict, general: dict, load: tuple[str, str], store: tuple[str, str],
    memory: str, more: str = "",
) -> PortModel:  # fmt: skip
    costs: dict[tuple[str, int], tuple[Uop, ...]] = {}
    latencies: dict[tuple[str, int], int] = {}
    for group, (narrow, early, wide, late) in vector.items():
        for width in (128, 256, 512):
            costs[group, width] = _uops(narrow if width < 512 else wide)
            latencies[group, width] = early if width < 512 else late
    for group, (busy, late) in _DIVIDE_INTEL.items():
        for width, cycles, latency in zip((128, 256, 512), busy, late, strict=True):
            costs[group, width] = _uops(f"{'p0' if width < 512 else '2*p0 p05'} {cycles}:pD")
            latencies[group, width] = latency
    for group, (text, latency) in general.items():
        for width in (0, 128, 256, 512):
            costs[group, width] = _uops(text)
            latencies[group, width] = latency
    for width in (0, 128, 256, 512):
        costs["load", width] = _uops(load[width == 512])
        costs["store", width] = costs["non-temporal store", width] = _uops(store[width == 512])
    ports = (*((p, f"p{'10' if p == 'A' else p}") for p in f"0156{more}"), ("D", "divider"))
    names = tuple((p, f"p{'11' if p == 'B' else p}") for p in memory)
    source = "Fog, Instruction tables; Abel and Reineke (2019), uops.info"
    return PortModel(key, title, issue, ports, names, costs, latencies, {0: 5, 128: 6, 256: 7, 512: 8}, source)


# -- AMD ---------------------------------------------------------------------------------------------------------------
# Pipes 0 to 3 compute, F stores vectors; a to d are integer pipes, e branches; x, y and z make addresses. A vector of
# 512 bits is one operation that keeps its pipe for two cycles.

_ZEN_4 = {
    "fp add": ("p23", 3), "fp multiply": ("p01", 3), "fma": ("p01", 4), "fp extreme": ("p01", 2),
    "fp compare": ("p01", 2), "compare to mask": ("p01", 4), "blend": ("p0123", 1), "variable blend": ("p01", 1),
    "integer": ("p0123", 1), "integer extreme": ("p0123", 1), "shift": ("p12", 1), "integer multiply": ("p03", 3),
    "logic": ("p0123", 1), "shuffle": ("p12", 1), "shuffle across": ("p12", 4), "narrow": ("p12", 4),
    "convert": ("p23", 3), "convert wide": ("p23 p12", 4), "round": ("p23", 3), "vector move": ("", 0),
    "vector to general": ("pF", 3), "general to vector": ("pF", 3), "approximate": ("p01", 4),
}  # fmt: skip
_GENERAL_ZEN = {
    "general": ("pabcd", 1), "general move": ("", 0), "address": ("pabcd", 1), "multiply": ("pb", 3),
    "general shift": ("pbc", 1), "branch": ("pae", 1), "mask": ("p23", 1), "general to mask": ("pF", 3),
    "mask to general": ("pF", 3), "nothing": ("", 0), "prefetch": ("pxyz", 4), "integer divide": ("7:pa", 14),
    "call": ("", 0),
}  # fmt: skip
_DIVIDE_ZEN = {
    "divide single": (3, 11), "divide double": (5, 13), "root single": (5, 15), "root double": (9, 21),
}  # fmt: skip


def _zen(key: str, title: str) -> PortModel:
    costs: dict[tuple[str, int], tuple[Uop, ...]] = {}
    latencies: dict[tuple[str, int], int] = {}
    rows = _ZEN_4 | {group: (f"{busy}:p1", latency) for group, (busy, latency) in _DIVIDE_ZEN.items()}
    for group, (text, latency) in rows.items():
        for width in (128, 256, 512):
            passes = 2 if width == 512 else 1
            costs[group, width] = tuple((ports, passes * cycles) for ports, cycles in _uops(text))
            latencies[group, width] = latency
    for group, (text, latency) in _GENERAL_ZEN.items():
        for width in (0, 128, 256, 512):
            costs[group, width], latencies[group, width] = _uops(text), latency
    for width, load, store in (
        (0, "pxyz", "pyz"), (128, "pxy", "pz pF"), (256, "pxy", "pz pF"), (512, "2:pxy", "2:pz 2:pF"),
    ):  # fmt: skip
        costs["load", width] = _uops(load)
        costs["store", width] = costs["non-temporal store", width] = _uops(store)
    ports = (
        *((p, f"FP{p}") for p in "0123"), ("F", "FP4/5"), *((p, f"ALU{k}") for k, p in enumerate("abcd")), ("e", "BRU"),
    )  # fmt: skip
    memory = tuple((p, f"AGU{k}") for k, p in enumerate("xyz"))
    source = "AMD (2023), Software Optimization Guide for Zen 4; Fog, Instruction tables"
    return PortModel(key, title, 6, ports, memory, costs, latencies, {0: 4, 128: 7, 256: 7, 512: 7}, source)


MODELS: dict[str, PortModel] = {
    model.key: model
    for model in (
        _intel("skylake-x", "Intel Skylake-X", 4, _SKYLAKE_X, _GENERAL_INTEL, ("p23", "p23"), ("p4 p237",) * 2, "2347"),
        _intel("ice-lake", "Intel Ice Lake", 5, _ICE_LAKE, _GENERAL_INTEL | {"general move": ("p0156", 1)},
               ("p23", "p23"), ("p49 p78", "p4 p9 p78"), "234789"),
        _intel("golden-cove", "Intel Golden Cove (Sapphire Rapids)", 6, _GOLDEN_COVE,
               _GENERAL_INTEL | {"general": ("p0156A", 1), "address": ("p0156A", 1), "prefetch": ("p23B", 5)},
               ("p23B", "p23"), ("p49 p78", "p4 p9 p78"), "234789B", "A"),
        _zen("zen-4", "AMD Zen 4"),
    )
}  # fmt: skip

# -- the bound, and an assignment that reaches it ----------------------------------------------------------------------


def least_cycles(uops: Iterable[Uop]) -> float:
    """The cycles the busiest ports need at least: ``max over sets S of (cycles that fit nowhere else) / |S|``.

    Only unions of the port sets that occur can be the maximum. O(2^distinct sets), of which loops have a handful.
    """
    demand: dict[frozenset[str], float] = {}
    for ports, cycles in uops:
        demand[ports] = demand.get(ports, 0.0) + cycles
    unions = {frozenset()}
    for ports in demand:
        unions |= {union | ports for union in unions}
    return max(
        (sum(c for ports, c in demand.items() if ports <= union) / len(union) for union in unions if union), default=0.0
    )


def assign(uops: Iterable[tuple[str, Uop]], rounds: int = 200) -> dict[str, dict[str, float]]:
    """Cycles per port and kind, ``uops`` given with the kind each belongs to, spread as evenly as ports allow.

    Demands with the same ports are levelled one after the other until nothing moves. The even spread minimizes the sum
    of squares over a base polytope, and its maximum is :func:`least_cycles` (Fujishige, 1980, "Lexicographically
    optimal base of a polymatroid with respect to a weight vector").
    """
    demand: dict[frozenset[str], dict[str, float]] = {}
    for kind, (ports, cycles) in uops:
        kinds = demand.setdefault(ports, {})
        kinds[kind] = kinds.get(kind, 0.0) + cycles
    share = {ports: dict.fromkeys(sorted(ports), sum(kinds.values()) / len(ports)) for ports, kinds in demand.items()}
    load: dict[str, float] = {}
    for shares in share.values():
        for port, cycles in shares.items():
            load[port] = load.get(port, 0.0) + cycles
    for _, (ports, kinds) in itertools.product(range(rounds), demand.items()):
        others = {port: load[port] - share[ports][port] for port in ports}
        levelled = _level(others, sum(kinds.values()))
        for port in ports:
            load[port] = others[port] + levelled[port]
        share[ports] = levelled
    result: dict[str, dict[str, float]] = {}
    for ports, kinds in demand.items():
        total = sum(kinds.values())
        for kind, cycles in kinds.items():
            for port in sorted(ports):
                found = result.setdefault(port, {})
                found[kind] = found.get(kind, 0.0) + (cycles * share[ports][port] / total if total else 0.0)
    return result


def _level(heights: Mapping[str, float], amount: float) -> dict[str, float]:
    """Pour ``amount`` over columns of these heights: how much stays on each."""
    order = sorted(heights.values())
    for count in range(len(order), 0, -1):
        level = (amount + sum(order[:count])) / count
        if level >= order[count - 1]:
            break
    return {port: max(level - height, 0.0) for port, height in sorted(heights.items())}


# -- which processor this is -------------------------------------------------------------------------------------------

_INTEL_MODELS = {
    "skylake-x": (78, 85, 94, 142, 158, 165, 166), "ice-lake": (106, 108, 125, 126, 140, 141, 167),
    "golden-cove": (143, 151, 154, 173, 174, 183, 186, 191, 207),
}  # fmt: skip


_OTHER_NAMES = {"sapphire-rapids": "golden-cove", "skylake": "skylake-x", "icelake": "ice-lake", "zen4": "zen-4"}


@dataclass(frozen=True)
class Choice:
    """The model a bound was computed with, and why that one."""

    model: PortModel
    reason: str


def choose(name: str | None = None, cpuinfo: str | None = None) -> Choice:
    """The model called ``name``, or that of this machine's processor as ``/proc/cpuinfo`` describes it.

    OptionError for a name that is none. A processor none of the tables is about gets the nearest one, and ``reason``
    says that it is an assumption.
    """
    if name is not None:
        key = name.strip().lower().replace(" ", "-").replace("_", "-")
        key = _OTHER_NAMES.get(key, key)
        if key not in MODELS:
            raise OptionError(f"no port model {name!r}", remedy=f"choose one of {', '.join(MODELS)}")
        return Choice(MODELS[key], "as asked for")
    return _of_processor(_cpuinfo() if cpuinfo is None else cpuinfo)


@lru_cache(maxsize=1)
def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return ""


def _of_processor(text: str) -> Choice:
    facts = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", text, re.MULTILINE))
    flags = set(facts.get("flags", "").split())
    family, model = int(facts.get("cpu family", 0)), int(facts.get("model", 0))
    called = facts.get("model name", "an unknown processor")
    if facts.get("vendor_id") == "AuthenticAMD":
        exact = family == 25 and "avx512f" in flags
        words = "its family and instructions" if exact else "an assumption: the nearest AMD table there is"
        return Choice(MODELS["zen-4"], f"{called}: {words}")
    # A hypervisor may give another model number than the processor's; what it can execute is certain.
    if flags & {"amx_tile", "avx512_fp16"}:
        return Choice(MODELS["golden-cove"], f"{called}: it has instructions that began with Golden Cove (AMX, FP16)")
    for key, numbers in _INTEL_MODELS.items():
        if facts.get("vendor_id") == "GenuineIntel" and family == 6 and model in numbers:
            return Choice(MODELS[key], f"{called}: its model number, {model}")
    return Choice(MODELS["skylake-x"], f"{called}: an assumption, no table is about it")
