"""What a dispatcher has done, as a record (Section 2.4, Figure 2.1, Corollary 2.1).

A :class:`~staxlab.specialize.dispatch.Dispatcher` changes with every call; :func:`report` takes a snapshot of it that
does not. The snapshot answers the questions one has of a specializing compiler:

* *which way did my calls go?* :attr:`DispatchReport.stations` is the call path: what each level asks, how many calls
  came to it, how many it served, and which one served the last call;
* *what do my versions differ in?* :attr:`DispatchReport.rows` is the key over all versions, one row per component.
  What all versions agree in is the part of the key that costs nothing; the others are what is being paid for;
* *why was it compiled again?* :attr:`DispatchReport.recompiles` says against which version which guards failed;
* *which of the versions under one key does a call meet?* :attr:`DispatchReport.groups` are the versions by key, with
  the decisions about sizes that tell them apart, and :attr:`DispatchReport.tries` what one call finds (Figure 10.1);
* *will it ever stop?* :attr:`DispatchReport.growth` against the two limits.

The record holds keys, guards and counts. It keeps no tensor, no region and no compiled code alive.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .entry import COMPILED, EAGER
from .guards import MISSING, Guard, components, format_value, guards
from .signature import SEQUENCE, VALUE, Key

if TYPE_CHECKING:
    from .dispatch import CacheInfo, Dispatcher, Recompile

#: The parts of a key in their order (Definition 2.2) and what each is called. The last is bookkeeping.
PARTS = {
    "sigma": "σ  signature of the inputs",
    "gamma_s": "γ_s  shapes that Python code read",
    "gamma_g": "γ_g  answers of the data gates",
    "rho": "ρ  surroundings",
    "counts": "how many of each",
}


@dataclass(frozen=True)
class Station:
    """A place on the call path. ``level`` is its value of ``Dispatcher.last_level``, ``reached`` how many calls came to
    it, ``served`` how many of these went no further, ``is_last`` whether the last call was among them."""

    level: int
    name: str
    asks: str
    does: str
    reached: int
    served: int
    is_last: bool


@dataclass(frozen=True)
class Row:
    """One component of the key over all versions: ``values`` has an entry per version, ``MISSING`` where the version
    has no such component. ``part`` is a key of :data:`PARTS`."""

    path: str
    part: str
    kind: str
    values: tuple[Any, ...]

    @property
    def differs(self) -> tuple[bool, ...]:
        """For each version: is its value another one than the first version's?"""
        first = self.values[0]
        return tuple(type(value) is not type(first) or value != first for value in self.values)

    @property
    def is_equal(self) -> bool:
        """Whether all versions agree."""
        return not any(self.differs)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(value_text(value) for value in self.values)


@dataclass(frozen=True)
class VersionReport:
    """A version: its number, how many calls it served, its key, the number of the call that compiled it (None if that
    is not known), and ``made``: the size of what was compiled, in words. ``sizes`` are its decisions about sizes, over
    the inputs."""

    number: int
    calls: int
    key: Key
    compiled_at: int | None = None
    made: str = ""
    sizes: tuple[str, ...] = ()

    @property
    def guards(self) -> tuple[Guard, ...]:
        return guards(self.key)

    @property
    def size_condition(self) -> str:
        """The shape guard as one condition; empty if nothing was decided about sizes."""
        return " and ".join(self.sizes)

    @property
    def path_condition(self) -> str:
        """The data gates with their answers; empty if the program asked nothing about data."""
        answers = [guard for guard in self.guards if guard.kind == "gate"]
        return " and ".join(f"{guard.path} == {value_text(guard.expected)}" for guard in answers)


@dataclass(frozen=True)
class RecompileReport:
    """Why a call fitted no version. ``failures`` are pairs (number of the version, its guards that failed); ``call`` is
    the number of the call and ``version`` the one compiled for it, None where that is not known. ``is_fruitless`` says
    that no version came of it, because compiling failed (or is not done yet)."""

    failures: tuple[tuple[int, tuple[Guard, ...]], ...]
    call: int | None = None
    version: int | None = None
    is_fruitless: bool = False

    @property
    def title(self) -> str:
        """``call 3 fitted no version: version 2 was compiled``."""
        who = "a call" if self.call is None else f"call {self.call:,}"
        what = "" if self.version is None else f": version {self.version} was compiled"
        return f"{who} fitted no version{', and none came of it' if self.is_fruitless else what}"

    @property
    def paths(self) -> tuple[str, ...]:
        """Every component that differed from some version, each once."""
        return tuple(dict.fromkeys(guard.path for _, failed in self.failures for guard in failed))


