"""Builds that are interrupted, killed or fail: no compiler outlives them, and the next run is right."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from staxlab.errors import BuildError
from staxlab.runtime import build_report, workers
from staxlab.runtime.processes import Abandoned, ProcessGroup

pytestmark = pytest.mark.skipif(not hasattr(os, "killpg"), reason="no process groups here")

# A compiler that is slow while the file $SLOW is there: it starts a child, as g++ starts cc1plus, and notes both.
SLOW_COMPILER = """#!/bin/sh
case "$*" in *-shared*) if [ -e "$SLOW" ]; then
  sleep 600 & echo $! > "$SLOW.child.$$"; echo $$ > "$SLOW.compiler.$$"; wait
fi;; esac
exec {compiler} "$@"
"""

PROGRAM = """
import torch, staxlab
def f(x, w):
    for k in range(2):
        x = torch.tanh(x @ w) * k + 1
    return x
torch.manual_seed(0)
x, w = torch.randn(16, 16), torch.randn(16, 16)
result = staxlab.compile(f, strict_native=True)(x, w)
torch.testing.assert_close(result, f(x, w))
print("right")
"""


class Scene:
    """A fake compiler, a cache, and a program that builds with them in a process of its own."""

    def __init__(self, where: Path, root: Path):
        compiler = shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            pytest.skip("no C++ compiler here")
        self.slow, self.temporary = where / "slow", where / "temporary"
        self.temporary.mkdir()
        script = where / "compiler"
        script.write_text(SLOW_COMPILER.format(compiler=compiler))
        script.chmod(0o755)
        self.environment = {
            **os.environ, "STAXLAB_CXX": str(script), "STAXLAB_CACHE_DIR": str(where / "cache"),
            "TMPDIR": str(self.temporary), "SLOW": str(self.slow), "PYTHONPATH": str(root),
            "STAXLAB_BUILD_WORKERS": "2",
        }  # fmt: skip

    def start(self) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0,
        )  # fmt: skip

    def pids(self) -> list[int]:
        found = []
        for path in self.slow.parent.glob("slow.*.*"):
            words = path.read_text().split()
            found += [int(word) for word in words]
        return found

    def wait_for_compilers(self, process: subprocess.Popen, count: int) -> None:
        until = time.monotonic() + 120
        while len(self.pids()) < 2 * count:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until, "the compilers were never started"
            time.sleep(0.05)

    def all_gone(self) -> bool:
        until = time.monotonic() + 30
        while any(map(alive, self.pids())) or list(self.temporary.glob("staxlab-build-*")):
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True


def alive(pid: int) -> bool:
    """Whether a process runs (one that has ended and waits to be reaped does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        if os.path.isdir("/proc/self"):
            return False
        try:
            os.kill(pid, 0)
        except OSError:
            return False
        return True
    return state not in "ZX"


@pytest.mark.parametrize(
    ("sent", "runs_again"),
    [
        (signal.SIGINT, True),
        pytest.param(signal.SIGTERM, False, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, True, marks=pytest.mark.slow),
    ],
)
def test_no_compiler_outlives_a_signal_and_the_next_run_is_right(sent, runs_again, tmp_path, repository):
    scene = Scene(tmp_path, repository)
    scene.slow.touch()
    process = scene.start()
    scene.wait_for_compilers(process, 2)
    process.send_signal(sent)
    _, complaints = process.communicate(timeout=60)
    assert process.returncode != 0
    if sent == signal.SIGINT:
        assert "KeyboardInterrupt" in complaints
    assert len(scene.pids()) == 4 and scene.all_gone()
    if runs_again:
        scene.slow.unlink()
        again = scene.start()
        assert again.communicate(timeout=240)[0].strip() == "right"


def test_a_group_that_is_killed_leaves_neither_process_nor_file():
    with ProcessGroup() as group:
        directory = group.directory()
        failures: list[BaseException] = []

        def run() -> None:
            try:
                group.run([sys.executable, "-c", f"open({str(directory / 'up')!r}, 'w'); import time; time.sleep(600)"])
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        while not (directory / "up").exists():
            time.sleep(0.01)
        group.kill()
        for thread in threads:
            thread.join(timeout=30)
    assert [type(failure) for failure in failures] == [Abandoned, Abandoned]
    assert not directory.exists() and not any(thread.is_alive() for thread in threads)
    with pytest.raises(Abandoned):
        group.run(["true"])


def test_a_command_gets_a_place_for_temporary_files_that_goes_with_it():
    with ProcessGroup() as group:
        status, output, complaints = group.run(["/bin/sh", "-c", 'echo "$TMPDIR"; echo oh >&2; exit 3'])
        assert (status, output.strip(), complaints.strip()) == (3, str(group.directory()), "oh")
    assert not Path(output.strip()).exists()


def test_a_compiler_that_cannot_be_started_is_one_error():
    with ProcessGroup() as group, pytest.raises(BuildError, match="/nowhere/g.. could not be started"):
        group.run(["/nowhere/g++"])


def test_an_interrupted_build_does_not_hurt_that_of_another_thread(monkeypatch):
    """Two builds share the pool; Ctrl-C reaches one of them while both compile."""
    monkeypatch.setenv(build_report.VARIABLE, "2")
    pool, begun = workers.pool(), threading.Barrier(3)
    one, other = ProcessGroup(), ProcessGroup()

    def task(group: ProcessGroup, seconds: str) -> str:
        begun.wait(timeout=60)
        return group.run(["/bin/sh", "-c", f"sleep {seconds}; echo done"])[1].strip()

    interrupted = {"a": pool.submit(task, one, "600")}
    going_on = {"b": pool.submit(task, other, "0.5")}

    class Interrupt:
        interval = 0.01

        def __init__(self, total: int):
            pass

        def show(self, done: int) -> None:
            begun.wait(timeout=60)
            raise KeyboardInterrupt

        def end(self) -> None:
            pass

    with monkeypatch.context() as patch, one, pytest.raises(KeyboardInterrupt):
        patch.setattr(workers, "Progress", Interrupt)
        workers.gather(interrupted)
    assert one.killed and isinstance(interrupted["a"].exception(timeout=30), Abandoned)
    with other:
        assert workers.gather(going_on) == {"b": "done"}


def test_a_failure_ends_what_else_is_under_way_and_cancels_the_rest(monkeypatch):
    monkeypatch.setenv(build_report.VARIABLE, "2")
    pool, group = workers.pool(), ProcessGroup()
    both = threading.Barrier(2)

    def fails() -> None:
        both.wait(timeout=60)
        raise BuildError("the compiler refused kernel 1")

    def goes_on() -> None:
        both.wait(timeout=60)
        group.run(["/bin/sh", "-c", "sleep 600"])

    futures = {"slow": pool.submit(goes_on), "bad": pool.submit(fails)}
    futures |= {f"later {n}": pool.submit(group.run, ["/bin/sh", "-c", "sleep 600"]) for n in range(4)}
    with group, pytest.raises(BuildError, match="refused kernel 1"):
        workers.gather(futures)
    assert isinstance(futures["slow"].exception(timeout=30), Abandoned)
    first, *others = (futures[f"later {n}"] for n in range(4))  # the worker that is free may have begun the first
    assert first.cancelled() or isinstance(first.exception(timeout=30), Abandoned)
    assert all(future.cancelled() for future in others)


FORKED = """
import os, sys
from staxlab.runtime import build_report, workers
from staxlab.runtime.processes import ProcessGroup
def answer(group):
    return workers.gather({"a": workers.pool().submit(lambda: group.run(["echo", "hello"])[1])})["a"].strip()
with ProcessGroup() as group:
    assert answer(group) == "hello"
    child = os.fork()
    if child == 0:
        try:
            assert group.killed, "the group is the parent's"
            with ProcessGroup() as own:
                assert answer(own) == "hello"
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert answer(group) == "hello", "the child took the parent's compilers with it"
sys.exit(status)
"""


def test_a_forked_child_has_workers_of_its_own(repository):
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    done = subprocess.run([sys.executable, "-c", FORKED], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_a_number_of_workers_that_is_none(monkeypatch, value):
    from staxlab.errors import OptionError

    monkeypatch.setenv(build_report.VARIABLE, value)
    with pytest.raises(OptionError, match="STAXLAB_BUILD_WORKERS is '.*', and must be a whole number above 0"):
        build_report.worker_count()
