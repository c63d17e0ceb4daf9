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
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n")
    return path


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
