"""Time cases on peers, print a table, write JSON and a plot.

    python -m benchmarks.run --case example_1_1 --size 8192x2048 --peers eager,torch_compile,xla,staxlab --threads 2
    python -m benchmarks.run --case table_13_1 --isolate --out results.json --plot results.svg
    python -m benchmarks.run --case table_13_1 --preallocated --out preallocated.json

Ctrl-C stops after the current reading; what was measured is still printed and written, marked incomplete.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.cases import Case
    from benchmarks.harness import CaseResult, Settings
    from benchmarks.peers import Peer


def parse_size(text: str) -> tuple[int, int]:
    """``"8192x2048"`` as (8192, 2048)."""
    try:
        rows, columns = (int(part) for part in text.lower().split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"a size looks like 8192x2048, not {text!r}") from None
    if rows < 1 or columns < 1:
        raise argparse.ArgumentTypeError("sizes are positive")
    return rows, columns


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__.split("\n")[0])
    p.add_argument("--case", default="example_1_1", help="names, table_13_1, table_13_2, scans, layers, all, by commas")
    p.add_argument("--size", type=parse_size, help="rows x columns, such as 8192x2048 (default: each case's own)")
    p.add_argument("--peers", default="eager,torch_compile,xla,staxlab", help="names separated by commas, eager first")
    p.add_argument("--threads", type=int, help="cores every peer may use (default: all)")
    p.add_argument("--readings", type=int, default=15, help="readings per peer and round (default 15)")
    p.add_argument("--rounds", type=int, default=2, help="repetitions of the whole comparison (default 2)")
    p.add_argument("--dtype", default="float32", choices=("float32", "float64", "float16", "bfloat16"))
    p.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--preallocated", action="store_true", help="every peer overwrites results made beforehand")
    p.add_argument("--no-roof", action="store_true", help="neither measure the roof nor explain the speedups")
    p.add_argument("--isolate", action="store_true", help="one process per peer instead of alternating in one")
    p.add_argument("--out", type=Path, help="write the run as JSON")
    p.add_argument("--plot", type=Path, help="write a plot (.png, .svg, .pdf); default: beside --out, as SVG")
    p.add_argument("--list", action="store_true", help="list cases and peers, and which are here")
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return p


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. 0 when all was measured, 1 when a peer failed or was wrong, 2 for unusable arguments, 130
    when interrupted. A missing peer is reported and is no failure."""
    options = parser().parse_args(arguments)
    from benchmarks import cases, harness, peers, summary
    from staxlab.measure import machine

    try:
        peers.limit_cores(options.threads)
        chosen_cases = cases.select(options.case)
        chosen_peers = peers.select(options.peers)
    except (KeyError, ValueError) as error:
        print(f"benchmarks.run: {error.args[0]}", file=sys.stderr)
        return 2
    if options.list:
        _list(cases.CASES, peers.PEERS.values(), options.device)
        return 0
    settings = harness.Settings(
        readings=options.readings,
        rounds=options.rounds,
        dtype=options.dtype,
        device=options.device,
        seed=options.seed,
        preallocated=options.preallocated,
        roof=not (options.no_roof or options.isolate or options.worker),
    )
    if options.worker:
        return _worker(chosen_cases[0], options.size or chosen_cases[0].size, chosen_peers[0], settings)
    before = machine.machine_record()
    if note := machine.busy_note(before):
        print(f"note: {note}")
    results, complete = [], True
    for case in chosen_cases:
        size = options.size or case.size
        print(f"{case.title} ({size[0]}x{size[1]}, {options.dtype})", flush=True)
        try:
            run = _run_isolated if options.isolate else harness.run_case
            result = run(case, size, chosen_peers, settings, lambda line: print(line, flush=True))
        except KeyboardInterrupt:  # outside a reading: between two peers, or while one compiles
            complete = False
            break
        results.append(result)
        print("\n" + harness.result_table(result).text() + "\n", flush=True)
        if not result.complete:
            complete = False
            break
    record = harness.run_record(results, settings, options.isolate, complete)
    record["machine"]["load_average"] = before["load_average"]
    if record["summary"]["speedup_over"]:
        print(summary.table(record["summary"], settings.preallocated).text() + "\n")
    _write(record, options.out, options.plot)
    if not record["complete"]:
        print("interrupted: what was measured until then is above" + (" and in the file" if options.out else ""))
        return 130
    failed = [e for r in results for e in r.entries if e.problem and not e.problem.startswith("missing")]
    return 1 if failed else 0


