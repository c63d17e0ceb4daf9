"""The tests that need a CUDA device, run on one, as a record: which machine, what passed, what did not.

    python -m benchmarks.gpu_tests --out benchmarks/results/gpu_tests_h200.json
    python -m benchmarks.gpu_tests -- tests/gpu/test_omni.py -n 8     arguments of pytest after the dashes

Continuous integration has no GPU: there the same kernels run in Triton's interpreter and are compiled ahead of time.
What a device said is kept as data. 0 when all passed, 1 when a test failed, 2 where there is no device.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FORMAT = "staxlab-gpu-tests-1"
SAVE_EVERY = 10.0  # seconds: a run that is killed leaves what it had found


class Collector:
    """Counts the outcomes of tests by file; under pytest-xdist the process that hands out tests sees all of them."""

    def __init__(self, record: dict[str, Any], out: Path | None):
        self.record, self.out = record, out
        self.began = self.saved = time.monotonic()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A test passes in its call, and may fail or be skipped before and after it."""
        if report.when != "call" and report.passed:
            return
        counts = self.record["files"].setdefault(report.nodeid.split("::")[0], {})
        counts[report.outcome] = counts.get(report.outcome, 0) + 1
        if report.failed:
            lines = str(report.longrepr).strip().splitlines()
            said = [line for line in lines if line.startswith("E ")] or lines[-1:]
            self.record["failures"].append({"test": report.nodeid, "said": said[0][:300] if said else ""})
        elif report.skipped and isinstance(report.longrepr, tuple):
            reason = str(report.longrepr[2]).removeprefix("Skipped: ")
            self.record["skipped"][reason] = self.record["skipped"].get(reason, 0) + 1
        if time.monotonic() - self.saved > SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Write the record, if it is kept at all."""
        from benchmarks.records import save_progress

        self.saved = time.monotonic()
        self.record["seconds"] = self.saved - self.began
        save_progress(self.record, self.out)


def total(record: dict[str, Any], outcome: str) -> int:
    """How many tests of all files ended so."""
    return sum(counts.get(outcome, 0) for counts in record["files"].values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests; the exit status."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.gpu_tests", description=__doc__.split("\n")[0])
    p.add_argument("--out", type=Path)
    p.add_argument("pytest", nargs="*", help="arguments of pytest, after --; default: everything marked gpu")
    options = p.parse_args(arguments)
    import torch

    if not torch.cuda.is_available():
        print("no CUDA device: these tests would all be skipped", file=sys.stderr)
        return 2
    return run(options.pytest, options.out)


def run(given: Sequence[str], out: Path | None) -> int:
    """Run pytest with these arguments besides, and keep what its tests came to."""
    import pytest

    from benchmarks.records import header

    record: dict[str, Any] = {
        **header(FORMAT, "cuda"), "pytest": [*given], "complete": False,
        "files": {}, "failures": [], "skipped": {},
    }  # fmt: skip
    collector = Collector(record, out)
    status = pytest.main(["-m", "gpu", "-q", "-p", "no:cacheprovider", *given], plugins=[collector])
    record["complete"] = int(status) in (0, 1)
    collector.save()
    counts = ", ".join(f"{total(record, outcome)} {outcome}" for outcome in ("passed", "failed", "skipped"))
    print(f"{counts} in {record['seconds']:.0f} s" + (f"; wrote {os.fspath(out)}" if out else ""))
    return 0 if int(status) == 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