@dataclass(frozen=True)
class Try:
    """One version that a call would look at: its number and its guards that the call does not meet."""

    version: int
    failed: tuple[Guard, ...]

    @property
    def is_met(self) -> bool:
        return not self.failed


@dataclass(frozen=True)
class DispatchReport:
    """A snapshot of a dispatcher. ``last_level`` is None before the first call; ``growth`` has (number of the call,
    versions after it) for each call that compiled. ``tries`` are the versions under the key of one call, asked for by
    its arguments, up to the one it meets; None if no call was given."""

    name: str
    info: CacheInfo
    last_level: int | None
    versions: tuple[VersionReport, ...]
    recompiles: tuple[RecompileReport, ...]
    growth: tuple[tuple[int, int], ...]
    max_versions: int
    max_compilations: int
    tries: tuple[Try, ...] | None = None

    @property
    def calls(self) -> int:
        return self.info.calls

    @property
    def limit_reached(self) -> str:
        """Which limit keeps further versions from being compiled; empty if none does."""
        if len(self.versions) >= self.max_versions:
            return f"{self.max_versions:,} versions"
        if self.info.compilations >= self.max_compilations:
            return f"{self.max_compilations:,} compilations"
        return ""

    @property
    def stations(self) -> tuple[Station, ...]:
        """The call path, cheapest level first. A call that a station does not serve goes on to the next one."""
        info, left, found = self.info, self.calls, []
        for level, name, asks, does, served in (
            (1, "level 1", "like a call just served: same metadata, or the same objects?", "run", info.same_objects),
            (2, "level 2", "free variables unchanged, and the key known?", "run", info.fingerprint),
            (3, "level 3", "key computed anew: known, and the data gates answer the same?", "run", info.key),
            (COMPILED, "compile", "room for another version?", "compile, then run", info.compilations),
            (EAGER, "eager", "beyond the limits", "run operator by operator", info.eager),
        ):
            found.append(Station(level, name, asks, does, left, served, level == self.last_level))
            left -= served
        return tuple(found)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The key over all versions, component by component, in the order of the key."""
        return compare([version.key for version in self.versions])

    @property
    def groups(self) -> tuple[tuple[VersionReport, ...], ...]:
        """Versions with one key and different shape guards, in the order in which a call tries them; a version alone
        under its key is a group if it has a shape guard."""
        found: list[list[VersionReport]] = []
        for version in self.versions:
            same = next((group for group in found if group[0].key == version.key), None)
            if same is None:
                found.append([version])
            else:
                same.append(version)
        return tuple(tuple(group) for group in found if any(version.sizes for version in group))

    def versions_at(self, call: int) -> int:
        """How many versions there were after this call."""
        return max((count for number, count in self.growth if number <= call), default=0)

    def format(self) -> str:
        """The report as a terminal shows it."""
        parts = [self.headline, path_text(self.stations)]
        if self.versions:
            parts += ["\n".join(_table_text(self.rows, len(self.versions))), growth_plot(self)]
        if self.groups or self.tries is not None:
            parts.append("\n".join(groups_text(self)))
        if self.recompiles:
            parts.append("\n".join(_reasons_text(self.recompiles)))
        return "\n\n".join(parts)

    @property
    def headline(self) -> str:
        versions = f"{counted(len(self.versions), 'version')} (at most {self.max_versions:,})"
        made = f"{counted(self.info.compilations, 'compilation')} (at most {self.max_compilations:,})"
        limit = f"; at the limit of {self.limit_reached}" if self.limit_reached else ""
        return f"dispatch of {self.name!r}: {counted(self.calls, 'call')}, {versions}, {made}{limit}"

    def __str__(self) -> str:
        return self.format()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def report(dispatcher: Dispatcher, call: tuple[tuple, dict] | None = None) -> DispatchReport:
    """A snapshot of what a dispatcher has done, and which version ``call`` (its arguments) would meet. Linear in the
    number of versions and recompilations."""
    options, info = dispatcher.options, dispatcher.cache_info()
    versions, growth = tuple(dispatcher.versions), tuple(dispatcher.growth)
    compiled_at = {count: call for call, count in growth}
    fn = dispatcher.fn
    return DispatchReport(
        getattr(fn, "__name__", None) or type(fn).__name__,
        info,
        dispatcher.last_level if info.calls else None,
        tuple(
            VersionReport(v.number, v.calls, v.key, compiled_at.get(v.number), _made(v), _sizes(v)) for v in versions
        ),
        tuple(_with_calls(dispatcher.recompiles, compiled_at)),
        growth,
        options.max_versions,
        options.max_compilations,
        None if call is None else tuple(_tries(dispatcher.candidates(*call[0], **call[1]))),
    )


def _sizes(version: Any) -> tuple[str, ...]:
    return tuple(guard.path for guard in version.guards if guard.kind == "size decision")


def _tries(candidates: Iterable[tuple[Any, tuple[Guard, ...]]]) -> Iterator[Try]:
    """The versions that are looked at: none after the first that is met."""
    for version, failed in candidates:
        yield Try(version.number, failed)
        if not failed:
            return


def _with_calls(recompiles: Iterable[Recompile], compiled_at: dict[int, int]) -> Iterator[RecompileReport]:
    """Which version came of which reason. A reason lists every version there was, so n of them led to version n + 1; if
    compiling failed at first, the last reason with n of them did."""
    reasons = list(recompiles)
    led_to = {len(reason.failures) + 1: reason for reason in reasons}
    for reason in reasons:
        version = len(reason.failures) + 1
        if led_to[version] is reason and version in compiled_at:
            yield RecompileReport(reason.failures, compiled_at[version], version)
        else:
            yield RecompileReport(reason.failures, is_fruitless=True)


def _made(version: Any) -> str:
    """``4 operations, 1 kernel``: as much as the region tells."""
    parts = []
    graph = getattr(getattr(version.region, "capture", None), "graph", None)
    if graph is not None:
        parts.append(counted(len(graph.calls), "operation"))
    kernels = getattr(version.compilation, "kernels", None)
    if kernels is not None:
        parts.append(counted(len(kernels), "kernel"))
    if getattr(version.compilation, "fallback_reason", ""):
        parts.append("run operator by operator")
    return ", ".join(parts)


# -- components ----------------------------------------------------------------------------------------------------


def parts_of(key: Key) -> dict[str, str]:
    """For each component of a key, the part of the key (of :data:`PARTS`) that it belongs to.

    Found by projecting the key once more without the part: whatever is missing then came from it.
    """
    without_shapes = components(replace(key, gamma_s=())).keys()
    without_gates = components(replace(key, gamma_g=())).keys()
    found = {}
    for guard in guards(key):
        if guard.path not in without_shapes:
            part = "gamma_s"
        elif guard.path not in without_gates:
            part = "gamma_g"
        elif guard.kind == "ambient":
            part = "rho"
        else:
            part = "counts" if guard.path.startswith("counts of (") else "sigma"
        found[guard.path] = part
    return found


def compare(keys: Iterable[Key]) -> tuple[Row, ...]:
    """Several keys side by side. A component that only some of them have stands where it stands in those."""
    keys = list(keys)
    order: list[str] = []
    known: dict[str, tuple[str, str]] = {}
    columns = []
    for key in keys:
        column, position, part = {}, 0, parts_of(key)
        for guard in guards(key):
            column[guard.path] = guard.expected
            if guard.path in known:
                # Searched from where we are first: keys of one function list their components in one order.
                position = _position(order, guard.path, position) + 1
            else:
                known[guard.path] = part[guard.path], guard.kind
                order.insert(position, guard.path)
                position += 1
        columns.append(column)
    rows = [Row(path, *known[path], tuple(column.get(path, MISSING) for column in columns)) for path in order]
    return tuple(sorted(rows, key=lambda row: list(PARTS).index(row.part)))  # stable: the key's order within a part


def _position(order: list[str], path: str, start: int) -> int:
    try:
        return order.index(path, start)
    except ValueError:
        return order.index(path)


def value_text(value: Any) -> str:
    """The value of a component as its reader writes it: ``absent``, ``float32``, ``4``, ``('a', 'b')``."""
    if value is MISSING:
        return "absent"
    return format_value(plain_value(value)).removeprefix("torch.")


def plain_value(value: Any) -> Any:
    """A value back from its signature form: gates' answers and the keys of a dictionary carry their types."""
    if isinstance(value, tuple) and len(value) == 3 and value[0] == VALUE:
        return value[2]
    if isinstance(value, tuple) and len(value) == 3 and value[0] == SEQUENCE:
        return [plain_value(part) for part in value[2]]
    return tuple(plain_value(part) for part in value) if type(value) is tuple else value


