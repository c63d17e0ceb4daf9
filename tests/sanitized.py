"""A pytest plugin for runs whose kernels check their accesses (``make test-sanitized``, ``docs/sanitizers.md``).

Three things make such a run see more than the tests alone would:

* *Every argument ends where its memory ends.* A tensor may be a piece of a larger one, and an access beside the piece
  is then no fault to the allocator. So each launch gets copies, each in a block of exactly the bytes its layout spans.
* *The extension is checked as well*: the one that the runner compiled with the sanitizers is imported in place of the
  installed one.
* *A test fails when something was found while it ran*, with the finding and the kernel's source in its report.

``STAXLAB_SANITIZER_LOG`` names the file findings are written to (process numbers are appended) and, followed by
``.json``, the account of the run.
"""

from __future__ import annotations

import collections
import ctypes
import glob
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

LOG = os.environ.get("STAXLAB_SANITIZER_LOG", "")
EXTENSION = os.environ.get("STAXLAB_SANITIZER_EXTENSION", "")
EVERY = int(os.environ.get("STAXLAB_SANITIZER_EVERY", "1"))

#: Tests whose kernels are broken on purpose: what is found there is the sanitizers at work, and is counted apart.
BROKEN_ON_PURPOSE = "::test_a_planted_fault_is_found["

_HEADLINE = re.compile(r"(ERROR: AddressSanitizer: .*|[^\n]*runtime error: .*)")


class Findings:
    """What the sanitizers have written, read piece by piece."""

    def __init__(self, log: str):
        self.log = log
        self.read: dict[str, int] = {}

    def new(self) -> str:
        """What was written since the last call, by this process or its children; empty if nothing."""
        texts = []
        for path in sorted(glob.glob(glob.escape(self.log) + ".[0-9]*")):
            begin = self.read.get(path, 0)
            if os.path.getsize(path) > begin:
                with open(path, encoding="utf-8", errors="replace") as file:
                    file.seek(begin)
                    texts.append(file.read())
                    self.read[path] = file.tell()
        return with_lines("\n".join(texts)) if texts else ""


def write_undefined_to_log() -> None:
    """Both sanitizers' libraries export the function that takes ``log_path``, so the first one loaded gets both calls:
    the second one is told by itself."""
    for path in os.environ.get("LD_PRELOAD", "").split(":"):
        if "ubsan" in os.path.basename(path):
            ctypes.CDLL(path).__sanitizer_set_report_path(f"{LOG}.{os.getpid()}.undefined".encode())


_FRAME = re.compile(r"\((/[^()]*/staxlab-[^()]*\.so)\+(0x[0-9a-f]+)\)")


def with_lines(text: str) -> str:
    """A report with the source lines of frames in kernels, which the libraries look up only in files loaded early."""
    program = shutil.which("addr2line")
    if program is None:
        return text

    def place(match: re.Match[str]) -> str:
        from staxlab.runtime import sanitizers

        command = [program, "-s", "-i", "-e", match[1], match[2]]
        surroundings = sanitizers.compiler_environment()
        answer = subprocess.run(command, capture_output=True, text=True, env=surroundings)
        return f"{match[0]} at {', '.join(answer.stdout.split())}" if answer.stdout else match[0]

    return _FRAME.sub(place, text)


class Account:
    """The numbers of a run, and its findings."""

    def __init__(self) -> None:
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.kernels: set[str] = set()
        self.parallel: set[str] = set()
        self.launches = 0
        self.findings: list[dict[str, Any]] = []
        self.on_purpose = 0
        self.failures: list[str] = []
        self.last: Any = None  # the kernel launched last


findings, account = Findings(LOG), Account()


# ---- What is checked -------------------------------------------------------------------------------------------------


def import_checked_extension() -> None:
    """Make ``staxlab.native`` find the extension that was compiled with the sanitizers."""
    name = "staxlab.native._native"
    assert name not in sys.modules, "the extension is imported already"
    spec = importlib.util.spec_from_file_location(name, EXTENSION)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def note_spans() -> None:
    """Let every generated kernel know how many bytes each of its arguments spans."""
    from staxlab.codegen.cpp import generator

    def noting(generate: Any) -> Any:
        def noted(schedule: Any, *rest: Any) -> Any:
            kernel = generate(schedule, *rest)
            layouts = [schedule.layouts[argument.buffer] for argument in kernel.arguments]
            kernel.launch["spans"] = tuple(layout.storage_elements * layout.dtype.itemsize for layout in layouts)
            return kernel

        return noted

    generator.generate_kernel = noting(generator.generate_kernel)
    generator.generate_fused = noting(generator.generate_fused)


