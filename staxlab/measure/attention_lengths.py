"""Time and peak memory of attention against its length, as they were measured (Section 9.10; Section 13.2).

``python -m benchmarks.attention_lengths`` leaves a JSON file; :func:`attention_lengths` reads it and gives a record
that draws both against N, one line for each way of computing. Where there is no file the record says what would make
one. How memory grows is read off the two longest lengths: doubling N multiplies it by two where it is linear, by four
where an N x N matrix is formed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import OptionError
from .saved_runs import NotMeasured, machine_text, read_result
from .tables import Table, Tabular, bytes_text, seconds_text

FORMAT = "staxlab-attention-lengths-1"
COMMAND = "python -m benchmarks.attention_lengths"
WAYS = {
    "staxlab": "omni_attention", "sdpa": "scaled_dot_product_attention", "flex": "FlexAttention, torch.compile",
    "matrix": "operator by operator",
}  # fmt: skip


@dataclass(frozen=True)
class LengthPoint:
    """One way at one length: median ``seconds`` of a call with the ends of its interval, and the most ``peak_bytes``
    allocated at once beyond the operands (None where it was not counted)."""

    length: int
    seconds: float
    low: float
    high: float
    peak_bytes: int | None


@dataclass(frozen=True, repr=False)
class AttentionLengths(Tabular):
    """Every way at every length it could take; ``left_out`` names the others and why. ``shape`` says what was fixed,
    ``where``, ``command`` and ``date`` what ran."""

    shape: str
    where: str
    command: str
    date: str
    ways: tuple[tuple[str, tuple[LengthPoint, ...]], ...]
    left_out: tuple[str, ...] = ()

    def growth(self, way: str) -> float | None:
        """The exponent of N in the peak memory between the two longest lengths; None where it is not known."""
        points = [point for point in dict(self.ways)[way] if point.peak_bytes]
        if len(points) < 2:
            return None
        a, b = points[-2:]
        return math.log(b.peak_bytes / a.peak_bytes) / math.log(b.length / a.length)  # type: ignore[operator]

    def summary(self) -> str:
        parts = []
        for way, points in self.ways:
            grown = self.growth(way)
            memory = f", memory as N^{grown:.2f}" if grown is not None else ""
            parts.append(f"{way}: up to N = {points[-1].length:,} in {seconds_text(points[-1].seconds)}{memory}")
        return "; ".join(parts)

    def table(self) -> Table:
        found = {way: {point.length: point for point in points} for way, points in self.ways}
        lengths = sorted({length for points in found.values() for length in points})
        rows = []
        for length in lengths:
            row = [f"{length:,}"]
            for way in found:
                point = found[way].get(length)
                peak = "" if point is None or point.peak_bytes is None else bytes_text(point.peak_bytes)
                row += [seconds_text(point.seconds) if point else "", peak]
            rows.append(row)
        head = ["N"] + [f"{way}, {what}" for way in found for what in ("time", "peak memory")]
        measured = f"measured on {self.where}, {self.date[:10]}, by: {self.command}"
        caption = f"Attention against its length, {self.shape}"
        return Table.build(caption, head, rows, [self.summary(), measured, *self.left_out])


def attention_lengths(
    name: str = "attention_lengths_h200", directory: Path | None = None
) -> AttentionLengths | NotMeasured:
    """The run of that name, or a :class:`~staxlab.measure.saved_runs.NotMeasured`, which is false. OptionError for a
    name that is a path, and for a file that is no such run."""
    record = read_result(name, directory)
    if record is None or not record.get("device_present", True):
        return NotMeasured(name, f"{COMMAND} --out benchmarks/results/{name}.json")
    if record.get("format") != FORMAT:
        raise OptionError(
            f"{name} has the format {record.get('format')!r}, not {FORMAT!r}",
            remedy=f"read_result({name!r}) gives its content",
        )
    try:
        return _read(record)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise OptionError(
            f"{name} does not hold what its format says: {error!r}", remedy="run the command that writes it again"
        ) from None


def _read(record: Mapping[str, Any]) -> AttentionLengths:
    ways: dict[str, list[LengthPoint]] = {}
    left_out = []
    for entry in sorted(record["lengths"], key=lambda entry: entry["length"]):
        for peer, found in entry["peers"].items():
            way = WAYS.get(peer, peer)
            if "problem" in found:
                left_out.append(f"{way} at N = {entry['length']:,}: {found['problem']}")
                continue
            low, high = found["interval_s"]
            point = LengthPoint(entry["length"], found["median_s"], low, high, found.get("peak_bytes"))
            ways.setdefault(way, []).append(point)
    if not ways:
        raise ValueError("no length has a number")
    shape = record["shape"]
    said = f"{shape['batch']} x {shape['heads']} heads of {shape['head_size']}, {shape['dtype']}, {shape['mask']}"
    return AttentionLengths(
        said, machine_text(record), record["command"], record["date"],
        tuple((way, tuple(points)) for way, points in ways.items()), tuple(left_out),
    )  # fmt: skip