# -- in characters -------------------------------------------------------------------------------------------------


_MOST_REASONS = 12  # per version, before the rest is only counted


def counted(number: int, noun: str) -> str:
    """``1 call``, ``2 calls``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def path_text(stations: Iterable[Station]) -> str:
    """The call path in characters, the station of the last call marked."""
    lines = [f"{'the call path':<78}{'came here':>10}{'served':>10}"]
    for station in stations:
        mark, end = (">", "   <- last call") if station.is_last else (" ", "")
        lines.append(f"  {mark} {station.name:<8} {station.asks:<65}{station.reached:>10,}{station.served:>10,}{end}")
    return "\n".join(lines)


def _table_text(rows: Iterable[Row], versions: int) -> Iterator[str]:
    """Components in which versions differ, a column each; what differs from version 1 has an asterisk."""
    rows = list(rows)
    apart = [row for row in rows if not row.is_equal]
    equal = len(rows) - len(apart)
    if not apart:
        yield f"the key: {counted(equal, 'component')}, print(compiled.versions[0]) lists them"
        return
    cells = [
        [_cut(row.path, 44), *(_cut(t, 22) + ("*" if d else " ") for t, d in zip(row.texts, row.differs, strict=True))]
        for row in apart
    ]
    head = ["what versions differ in", *(f"version {k + 1} " for k in range(versions))]
    widths = [max(len(line[k]) for line in [head, *cells]) for k in range(len(head))]
    for line in [head, *cells]:
        yield "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
    yield f"({counted(equal, 'component')} equal in all versions; * differs from version 1)"


def groups_text(record: DispatchReport) -> Iterator[str]:
    """Versions that have one key, with what tells them apart, and what a given call finds there."""
    for group in record.groups:
        yield f"under one key: {counted(len(group), 'version')}, tried in this order"
        for version in group:
            yield f"  version {version.number}: {version.size_condition or 'no decision about sizes'}"
    if record.tries is not None:
        yield "this call"
        for one in record.tries:
            why = " and ".join(f"not {guard.path} (got {value_text(guard.actual)})" for guard in one.failed)
            yield f"  version {one.version}: {why or 'met'}"
        if not any(one.is_met for one in record.tries):
            yield f"  {'none of them is met' if record.tries else 'no version has its key'}: another would be compiled"


def _reasons_text(recompiles: Iterable[RecompileReport]) -> Iterator[str]:
    yield "why it was compiled again"
    for reason in recompiles:
        yield f"  {reason.title}"
        for number, failed in reason.failures:
            for guard in failed[:_MOST_REASONS]:
                expected, actual = value_text(guard.expected), value_text(guard.actual)
                said = f"expects {_cut(expected, 36)}, got {_cut(actual, 36)}"
                yield f"    against version {number}: {guard.path}: {said}"
            if len(failed) > _MOST_REASONS:
                yield f"    against version {number}: and {counted(len(failed) - _MOST_REASONS, 'other component')}"
            if not failed:
                yield f"    against version {number}: its data gates could not be answered"


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    head = (longest - 1) // 2
    return f"{text[:head]}…{text[len(text) - (longest - 1 - head) :]}"


def growth_plot(record: DispatchReport, width: int = 56, height: int = 10) -> str:
    """The number of versions over the calls in characters: ``#`` the versions, ``-`` the limit."""
    calls, limit = max(record.calls, 1), record.max_versions
    most = max(len(record.versions), 1)
    shows_limit = limit <= max(4 * most, height)
    top = max(most, limit if shows_limit else 0)
    per_row = math.ceil(top / height)
    columns = min(width, calls)
    at = [round(1 + k * (calls - 1) / max(columns - 1, 1)) for k in range(columns)]
    stretch = max(width // columns, 1)
    lines = ["versions (count) over calls (number of the call)"]
    for row in range(math.ceil(top / per_row), 0, -1):
        cells = ["#" if math.ceil(record.versions_at(call) / per_row) == row else " " for call in at]
        line = "".join(cell * stretch for cell in cells)
        if shows_limit and math.ceil(limit / per_row) == row:
            line = "".join("-" if cell == " " else cell for cell in line.ljust(width)) + f" limit {limit:,}"
        lines.append(f"{row * per_row:>6,} |{line}".rstrip())
    lines.append(" " * 7 + "+" + "-" * (columns * stretch))
    last = f"{calls:,}" if calls > 1 else ""
    lines.append(" " * 8 + "1" + last.rjust(columns * stretch - 1))
    if not shows_limit:
        lines.append(f"        the limit of {limit:,} versions is far above")
    return "\n".join(lines)


__all__ = ["DispatchReport", "RecompileReport", "Row", "Station", "Try", "VersionReport", "compare", "report"]
