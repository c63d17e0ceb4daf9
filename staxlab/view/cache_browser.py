"""The cache on disk, looked into (Section 11.1): how much of what kind, what each entry is, and when it was last used.

The list has every entry with its size as a bar and the age of its last use; those that go first when space runs out
stand last. What the running process has looked for is marked: found there, or built because it was missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..measure.tables import Table, bytes_text
from ..runtime.cache_entries import KINDS, Entry
from ..runtime.cache_format import printable
from .charts import MUTED, RULE, TEXT, chart, text_at
from .document import Pane
from .markup import Html, element, join
from .measures import table_markup

#: How many entries the text form and the page list; the rest is counted.
SHOWN = 200
BAR = "#0b57b0"
_UNITS = ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute"))


def text(record: Any) -> str:
    """Both tables in plain characters."""
    return "\n\n".join(table.text() for table in (kinds_table(record), entries_table(record)) if table.rows) or (
        f"{summary(record)}"
    )


def panes(record: Any) -> list[Pane]:
    """The kinds with their share of the space, and the entries; or what verifying them found."""
    if type(record).__name__ == "Verification":
        table = verification_table(record)
        return [Pane("cache-verification", "Cache verified", table_markup(table), table.caption, str(record))]
    content = [element("p", summary(record), class_="sx-note")]
    if record.entries:
        content += [_bars(record), table_markup(kinds_table(record)), table_markup(entries_table(record))]
    return [Pane("cache", "Cache on disk", join(content), summary(record), text(record))]


def summary(record: Any) -> str:
    """One line: where, how much of the limit, and what this process found."""
    own = [entry for entry in record.entries if not entry.shared]
    size = f"{bytes_text(record.nbytes)} of {bytes_text(record.limit)}"
    line = f"{record.directory}: {_many(len(own), 'entry', 'entries')}, {size}"
    if record.shared:
        line += f"; {_many(len(record.entries) - len(own), 'entry', 'entries')} in shared {', '.join(record.shared)}"
    if record.outcomes:
        line += f"; this process found {record.hits} of the {record.hits + record.misses} it looked for"
    return line


def kinds_table(record: Any) -> Table:
    """How many entries and bytes there are of each kind."""
    rows = [
        (kind, KINDS.get(kind, "kept by another version"), count, bytes_text(size))
        for kind, (count, size) in record.by_kind.items()
    ]
    return Table.build(summary(record), ("kind", "what it is", "entries", "size"), rows, text_columns=2)


def entries_table(record: Any) -> Table:
    """Every entry, the most recently used first."""
    found = in_order(record.entries)
    rows = [
        (
            _short(entry.name),
            entry.kind + (", shared" if entry.shared else ""),
            entry.title or "",
            {True: "found", False: "built"}.get((record.outcomes or {}).get(entry.name), ""),
            bytes_text(entry.nbytes),
            age_text(record.now - entry.last_use),
        )
        for entry in found[:SHOWN]
    ]
    rest = found[SHOWN:]
    more = f"and {len(rest)} more entries ({bytes_text(sum(entry.nbytes for entry in rest))})" if rest else ""
    columns = ("entry", "kind", "title", "this process", "size", "last use")
    notes = (more, "the last use is known to the hour; what was used longest ago goes first when the limit is reached")
    return Table.build("Entries, most recently used first", columns, rows, notes, text_columns=4)


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Most recently used first; the last of the own entries are the first to go."""
    return sorted(entries, key=lambda entry: (-entry.last_use, entry.name))


def age_text(seconds: float) -> str:
    """How long ago, in the largest unit that fits: "3 hours ago"."""
    for size, name in _UNITS:
        if seconds >= size:
            return f"{_many(int(seconds // size), name, name + 's')} ago"
    return "now"


def _short(name: str) -> str:
    kind, dash, rest = name.rpartition("-")
    return f"{kind}{dash}{rest[:12]}" if len(rest) > 16 else name


def _many(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"


_WIDTH, _ROW, _LEFT = 640, 26, 90


def _bars(record: Any) -> Html:
    """A bar for every kind: its bytes, which stand in words beside it."""
    shares = record.by_kind
    largest = max((size for _, size in shares.values()), default=0) or 1
    room, base = _WIDTH - _LEFT - 190, _ROW * len(shares) + 6
    drawn = []
    for row, (kind, (count, size)) in enumerate(shares.items()):
        top, width = row * _ROW + 4, max(room * size / largest, 1)
        drawn += [
            text_at(kind, _LEFT - 8, top + 14, "sx-count", TEXT, text_anchor="end"),
            element("rect", x=_LEFT, y=top, width=f"{width:.1f}", height=_ROW - 8, fill=BAR, class_="sx-read"),
            text_at(_amount(count, size), _LEFT + width + 8, top + 14, "sx-count", TEXT),
        ]
    drawn += [
        element("line", x1=_LEFT, y1=base, x2=_LEFT + room, y2=base, stroke=RULE),
        text_at("0", _LEFT, base + 16, "sx-label", MUTED),
        text_at(f"{bytes_text(largest)} on disk", _LEFT + room, base + 16, "sx-label", MUTED, text_anchor="end"),
    ]
    said = "; ".join(f"{kind}: {_amount(count, size)}" for kind, (count, size) in shares.items())
    return chart(drawn, "Bytes on disk by kind of entry", said, _WIDTH, base + 24)


def _amount(count: int, size: int) -> str:
    return f"{bytes_text(size)}, {_many(count, 'entry', 'entries')}"


# --- What verifying found ---------------------------------------------------------------------------------------------


def verification_text(record: Any) -> str:
    """A line when all is sound, else a table of what is not."""
    return verification_table(record).text() if record.findings else f"{record.directory}: {_sound(record)}"


def verification_table(record: Any) -> Table:
    """Every file that is not a sound entry."""
    rows = [
        (_within(finding.path, record.directory), finding.state, finding.why, "removed" if finding.removed else "")
        for finding in record.findings
    ]
    note = "" if record.clean else "`staxlab cache verify --remove` deletes what is not sound; it is built again"
    columns = ("file", "state", "why", "")
    return Table.build(f"{record.directory}: {_sound(record)}", columns, rows, (note,), text_columns=4)


def _sound(record: Any) -> str:
    return f"{_many(record.sound, 'sound entry', 'sound entries')}, {bytes_text(record.nbytes)}"


def _within(path: str, directory: str) -> str:
    return printable(path[len(directory) + 1 :] if path.startswith(directory + "/") else path)
