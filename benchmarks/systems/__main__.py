"""The command line of the comparison: ``observe`` counts, ``time`` measures.

    python -m benchmarks.systems observe --out staxlab/measure/observed_systems.json
    python -m benchmarks.systems observe --systems dynamo --programs branch
    python -m benchmarks.systems time --threads 2 --out benchmarks/results/systems_cpu.json

Each system is observed in a process of its own. Without ``--out`` the record is printed, as JSON, in the last line.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.systems.programs import PROGRAMS, Program, sequence_text

FORMAT = "staxlab-systems-1"
TIMES_FORMAT = "staxlab-systems-times-1"
#: In this order they stand in tables. The first three are given programs; all show what becomes of the functions.
SYSTEMS = ("own", "dynamo", "xla", "halide", "tvm")
WATCHED = SYSTEMS[:3]
#: The sizes at which structure is looked at.
ROWS, COLUMNS = 64, 2048


def observed(system: str, programs: Sequence[Program], first: bool, structure: bool) -> dict[str, Any]:
    """Everything about one system, in this process; ``{"missing": why}`` where it is not installed."""
    from benchmarks.systems import watching

    module = importlib.import_module(f"benchmarks.systems.{system}")
    reason = module.missing()
    if reason is not None:
        return {"missing": reason}
    found: dict[str, Any] = {"title": module.title}
    if system in WATCHED:
        found |= watching.observe(module, programs, first)
        found["keys"] = {program.name: module.keys(program) for program in programs}
        found["failures"] = module.failures()
    if structure and not (first and system in WATCHED[:2]):  # a quick look builds no kernels
        found["structure"] = module.structure(ROWS, COLUMNS)
    return found


def observe(systems: Sequence[str], programs: Sequence[Program], first: bool, structure: bool) -> dict[str, Any]:
    """Every system in a process of its own, as one record."""
    from benchmarks.records import header
    from staxlab.measure.fresh_process import ProcessFailed, run_python

    record: dict[str, Any] = {**header(FORMAT), "systems": {}}
    record["programs"] = {
        program.name: {
            "title": program.title,
            "aspect": program.aspect,
            "source": program.source,
            "jax": program.text("jax"),
            "sequences": [sequence_text(s) for s in program.sequences[: 1 if first else None]],
        }
        for program in programs
    }
    names = [program.name for program in programs]
    for system in systems:
        code = (
            f"from benchmarks.systems.__main__ import worker; worker({system!r}, {names!r}, {first!r}, {structure!r})"
        )
        try:
            found = run_python(code, {"JAX_PLATFORMS": "cpu"})
        except ProcessFailed as error:
            found = {"missing": f"its process {error}"}
        record["systems"][system] = found
    return record


def worker(system: str, names: Sequence[str], first: bool, structure: bool) -> None:
    """One system in a process of its own; the last line of standard output is what was found."""
    chosen = [program for program in PROGRAMS if program.name in names]
    print(json.dumps(observed(system, chosen, first, structure)))


# --- Timing -----------------------------------------------------------------------------------------------------------


def timed(options: argparse.Namespace) -> dict[str, Any]:
    """All peers on all functions, in turns."""
    from benchmarks import harness
    from benchmarks.peers import limit_cores
    from benchmarks.records import header
    from benchmarks.systems import timing

    limit_cores(options.threads)
    settings = harness.Settings(readings=options.readings, roof=False)
    wanted = options.peers.split(",") if options.peers else None
    peers = [timing.counting_faults(p) for p in timing.compared_peers() if wanted is None or p.name in wanted]
    cases, complete = [], True
    for case in timing.compared_cases():
        if options.cases and case.name not in options.cases.split(","):
            continue
        size = options.size or case.size
        print(f"{case.title}, {size[0]}x{size[1]}")
        with timing.cold_caches():
            result = harness.run_case(case, size, peers, settings)
        print(harness.result_table(result).text())
        cases.append(result.to_json())
        complete = complete and result.complete
    titles = {peer.name: peer.title for peer in peers}
    record = {**header(TIMES_FORMAT), "titles": titles, "complete": complete, "cases": cases}
    return record


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.systems", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    watch = commands.add_parser("observe", help="count graphs, effects, errors; look at what functions become")
    watch.add_argument("--systems", default=",".join(SYSTEMS), help=f"of {', '.join(SYSTEMS)}")
    watch.add_argument("--programs", default=None, help=f"of {', '.join(p.name for p in PROGRAMS)} (default: all)")
    watch.add_argument("--first", action="store_true", help="only the first sequence of each program, and no pairs")
    watch.add_argument("--no-structure", action="store_true", help="leave out what the functions become")
    clock = commands.add_parser("time", help="measure the functions side by side")
    clock.add_argument("--size", help="rows x columns (default: each function's own)")
    clock.add_argument("--readings", type=int, default=15, help="readings per round and peer (default 15)")
    clock.add_argument("--threads", type=int, help="cores of the process, hence of every peer's pool")
    clock.add_argument("--peers", default="", help="only these, separated by commas")
    clock.add_argument("--cases", default="", help="only these functions, separated by commas")
    for command in (watch, clock):
        command.add_argument("--out", type=Path, help="write JSON")
    options = parser.parse_args(arguments)
    if options.command == "time":
        from benchmarks.run import parse_size

        try:
            options.size = parse_size(options.size) if options.size else None
        except argparse.ArgumentTypeError as error:
            clock.error(str(error))
        record = timed(options)
    else:
        systems = options.systems.split(",")
        names = [p.name for p in PROGRAMS] if options.programs is None else options.programs.split(",")
        names = [name for name in names if name]
        unknown = [
            *(s for s in systems if s not in SYSTEMS),
            *(n for n in names if n not in {p.name for p in PROGRAMS}),
        ]
        if unknown:
            watch.error(f"nothing is called {', '.join(unknown)}")
        chosen = [program for program in PROGRAMS if program.name in names]
        record = observe(systems, chosen, options.first, not options.no_structure)
        for system, found in record["systems"].items():
            print(f"{system}: {found.get('missing', 'observed')}", file=sys.stderr)
    if options.out is None:
        print(json.dumps(record))
    else:
        from benchmarks.records import save

        print(f"wrote {save(record, options.out)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
