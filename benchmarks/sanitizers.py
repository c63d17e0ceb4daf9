"""The suites that execute kernels, with every access of a kernel checked: ``python -m benchmarks.sanitizers``.

``make test-sanitized`` runs it in the project's environment. Each suite is one process, started with the libraries of
AddressSanitizer and UndefinedBehaviorSanitizer (:mod:`staxlab.runtime.sanitizers`) and with the plugin
``tests/sanitized.py``; the extension is compiled with the sanitizers too, into a temporary directory. What ran and what
was found goes to ``results/sanitizers_cpu.json``. ``docs/sanitizers.md`` says what this can and cannot see.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from staxlab.errors import BuildError
from staxlab.runtime import sanitizers, toolchain

from . import records

ROOT = Path(__file__).resolve().parent.parent
RESULT = Path(__file__).parent / "results" / "sanitizers_cpu.json"

#: What pytest is given for each suite. Kernels for GPUs are no C++.
SUITES: dict[str, tuple[str, ...]] = {
    "codegen": ("tests/codegen", "--ignore-glob=*/test_triton_*"),
    "autodiff": ("tests/autodiff",),
    "loops": ("tests/loops",),
    "operators": ("tests/test_opinfo.py",),
    "attention": ("tests/attention/test_cpp.py",),
    # Two tests less: an allocator that keeps freed memory back for a while makes a process grow, and with the extension
    # turned off there is nothing to check.
    "native": ("tests/native", "-k", "not (memory_stays_flat_over_fresh_tensors or without_the_extension)"),
}
#: Python's own pools would hide what the extension does to its tables, as staxlab's would hide what kernels do.
VARIABLES = {"native": {"PYTHONMALLOC": "malloc"}}


def build_extension(directory: Path) -> Path:
    """Compile ``staxlab.native._native`` with the sanitizers. BuildError where there is no C compiler that has them."""
    (module,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise BuildError("no C compiler is on PATH", remedy=toolchain.REMEDY)
    target = directory / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    checks = [flag for flags, _ in sanitizers.KNOWN.values() for flag in flags]
    command = [
        compiler, *module["extra-compile-args"], *checks, *sanitizers.SETTINGS, "-fPIC", "-shared",
        f"-I{sysconfig.get_paths()['include']}", *module["sources"], "-o", str(target), "-lpthread",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"the extension cannot be compiled with the sanitizers:\n{done.stderr[:4000]}")
    return target


def variables_of(name: str, extension: Path | None, directory: Path) -> dict[str, str]:
    """The variables of a process that runs a suite; its findings go to ``directory``, under the suite's name.
    Without an ``extension`` the installed one is used, unchecked."""
    return {
        **os.environ,
        **sanitizers.environment(toolchain.find().command, directory / name),
        **VARIABLES.get(name, {}),
        "STAXLAB_SANITIZER_LOG": str(directory / name),
        "STAXLAB_SANITIZER_EXTENSION": str(extension or ""),
    }


def run_suite(
    name: str, extension: Path | None, directory: Path, every: int, arguments: Sequence[str]
) -> dict[str, Any]:
    """Run one suite in a process of its own: the plugin's account, the exit status, the seconds it took."""
    log, variables = directory / name, variables_of(name, extension, directory)
    variables["STAXLAB_SANITIZER_EVERY"] = str(every)
    options = ["-q", "-p", "tests.sanitized", "--continue-on-collection-errors"]
    command = [sys.executable, "-m", "pytest", *options, *SUITES[name], *arguments]
    started = time.monotonic()
    status = subprocess.run(command, cwd=ROOT, env=variables).returncode
    seconds = round(time.monotonic() - started)
    account = Path(f"{log}.json")
    found = json.loads(account.read_text()) if account.exists() else {}
    if not found:  # it ended before the plugin could write: what the sanitizers said last is all there is
        said = [path.read_text(errors="replace")[-4000:] for path in sorted(directory.glob(f"{name}.[0-9]*"))]
        found = {"findings": [{"test": "the process ended early", "findings": said}]}
    pytest_command = " ".join(["pytest", *SUITES[name], *arguments])
    return {"suite": name, "command": pytest_command, "status": status, "seconds": seconds, **found}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suites asked for, print one line for each, write the record. 1 if anything was found or failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sanitizers", description=__doc__.splitlines()[0])
    parser.add_argument("--suites", default=",".join(SUITES), help=f"of {', '.join(SUITES)}")
    parser.add_argument("--every", type=int, default=1, help="of each file's tests run every so many-th (default 1)")
    parser.add_argument("--out", type=Path, help=f"where the record goes (default: {RESULT.name}, if all suites run)")
    parser.add_argument("pytest", nargs="*", help="more arguments for pytest, after --")
    options = parser.parse_args(arguments)
    chosen = [name.strip() for name in options.suites.split(",") if name.strip()]
    for name in chosen:
        if name not in SUITES:
            parser.error(f"no suite named {name!r}; suites: {', '.join(SUITES)}")
    tools = toolchain.find()
    try:
        sanitizers.libraries(tools.command)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 2
    record = records.header("staxlab-sanitizers-1")
    record["compiler"] = tools.version.splitlines()[0]
    record["tests_run"] = "all" if options.every == 1 else f"of each file every so many-th: {options.every}"
    record["flags"] = [flag for flags, _ in sanitizers.KNOWN.values() for flag in flags]
    whole = set(chosen) == set(SUITES) and not options.pytest
    out = options.out or (RESULT if whole else None)
    record["suites"] = []
    with tempfile.TemporaryDirectory(prefix="staxlab-sanitized-") as work:
        extension = build_extension(Path(work))
        for name in chosen:
            suite = run_suite(name, extension, Path(work), options.every, options.pytest)
            record["suites"].append(suite)
            print(
                f"{name}: {suite.get('kernels', 0)} kernels, {suite.get('launches', 0)} launches, "
                f"{len(suite['findings'])} findings, {len(suite.get('failures', []))} failed tests, "
                f"{suite['seconds']} s"
            )
            if out is not None:  # a run of hours that is interrupted has said what it found until then
                records.save(record, out)
    if out is not None:
        print(f"written to {out}")
    return int(any(suite["findings"] or suite["status"] for suite in record["suites"]))


if __name__ == "__main__":
    sys.exit(main())