def place_arguments() -> None:
    """Let every launch work on copies of its arguments, each in a block that ends where the argument does."""
    from staxlab.runtime import build

    launcher, load = build._launcher, build._load
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]

    def placed(kernel: Any, library: Any, name: str) -> Any:
        launch = launcher(kernel, library, name)
        spans = kernel.launch.get("spans")
        if spans is None:  # written by hand: no layout says how long its arguments are
            return launch
        checked = bool(kernel.launch.get("checks"))
        entry = launch.entry if checked else launch

        def call(*pointers: int) -> int | None:
            account.launches += 1
            account.last = kernel
            blocks = [libc.malloc(span) for span in spans]
            try:
                for block, pointer, span in zip(blocks, pointers, spans, strict=True):
                    ctypes.memmove(block, pointer, span)
                failure = entry(*blocks)
                for block, pointer, span, argument in zip(blocks, pointers, spans, kernel.arguments, strict=True):
                    if argument.role != "input":
                        ctypes.memmove(pointer, block, span)
                return failure
            finally:
                for block in blocks:
                    libc.free(block)

        placing = ctypes.CFUNCTYPE(ctypes.c_longlong if checked else None, *[ctypes.c_void_p] * len(spans))(call)
        placing.resident = None  # that entry wants outputs that begin with a cache line: these end where they must
        return build.reporting(kernel, placing) if checked else placing

    def counted(kernel: Any, compiled: Any, key: str, *more: Any, **details: Any) -> Any:
        account.kernels.add(key)
        if "-fopenmp" in kernel.flags:
            account.parallel.add(key)
        return load(kernel, compiled, key, *more, **details)

    build._launcher, build._load = placed, counted


# ---- What is reported ------------------------------------------------------------------------------------------------


def _judge(item: pytest.Item) -> None:
    text = findings.new()
    if not text:
        return
    if BROKEN_ON_PURPOSE in item.nodeid:
        account.on_purpose += 1
        return
    heads = list(dict.fromkeys(_HEADLINE.findall(text))) or [text[:200]]
    kernel, source = account.last, ""
    account.findings.append({"test": item.nodeid, "findings": heads[:20], "kernel": kernel and kernel.name})
    if kernel is not None:
        from staxlab.runtime import build

        source = f"\nthe kernel launched last, {kernel.name}:\n{build._numbered(build.anonymous(kernel).source)}"
    pytest.fail(f"the sanitizers found {len(heads)}:\n{text[:20_000]}{source}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    try:
        result = yield
    except Exception:
        _judge(item)
        raise
    _judge(item)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    result = yield
    _judge(item)
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        account.outcomes[report.outcome] += 1
        if report.outcome == "failed":
            account.failures.append(report.nodeid)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the tests of each file only every so many-th, where a short run is asked for."""
    if EVERY > 1:
        position: collections.Counter[str] = collections.Counter()
        kept, left_out = [], []
        for item in items:
            file = item.nodeid.partition("::")[0]
            (left_out if position[file] % EVERY else kept).append(item)
            position[file] += 1
        items[:] = kept
        config.hook.pytest_deselected(items=left_out)


def pytest_sessionfinish(session: pytest.Session) -> None:
    from staxlab import native

    record = {
        "tests": dict(sorted(account.outcomes.items())),
        "kernels": len(account.kernels),
        "parallel_kernels": len(account.parallel),
        "launches": account.launches,
        "extension": bool(EXTENSION) and native.available,
        "pool": {name: count for name, count in native.pool_statistics().items() if name in ("taken", "reused")},
        "findings": account.findings,
        "found_in_kernels_broken_on_purpose": account.on_purpose,
        "failures": account.failures,
    }
    with open(LOG + ".json", "w", encoding="utf-8") as file:
        json.dump(record, file, indent=2)


def pytest_configure(config: pytest.Config) -> None:
    if not LOG:
        raise pytest.UsageError("this plugin is loaded by `python -m benchmarks.sanitizers`")
    if hasattr(config, "workerinput") or config.getoption("numprocesses", None):
        raise pytest.UsageError("findings are told apart by the test that ran: one process, without -n")
    if EXTENSION:
        import_checked_extension()
    write_undefined_to_log()
    from staxlab.runtime import sanitizers

    if not sanitizers.requested() or (missing := sanitizers.missing()):
        raise pytest.UsageError(f"not a checked process: {', '.join(missing) or 'nothing is asked for'}")
    note_spans()
    place_arguments()
