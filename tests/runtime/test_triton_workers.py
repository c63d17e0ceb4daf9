"""Triton kernels compiled by other processes: found by the parent, refused with words, and workers that fail."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch

import staxlab
from staxlab.errors import BuildError
from staxlab.provenance import Line
from staxlab.runtime import build_report, triton_builds, workers
from staxlab.runtime.build_report import Recorder
from staxlab.runtime.processes import Abandoned, ProcessGroup

triton = pytest.importorskip("triton")

from staxlab.codegen.triton import ahead, compile, source_files, worker  # noqa: E402


@pytest.fixture(autouse=True)
def fresh(cache_dir, monkeypatch):
    monkeypatch.setenv(build_report.VARIABLE, "2")
    for module in (compile, source_files):
        module.clear()
    yield
    for module in (compile, source_files, workers):
        module.clear()


@pytest.fixture(scope="module")
def kernels():
    """Three small kernels that differ."""

    def f(x, w):
        return torch.relu(x + w) * 2, (x * w).sum(-1), torch.cumsum(w, 0)

    record = staxlab.explain(f, torch.randn(32, 64), torch.randn(32, 64), target="sm_90")
    found = [kernel for kernel in record.kernels if kernel.language == "triton"]
    assert len(found) >= 2
    return found


def compilations(monkeypatch) -> list[bool]:
    """Takes down each compilation of Triton's in this process: whether its store had it."""
    from triton import knobs

    seen: list[bool] = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda *, cache_hit, **rest: seen.append(cache_hit))
    return seen


def test_listings_compiled_by_workers_are_what_the_parent_would_compile(kernels, monkeypatch):
    alone = [compile.aot_compile(kernel) for kernel in kernels]
    shutil.rmtree(source_files.cache_root() / "compiled")
    compile.clear()
    record = Recorder(2)
    assert triton_builds.compile_kernels(kernels, listing=True, record=record) == {}
    assert {task.worker for task in record.report().compiled} <= {0, 1}
    assert len(record.report().compiled) == len(kernels)
    seen = compilations(monkeypatch)
    together = [compile.aot_compile(kernel) for kernel in kernels]
    assert seen == [True] * len(kernels), "the parent compiled what a worker had compiled"
    for one, other in zip(alone, together, strict=True):
        assert one["cubin"] == other["cubin"]


def test_a_launch_compiled_by_a_worker_is_found_by_the_parents_launcher(kernels, monkeypatch):
    """The parent goes the launcher's own way; only the device is one that stands in for a driver."""
    from triton.runtime.driver import driver

    from staxlab.codegen.triton.launcher import TritonLauncher

    assert triton_builds.compile_kernels(kernels) == {}
    monkeypatch.setattr(driver, "_active", worker.Device(90))
    seen = compilations(monkeypatch)
    for kernel in kernels:
        tensors = tuple(torch.empty(32 * 64, dtype=argument.dtype) for argument in kernel.arguments)
        assert all(tensor.data_ptr() % 16 == 0 for tensor in tensors)
        with source_files.compiler_cache():
            TritonLauncher(kernel)._compile(tensors)
    assert seen == [True] * len(kernels), "the parent's key is not the worker's"


def test_what_is_compiled_is_known_in_the_next_process(kernels):
    triton_builds.compile_kernels(kernels)
    record = Recorder(2)
    triton_builds.compile_kernels(kernels, record=record)
    assert all(task.hit for task in record.report().tasks) and len(record.report().tasks) == len(kernels)
    # A note alone is not believed.
    shutil.rmtree(source_files.cache_root() / "compiled")
    assert not any(ahead.is_done(ahead.launch_job(kernel)) for kernel in kernels)


def test_what_the_parent_compiles_is_known_as_well(kernels):
    compile.aot_compile(kernels[0])
    assert ahead.is_done(ahead.listing_job(kernels[0])) and not ahead.is_done(ahead.listing_job(kernels[1]))
    assert not ahead.is_done(ahead.launch_job(kernels[0])), "a launch is compiled differently"


