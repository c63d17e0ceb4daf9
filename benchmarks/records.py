"""What every result file begins with, and how it is written and its command line read: shared by the commands."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from staxlab.measure import machine


def header(file_format: str, device: str = "cpu") -> dict[str, Any]:
    """Where and how a run was made: format, date, command, machine, versions."""
    return {
        "format": file_format,
        "date": machine.timestamp(),
        "command": machine.command_line(),
        "machine": machine.machine_record(device),
        "versions": machine.version_record(),
    }


def save(record: dict[str, Any], path: Path) -> Path:
    """Write a run as JSON."""
    return _replace(path, json.dumps(record, indent=2, allow_nan=False))


def save_progress(record: dict[str, Any], path: Path | None) -> None:
    """Keep what a long run has found so far, if it is kept at all."""
    if path is not None:
        _replace(path, json.dumps(record, indent=1))


def _replace(path: Path, text: str) -> Path:
    """Write a file at once: an interruption leaves the one that was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(path)
    return path


def continued(path: Path | None, file_format: str, place: Any) -> dict[str, Any]:
    """The record of a sweep that goes on where ``path`` ends, or of a new one. ``place`` says on which ``device`` and
    whether anything is ``measured`` there. SystemExit for a file of another command or kind of device."""
    if path is None or not path.exists():
        return {**header(file_format, place.device), "measured": place.measured, "cases": {}}
    record = json.loads(path.read_text())
    alike = record.get("format") == file_format and record.get("measured") == place.measured
    if alike and isinstance(record.get("cases"), dict):
        return record
    raise SystemExit(f"{path} is not a sweep of this command on this kind of device; name another file")


def added_to(path: Path | None, file_format: str, place: Any, measured_anew: Collection[str]) -> dict[str, Any]:
    """The record of a comparison that keeps what an earlier call has left in ``path``, but for the cases that are
    ``measured_anew``, so that cases may be run a few at a time. SystemExit for a file of another kind."""
    record: dict[str, Any] = {**header(file_format, place.device), "measured": place.measured, "cases": []}
    if path is not None and path.exists():
        before = json.loads(path.read_text())
        if not isinstance(before.get("cases"), list) or before.get("measured") != place.measured:
            raise SystemExit(f"{path} is no comparison of this command; name another file")
        record["cases"] = [entry for entry in before["cases"] if entry["case"] not in measured_anew]
    return record


def growth_options(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    families: Collection[str],
    sizes: Sequence[int],
    *,
    least: int,
    too_small: str,
    out: str,
) -> tuple[list[str], list[int], argparse.Namespace]:
    """Parse ``--families``, ``--sizes``, ``--repeats`` and ``--out`` of a command that measures how a cost grows with
    the nodes of a graph: the families and sizes asked for, and all options. Ends the process for what is not allowed:
    a size below ``least`` or no reading, in the words of ``too_small``."""
    parser.add_argument("--families", default=",".join(families), help=f"of {', '.join(families)}")
    parser.add_argument("--sizes", default=",".join(map(str, sizes)), help="nodes, separated by commas")
    parser.add_argument("--repeats", type=int, default=3, help="readings per figure (default 3)")
    parser.add_argument("--out", type=Path, help=out)
    options = parser.parse_args(arguments)
    chosen = [name.strip() for name in options.families.split(",") if name.strip()]
    for name in chosen:
        if name not in families:
            parser.error(f"no family named {name!r}; families: {', '.join(families)}")
    try:
        wanted = [int(size) for size in options.sizes.split(",")]
    except ValueError:
        parser.error(f"sizes are whole numbers, not {options.sizes!r}")
    if min(wanted) < least or options.repeats < 1:
        parser.error(too_small)
    return chosen, wanted, options
