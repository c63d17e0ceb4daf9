"""The errors of Table 4.2, measured with generated kernels: composite operators in float32 against exact values.

    python -m benchmarks.transcendental --out transcendental.json

Every operator is computed by its formula, by PyTorch and by a kernel of staxlab's, at 20,000 arguments each, and
compared with values of 200 bits (``staxlab.measure.transcendental``). Takes about half a minute on one core. What is
measured is not time: a busy machine gives the same figures.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import staxlab
from benchmarks.records import header
from staxlab.measure import transcendental

FORMAT = "staxlab-transcendental-1"


def _text(header: dict, record: dict) -> str:
    """JSON with a line for each operator: a curve with a number on every line would be fifteen thousand."""
    rows = ",\n".join("    " + json.dumps(row, allow_nan=False) for row in record["entries"])
    head = json.dumps({**header, "what": record["what"]}, indent=2)
    return f'{head[:-2]},\n  "entries": [\n{rows}\n  ]\n}}\n'


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m benchmarks.transcendental", description=__doc__.split("\n")[0])
    p.add_argument("--operators", help=f"of {', '.join(transcendental.BY_NAME)} (default: all of Table 4.2)")
    p.add_argument("--points", type=int, default=transcendental.POINTS, help="arguments per operator (default 20000)")
    p.add_argument("--out", type=Path, help="write JSON, and a plot (.svg) beside it")
    options = p.parse_args(arguments)
    if options.points < 1:
        p.error("an error is measured at one argument at least")
    names = [name.strip() for name in options.operators.split(",")] if options.operators else None
    try:
        record = transcendental.treatments(options.points, staxlab.compile, names)
    except staxlab.OptionError as error:
        p.error(str(error))
    print(record)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(_text(header(FORMAT), record.to_json()))
        print(f"wrote {options.out}")
        try:
            from staxlab.view.treatments import write

            print(f"wrote {write(record, options.out.with_suffix('.svg'))}")
        except staxlab.MissingDependencyError as error:
            print(f"no plot: {error}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