def test_a_single_kernel_starts_no_process(kernels, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("a worker was started for one kernel")

    monkeypatch.setattr(workers, "compile_triton", refuse)
    assert triton_builds.compile_kernels(kernels[:1]) == {}
    monkeypatch.setenv(build_report.VARIABLE, "1")
    assert triton_builds.compile_kernels(kernels) == {}


def test_a_kernel_that_triton_refuses_ends_in_its_words_and_the_others_are_compiled(kernels):
    broken = replace(kernels[0], lines=(*kernels[0].lines, Line("    tl.no_such_function(xnumel)")))
    refused = triton_builds.compile_kernels([broken, *kernels[1:]])
    assert list(refused) == [0] and isinstance(refused[0], BuildError)
    assert "no_such_function" in str(refused[0]) and broken.name in str(refused[0]) and ".py" in str(refused[0])
    assert all(ahead.is_done(ahead.launch_job(kernel)) for kernel in kernels[1:])


SCRIPTS = {
    "dies": ("import sys; print('out of luck', file=sys.stderr); sys.exit(7)", "died \\(status 7\\):\nout of luck"),
    "is killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "died \\(status -9\\)"),
    "hangs": ("import time; time.sleep(600)", "has not answered for 0.5 s"),
    "babbles": ("import os; os.write(1, b'x' * 8 + b'y' * 100); import time; time.sleep(600)", "answer|died"),
    "answers something else": (
        "import sys, pickle, struct, time; d = pickle.dumps(5)\n"
        "sys.stdout.buffer.write(struct.pack('<Q', len(d)) + d)\n"
        "sys.stdout.flush(); time.sleep(600)",
        "answered '5'",
    ),
}


@pytest.mark.parametrize("fault", SCRIPTS)
def test_a_worker_that_fails_is_one_error_and_the_parent_goes_on(fault, kernels, tmp_path, monkeypatch, caplog):
    code, words = SCRIPTS[fault]
    script = tmp_path / "worker.py"
    script.write_text(code)
    monkeypatch.setattr(workers.TritonProcess, "script", str(script))
    monkeypatch.setattr(workers, "LIMIT", 0.5 if fault in ("hangs", "babbles") else 60.0)
    with ProcessGroup() as group, pytest.raises(workers.WorkerLost, match=words):
        workers.compile_triton(ahead.launch_job(kernels[0]), group)
    with caplog.at_level(logging.WARNING, "staxlab.build"):
        assert triton_builds.compile_kernels(kernels[:2]) == {}
    assert caplog.text.count("it is compiled without a worker") == 2
    assert compile.aot_compile(kernels[0])["ptx"], "the parent can always compile itself"


def test_a_worker_that_fails_once_is_replaced(kernels, tmp_path, monkeypatch):
    good = workers.TritonProcess.script
    script = tmp_path / "worker.py"
    script.write_text("raise SystemExit(1)")
    monkeypatch.setattr(workers.TritonProcess, "script", str(script))
    triton_builds.compile_kernels(kernels)
    monkeypatch.setattr(workers.TritonProcess, "script", good)
    triton_builds.compile_kernels(kernels)
    assert all(ahead.is_done(ahead.launch_job(kernel)) for kernel in kernels)


def test_an_abandoned_job_ends_its_worker(kernels, tmp_path, monkeypatch):
    script = tmp_path / "worker.py"
    script.write_text(f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    monkeypatch.setattr(workers.TritonProcess, "script", str(script))
    group, failures = ProcessGroup(), []

    def run() -> None:
        try:
            workers.compile_triton(ahead.launch_job(kernels[0]), group)
        except BaseException as error:
            failures.append(type(error))

    thread = threading.Thread(target=run)
    thread.start()
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.02)
    group.kill()
    thread.join(timeout=30)
    assert failures == [Abandoned]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


# What a worker compiles is executed there: this text starts a process, as Triton starts an assembler, and waits for it.
ORPHAN = """
import os, time
from staxlab.codegen.triton.worker import write_frame
from staxlab.runtime import workers
process = workers.TritonProcess()
source = "import os, subprocess; c = subprocess.Popen(['sleep', '600']); os.write(2, b'%d ' % c.pid); c.wait()"
write_frame(process.process.stdin, {"environment": {}, "store": None, "source": source, "path": "<p>", "module": "m"})
while not (words := os.pread(process.complaints.fileno(), 100, 0)).endswith(b" "):
    time.sleep(0.05)
print(process.process.pid, int(words), flush=True)
time.sleep(600)
"""


def test_a_worker_ends_with_its_parent_however_that_ends(repository):
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN], env=environment, stdout=subprocess.PIPE, text=True)
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.kill()
    parent.communicate()
    from tests.runtime.test_build_interrupted import alive

    until = time.monotonic() + 60
    while any(map(alive, pids)):
        assert time.monotonic() < until, "the worker outlived its parent"
        time.sleep(0.05)


FORKED = """
import os, sys, threading, time
from staxlab.runtime import workers
from tests.runtime.test_build_interrupted import alive
def pid():
    thread = threading.current_thread()
    thread.process = thread.process or workers.TritonProcess()
    return thread.process.process.pid
first = workers.pool().submit(pid).result()
child = os.fork()
if child == 0:
    os._exit(0 if not workers._pools else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
time.sleep(0.5)
sys.exit(status or not (alive(first) and workers.pool().submit(pid).result() == first))
"""


def test_a_forked_child_leaves_the_parents_processes_alone(repository):
    environment = {**os.environ, "PYTHONPATH": str(repository), "STAXLAB_BUILD_WORKERS": "1"}
    done = subprocess.run([sys.executable, "-c", FORKED], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_build_for_a_device_compiles_ahead_what_it_will_launch(kernels, monkeypatch):
    """What ``build`` does where there is a GPU, up to the launch."""
    from staxlab.codegen.kernel import KernelSet
    from staxlab.options import Options
    from staxlab.runtime import build

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    launchers = build.build(KernelSet(tuple(kernels)), Options(), kernels[0].device)
    assert set(launchers) == {kernel.name for kernel in kernels}
    assert {task.language for task in launchers.report.compiled} == {"triton"}
    assert len(launchers.report.compiled) == len(kernels)
    broken = replace(kernels[0], lines=(*kernels[0].lines, Line("    tl.no_such_function(xnumel)")))
    other = replace(kernels[1], lines=(*kernels[1].lines, Line("    # another text")))
    with pytest.raises(BuildError, match="no_such_function"):
        build.build(KernelSet((broken, other)), Options(), kernels[0].device)


def test_frames_come_through_a_pipe_that_takes_them_in_pieces():
    class Pipe:
        def __init__(self):
            self.data = b""

        def write(self, data):
            self.data += bytes(data[:7])
            return min(len(data), 7)

        def flush(self):
            pass

        def read(self, count):
            part, self.data = self.data[: min(count, 5)], self.data[min(count, 5) :]
            return part

    pipe = Pipe()
    worker.write_frame(pipe, {"source": "x" * 1000})
    worker.write_frame(pipe, 7)
    assert worker.read_frame(pipe) == {"source": "x" * 1000} and worker.read_frame(pipe) == 7
    with pytest.raises(EOFError):
        worker.read_frame(pipe)
