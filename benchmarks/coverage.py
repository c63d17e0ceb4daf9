"""How every operator of PyTorch's database is compiled on the CPU, and whether the values are eager's.

    python -m benchmarks.coverage --out benchmarks/results/coverage_cpu.json

Compiles samples of every operator in eight dtypes, contiguous and not, and compares them with eager execution
(``staxlab.measure.survey``). What is measured is not time. A run adds to the file it finds: operators that are in it
already are left out, unless ``--operators`` names them ("cum* scatter* index_add") or ``--again`` asks for all. So an
interrupted run goes on where it stopped, and after a change to a few operators only those are counted again. Samples
run in processes of their own; one that dies or hangs is a line among the failures, and the others go on.

``docs/coverage.md`` is made from the file by ``python docs/build_coverage.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import staxlab
from benchmarks.records import header
from staxlab.measure import survey

FORMAT = "staxlab-coverage-1"
RESULT = Path(__file__).parent / "results" / "coverage_cpu.json"
DTYPES = tuple(str(dtype).removeprefix("torch.") for dtype in survey.DTYPES)

SAMPLES = 2  # of every operator, dtype and layout
LONGEST = 300.0  # seconds after which a sample counts as hanging
JOBS_OF_A_PROCESS = 250  # then a fresh one takes over, so that memory stays bounded

Cell = dict[str, int]


# --- One process ------------------------------------------------------------------------------------------------------


def cell(op: Any, dtype: str, samples: int | None, progress: Callable[[str], None] | None = None) -> survey.Findings:
    """One operator in one dtype: ``samples`` contiguous ones (None: all) and as many of their twins with gaps."""
    found = survey.Findings()
    for noncontiguous in (False, True):
        found.add(survey.survey(op, getattr(torch, dtype), staxlab.compile, samples, noncontiguous, progress))
    return found


def serve() -> int:
    """Answer requests ``[operator, dtype, samples]``, a line each, with ``{"start": ...}`` for every sample and a line
    of counts and failures at the end."""
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what operators print is no answer
    operators = {op.full_name: op for op in survey.database()}

    def answer(record: dict[str, Any]) -> None:
        answers.write(json.dumps(record) + "\n")
        answers.flush()

    for line in sys.stdin:
        name, dtype, samples = json.loads(line)
        found = cell(operators[name], dtype, samples, lambda sample: answer({"start": sample}))
        answer({"counts": dict(found.counts), "failures": found.failures})
    return 0


class Worker:
    """A process that runs samples, replaced when it has died, hung or grown old."""

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", "benchmarks.coverage", "--serve")):
        self.command = list(command)
        self.process: subprocess.Popen | None = None

    def run(self, name: str, dtype: str, samples: int | None) -> tuple[Cell, list[str]]:
        """Counts and failures of one operator in one dtype."""
        if self.process is None:
            self._start()
        sample = f"{name} {dtype}"
        try:
            self.process.stdin.write(json.dumps([name, dtype, samples]) + "\n")
            self.process.stdin.flush()
            while True:
                line = self.answers.get(timeout=LONGEST)
                if line is None:
                    return {}, [f"{sample}: the process died ({self._ended()})"]
                record = json.loads(line)
                if "start" not in record:
                    break
                sample = record["start"]
        except queue.Empty:
            self.process.kill()
            return {}, [f"{sample}: not done after {LONGEST:.0f} s ({self._ended()})"]
        except BrokenPipeError:
            return {}, [f"{sample}: the process died ({self._ended()})"]
        self.jobs += 1
        if self.jobs >= JOBS_OF_A_PROCESS:
            self.close()
        return record["counts"], record["failures"]

    def close(self) -> None:
        if self.process is not None:
            self.process.stdin.close()
            self._ended()

    def _start(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=environment,
        )  # fmt: skip
        self.jobs, self.answers = 0, queue.SimpleQueue()
        threading.Thread(target=_forward, args=(self.process.stdout, self.answers), daemon=True).start()

    def _ended(self) -> str:
        process, self.process = self.process, None
        code = process.wait()
        return f"signal {-code}" if code < 0 else f"exit status {code}"


def _forward(lines: Any, answers: queue.SimpleQueue) -> None:
    for line in lines:
        answers.put(line)
    answers.put(None)


# --- All of them ------------------------------------------------------------------------------------------------------


def chosen(names: Sequence[str], patterns: Sequence[str] | None, done: Sequence[str], again: bool) -> list[str]:
    """Which operators to run: those the patterns name, or those that are not done. ValueError for a pattern that names
    none."""
    if not patterns:
        return [name for name in names if again or name not in done]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ValueError(f"no operator of the database is called {pattern!r}")
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def run_all(
    names: Sequence[str], dtypes: dict[str, list[str]], samples: int | None, processes: int, worker: Callable = Worker
) -> Iterator[tuple[str, dict[str, Cell], list[str]]]:
    """Every operator's row and failures, as they come. ``dtypes``: those each operator takes."""
    waiting: queue.SimpleQueue = queue.SimpleQueue()
    finished: queue.SimpleQueue = queue.SimpleQueue()
    for name in names:
        waiting.put(name)

    def work() -> None:
        mine = worker()
        with contextlib.suppress(queue.Empty):
            while True:
                name = waiting.get_nowait()
                row, failures = {}, []
                for dtype in dtypes[name]:
                    counts, wrong = mine.run(name, dtype, samples)
                    row[dtype] = {way: counts[way] for way in survey.WAYS if counts.get(way)}
                    failures += wrong
                finished.put((name, row, failures))
        mine.close()

    for _ in range(processes):
        threading.Thread(target=work, daemon=True).start()
    for _ in names:
        yield finished.get()