def _list(cases: Sequence[Case], peers: Any, device: str) -> None:
    for case in cases:
        print(f"{case.name:24} {case.title} [{case.size[0]}x{case.size[1]}]")
    for peer in peers:
        reason = peer.missing(device)
        print(f"{peer.name:24} {peer.title}: {'here' if reason is None else f'{reason} ({peer.install})'}")


def _write(record: dict[str, Any], out: Path | None, plot: Path | None) -> None:
    from benchmarks import records

    if out is not None:
        print(f"wrote {records.save(record, out)}")
    target = plot or (out.with_suffix(".svg") if out is not None else None)
    if target is None or not record["cases"]:
        return
    from staxlab.errors import MissingDependencyError
    from staxlab.view.benchmark import write_run_plot
    from staxlab.view.benchmark_roofs import write_roof_plot

    try:
        print(f"wrote {write_run_plot(record, target)}")
        if written := write_roof_plot(record, target.with_stem(target.stem + "_roofline")):
            print(f"wrote {written}")
    except MissingDependencyError as error:
        print(f"no plot: {error}")


# --- A process per peer -----------------------------------------------------------------------------------------------


def _worker(case: Case, size: tuple[int, int], peer: Peer, settings: Settings) -> int:
    """One peer, one round, in this process; the last line of standard output is the result as JSON."""
    from benchmarks import harness

    result = harness.run_case(case, size, [peer], settings, lambda line: print(line, file=sys.stderr))
    entry = result.entries[0]
    print(json.dumps({"entry": entry.to_json(), "model": result.model, "complete": result.complete}))
    return 0


def _run_isolated(
    case: Case, size: tuple[int, int], peers: Sequence[Peer], settings: Settings, progress: Any
) -> CaseResult:
    """Rounds in which the peers' processes take turns."""
    from benchmarks import harness
    from staxlab.measure.timing import Timing

    result: CaseResult | None = None
    for r in range(settings.rounds):
        timings = []
        order = peers if r % 2 == 0 else list(reversed(peers))
        for peer in order:
            data = _spawn(case, size, peer, settings)
            if result is None or len(result.entries) < len(peers):
                result = result or harness.CaseResult(case, size, [], data["model"])
                result.entries.append(_entry(peer.name, data))
            if peer.name == "staxlab" and data["model"]["source"] != "formula":
                result.model = data["model"]
            timings += [Timing.from_json(t) for t in data["entry"]["rounds"]]
            result.complete = result.complete and data["complete"]
        harness.record_separate_round(result, timings)
        progress(f"  round {r + 1} of {settings.rounds}")
        if not result.complete:
            break
    for entry in result.entries:
        sizes = {"eager": result.model["eager_bytes"], "staxlab": result.model["compiled_bytes"]}
        entry.model_bytes = sizes.get(entry.peer, result.model["bound_bytes"])
    return result


def _entry(name: str, data: dict[str, Any]) -> Any:
    from benchmarks import harness

    nan = float("nan")
    saved = data["entry"]
    return harness.Entry(
        peer=name,
        first_call=nan if saved["first_call_s"] is None else saved["first_call_s"],
        max_error=nan if saved["max_error"] is None else saved["max_error"],
        details=saved["details"],
        problem=saved["problem"],
    )


def _spawn(case: Case, size: tuple[int, int], peer: Peer, settings: Settings) -> dict[str, Any]:
    """Run a worker and read its last line. A worker that dies is an entry with a problem."""
    from benchmarks import harness

    command = [
        sys.executable, "-m", "benchmarks.run", "--worker", "--case", case.name, "--size", f"{size[0]}x{size[1]}",
        "--peers", peer.name, "--readings", str(settings.readings), "--rounds", "1", "--dtype", settings.dtype,
        "--device", settings.device, "--seed", str(settings.seed), *["--preallocated"][: settings.preallocated],
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).resolve().parent.parent)
    try:
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        words = (done.stderr.strip().splitlines() or ["no output"])[-1]
        entry = harness.Entry(peer.name, problem=f"failed: the process ended with {done.returncode}: {words}")
        model = harness._model(case, size, settings, None)
        return {"entry": entry.to_json(), "model": model, "complete": done.returncode != 130}


if __name__ == "__main__":
    raise SystemExit(main())
