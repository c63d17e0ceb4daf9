"""How accurate elementwise functions are: every exponent, both signs, hard arguments; eager and generated kernels.

    python -m benchmarks.accuracy                                  # prints the table and a map in characters
    python -m benchmarks.accuracy --out accuracy.json

Largest errors in units in the last place against values of 200 bits (``staxlab.measure.accuracy``), for PyTorch's own
operators and for kernels of every instruction set that runs here ("scalar" is the C library's functions, which values
that do not vary within a vector use too). float32 is searched densely, float64 at fewer arguments. Takes some ten
minutes on one core. What is measured is not time: a busy machine gives the same figures. The exit status is 1 if a
kernel exceeds its bound.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

import staxlab
from benchmarks.records import header
from staxlab.measure import accuracy
from staxlab.options import host_instruction_set

FORMAT = "staxlab-accuracy-1"
RUNNABLE = {"avx512": ("avx512", "avx2", "scalar"), "avx2": ("avx2", "scalar"), "neon": ("neon", "scalar")}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def _text(head: dict, rows: list[dict]) -> str:
    """JSON with a line for each function: a curve with a number on every line would be half a million."""
    lines = ",\n".join("    " + json.dumps(row, allow_nan=False, separators=(",", ":")) for row in rows)
    return f'{json.dumps(head, indent=2)[:-2]},\n  "entries": [\n{lines}\n  ]\n}}\n'


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__.split("\n")[0])
    p.add_argument("--functions", help="names separated by commas (default: all)")
    p.add_argument("--dtypes", default=",".join(DTYPES), help=f"of {', '.join(DTYPES)} (default: both)")
    p.add_argument("--mantissas", type=int, default=1024, help="per exponent and sign, float32 (default 1024)")
    p.add_argument("--rounds", type=int, default=1, help="times so many mantissas (default 1)")
    p.add_argument("--out", type=Path, help="write JSON, and a map (.svg) beside it")
    options = p.parse_args(arguments)
    if options.mantissas < 1 or options.rounds < 1:
        p.error("an error is measured at one argument at least")
    dtypes = [name.strip() for name in options.dtypes.split(",")]
    if unknown := set(dtypes) - set(DTYPES):
        p.error(f"no dtype named {', '.join(sorted(unknown))}; dtypes: {', '.join(DTYPES)}")
    names = [name.strip() for name in options.functions.split(",")] if options.functions else None
    sets = RUNNABLE.get(host_instruction_set(), ("scalar",))
    records = []
    for name in dtypes:
        single = name == "float32"
        try:
            record = accuracy.accuracy(
                lambda function: accuracy.compiled_ways(function, staxlab.compile, sets),
                names,
                lambda function, name=name: print(f"\r{name} {function:40}", end="", file=sys.stderr, flush=True),
                dtype=DTYPES[name],
                mantissas=options.mantissas if single else 1,
                rounds=options.rounds,
                grid=accuracy.GRID if single else 2,
            )
        except staxlab.OptionError as error:
            p.error(str(error))
        print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
        print(staxlab.view.text(record), end="\n\n")
        records.append(record)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        rows = [row for record in records for row in record.to_json()["entries"]]
        options.out.write_text(_text(header(FORMAT), rows))
        print(f"wrote {options.out}")
        try:
            from staxlab.view.accuracy import write

            print(f"wrote {write(records[0], options.out.with_suffix('.svg'))}")
        except staxlab.MissingDependencyError as error:
            print(f"no picture: {error}")
    return 1 if any(record.beyond for record in records) else 0


if __name__ == "__main__":
    raise SystemExit(main())