def save(record: dict[str, Any], path: Path) -> None:
    """Write the record with a line for each operator, all of it or nothing."""
    rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(record["operators"].items()))
    head = json.dumps({key: value for key, value in record.items() if key != "operators"}, indent=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.part")
    partial.write_text(f'{head[:-2]},\n  "operators": {{\n{rows}\n  }}\n}}\n')
    os.replace(partial, path)


def load(path: Path) -> dict[str, Any]:
    """A record :func:`save` wrote, or an empty one. ValueError for a file of another kind."""
    if not path.exists():
        return {"operators": {}, "failures": []}
    record = json.loads(path.read_text())
    if record.get("format") != FORMAT:
        raise ValueError(f"{path} is no record of this command ({record.get('format')})")
    return record


def merged(record: dict[str, Any], name: str, row: dict[str, Cell], failures: list[str]) -> None:
    """Put an operator's row in the place of its old one."""
    record["operators"][name] = row
    kept = [line for line in record["failures"] if line.split()[0] != name]
    record["failures"] = sorted(kept + failures)


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__.split("\n")[0])
    p.add_argument(
        "--operators", help="run these, named by shell patterns separated by spaces (default: what is not done)"
    )
    p.add_argument("--again", action="store_true", help="run what is in the file already, too")
    p.add_argument("--samples", type=int, default=SAMPLES,
                   help=f"per operator, dtype and layout (default {SAMPLES}; 0: all, which takes hours)")  # fmt: skip
    p.add_argument("--processes", type=int, default=2, help="at once, one thread each (default 2)")
    p.add_argument("--out", type=Path, default=RESULT, help="the file to add to (default: the one in results/)")
    p.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = p.parse_args(arguments)
    if options.serve:
        return serve()
    if options.processes < 1 or options.samples < 0:
        p.error("at least one process and one sample are needed")
    operators = {op.full_name: op for op in survey.database()}
    try:
        record = load(options.out)
        names = chosen(
            [*operators], options.operators and options.operators.split(), record["operators"], options.again
        )
    except ValueError as error:
        p.error(str(error))
    made = record.get("versions", {}).get("torch"), record.get("samples")
    if record["operators"] and made != (torch.__version__, options.samples) and len(names) < len(operators):
        p.error(f"{options.out} was made with PyTorch {made[0]} and --samples {made[1]}: give the same, or --again")
    record = {**header(FORMAT), "samples": options.samples, "failures": record["failures"],
              "operators": {name: row for name, row in record["operators"].items() if name in operators}}  # fmt: skip
    dtypes = {name: [d for d in DTYPES if survey.supported(operators[name], getattr(torch, d))] for name in names}
    started, total = time.perf_counter(), survey.Findings()
    for number, (name, row, failures) in enumerate(
        run_all(names, dtypes, options.samples or None, options.processes), 1
    ):
        merged(record, name, row, failures)
        here = survey.Findings(failures=failures)
        for counts in row.values():
            here.counts.update(counts)
        total.add(here)
        shown = ", ".join(f"{count} {way}" for way, count in here.counts.most_common())
        print(
            f"[{number}/{len(names)}, {time.perf_counter() - started:.0f} s] {name}: {shown or 'no samples'}",
            flush=True,
        )
        for line in failures:
            print(f"    WRONG {line}", flush=True)
        if number % 20 == 0 or number == len(names):
            save(record, options.out)
    print(total)
    print(f"{len(record['operators'])} operators in {options.out}")
    return 1 if record["failures"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
