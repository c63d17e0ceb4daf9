"""What the cache survives: many processes at once, processes that die, forks, full disks, homes that cannot be written.

Most of this runs in processes that import the package once and then fork, so that many short lives cost little.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from staxlab.runtime import cache_entries, cache_format
from tests.runtime.cache_support import start

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

#: Functions whose kernels all differ; a child compiles those it is told to and compares with PyTorch.
FUNCTIONS = """
import os, random, signal, sys, time, warnings
import torch, staxlab

def function(number):
    def f(x):
        return torch.relu(x - number) * 3 + x.sum(-1, keepdim=True)
    return f

def check(numbers):
    x = torch.arange(24.0).reshape(4, 6)
    for number in numbers:
        f = function(number)
        assert torch.equal(staxlab.compile(f, strict_native=True)(x), f(x)), number
"""


def run(program: str, directory: Path, *arguments: str, timeout: float = 300, **variables: str) -> str:
    """Run a program in a process of its own with ``directory`` as its cache; what it prints."""
    environment = {**os.environ, "STAXLAB_CACHE_DIR": str(directory), **variables}
    command = [sys.executable, "-c", FUNCTIONS + textwrap.dedent(program), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def counting_compiler(where: Path) -> tuple[Path, Path]:
    """A compiler that notes the hash of every kernel it compiles, and the notes."""
    compiler, notes = where / "g++-counting", where / "notes"
    compiler.write_text(
        f'#!/bin/sh\ncase " $* " in *" -shared "*)\n'
        f'for a in "$@"; do case "$a" in *.cpp) sha256sum < "$a" >> {notes};; esac; done;;\nesac\n'
        f'exec {shutil.which("g++")} "$@"\n'
    )
    compiler.chmod(0o755)
    return compiler, notes


AT_ONCE = """
    processes, functions = int(sys.argv[1]), int(sys.argv[2])
    reader, writer = os.pipe()
    children = []
    for place in range(processes):
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)  # until the parent closes its end: all start together
            order = list(range(functions))
            random.Random(place % 3).shuffle(order)
            status = 1
            try:
                check(order)
                status = 0
            finally:
                sys.stdout.flush()
                os._exit(status)
        children.append(child)
    os.close(writer)
    print([os.waitpid(child, 0)[1] for child in children])
"""


@pytest.mark.parametrize(
    ("processes", "functions"),
    [pytest.param(4, 3, marks=pytest.mark.slow), pytest.param(16, 20, marks=pytest.mark.nightly)],
)
def test_many_processes_compile_every_kernel_once(cache_dir, tmp_path, processes, functions):
    """On an empty cache, all at the same time, some of them in the same order."""
    compiler, notes = counting_compiler(tmp_path)
    printed = run(AT_ONCE, cache_dir, str(processes), str(functions), STAXLAB_CXX=str(compiler), timeout=1500)
    assert printed.strip() == str([0] * processes)
    compiled = notes.read_text().split("-\n")[:-1]
    assert len(compiled) == len(set(compiled)) == functions
    libraries = [found for found in cache_entries.walk(cache_dir) if found.kind == "kernel"]
    assert len(libraries) == functions
    assert all(cache_format.unpack(found.name, found.path.read_bytes()).state == "sound" for found in libraries)
    assert not any((cache_dir / "locks").iterdir())


# --- Kill -9 ----------------------------------------------------------------------------------------------------------

EVERY_LINE = """
import json, signal
NAME, CONTENT = "plan-" + "7" * 64, bytes(range(256)) * 40

def work():
    with cache.locked(NAME):
        if cache.read_verified(NAME) is None:
            cache.write_verified(NAME, CONTENT, title="a plan")

def lives_until(line):
    '''Fork a child that kills itself at the given line of the store; how many lines it ran if it got to the end.'''
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        ran = 0
        def trace(frame, event, argument):
            nonlocal ran
            if not any(part in frame.f_code.co_filename for part in ("/runtime/cache", "/staxlab/files.py")):
                return None
            if event == "line":
                ran += 1
                if ran == line:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace
        sys.settrace(trace)
        work()
        sys.settrace(None)
        os.write(writer, str(ran).encode())
        os._exit(0)
    os.close(writer)
    status = os.waitpid(child, 0)[1]
    said = os.read(reader, 20)
    os.close(reader)
    return status, int(said or 0)

work()  # what only a first write does (a look at the size, a sweep) is done
cache.clear()
from staxlab.runtime import cache_upkeep, cache_entries
status, lines = lives_until(0)
assert status == 0 and lines > 50, (status, lines)
killed = left = half = 0
for line in range(1, lines + 1):
    cache.clear()
    status, _ = lives_until(line)
    killed += status == signal.SIGKILL
    found = cache_upkeep.verify()
    assert found.clean, (line, found.findings)
    left += len(found.findings)
    half += any(name.startswith(".writing-") for name in os.listdir(cache.directory()))
    work()  # must not wait for the dead process's lock
    assert cache.read_verified(NAME) == CONTENT, line
    assert cache.info().entries == 1
print(json.dumps([lines, killed, left, half]))
"""


def test_a_process_may_die_at_every_line_of_the_store(cache_dir, tmp_path):
    import json

    process = start(EVERY_LINE, cache_dir, stdout=subprocess.PIPE, text=True)
    printed = process.communicate(timeout=300)[0]
    assert process.returncode == 0
    lines, killed, left, half = json.loads(printed)
    assert killed == lines > 50
    assert left > 0 < half, "no lock and no half-written file was ever left: nothing was tested"


KILLED = """
    import json, shutil
    from staxlab.runtime import cache, cache_upkeep

    rounds, seed, directory = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    chance = random.Random(seed)

    def child(numbers):
        made = os.fork()
        if made == 0:
            status = 1
            try:
                check(numbers)
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        return made

    def empty():
        shutil.rmtree(directory)
        os.mkdir(directory, 0o700)

    begun = time.monotonic()
    assert os.waitpid(child([1, 2, 3]), 0)[1] == 0
    whole = time.monotonic() - begun
    killed = finished = left = half = 0
    for number in range(rounds):
        if number % 4 == 0:
            empty()
        numbers = chance.sample(range(6), 3)
        victim = child(numbers)
        time.sleep(chance.uniform(0, whole))
        os.kill(victim, signal.SIGKILL)
        status = os.waitpid(victim, 0)[1]
        killed, finished = killed + (status == 9), finished + (status == 0)
        assert status in (0, 9), status
        found = cache_upkeep.verify()
        assert found.clean, found
        files = [os.path.basename(f) for _, _, names in os.walk(directory) for f in names]
        half += any(name.startswith(".writing-") for name in files)
        left += any(f.state == "left behind" for f in found.findings)
        assert os.waitpid(child(numbers), 0)[1] == 0, f"round {number}: the run after a killed one is wrong"
        assert cache_upkeep.verify().clean
    print(json.dumps({"killed": killed, "finished": finished, "locks left": left, "half-written left": half}))
"""


@pytest.mark.parametrize(
    "rounds", [pytest.param(4, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.nightly)]
)
def test_the_run_after_a_killed_one_is_right(cache_dir, rounds):
    """Killed at random moments from the start of capture to the last kernel; nothing half-written carries a name."""
    printed = run(KILLED, cache_dir, str(rounds), "5", str(cache_dir), timeout=3000)
    print(printed)
    assert '"killed": 0' not in printed


# --- Forks, spawned processes, workers of a DataLoader ----------------------------------------------------------------

FORKED = """
    from torch.utils.data import DataLoader, Dataset

    def two_kernels(x, n):
        y = torch.softmax(x * n, -1)
        return (y @ y.t()).cumsum(0) + n, torch.relu(x).sum(0)

    x = torch.arange(24.0).reshape(4, 6)
    compiled = staxlab.compile(two_kernels)
    large = torch.ones(400, 2000)
    summed = staxlab.compile(lambda x: (x * 2).sum(-1))

    def right(n):
        for ours, theirs in zip(compiled(x, n), two_kernels(x, n)):
            torch.testing.assert_close(ours, theirs)

    right(2)  # compiled here: its threads, of OpenMP and of the build, are none of the child's
    assert summed(large)[0] == 4000
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(120)
            right(2)
            right(5)  # compiled in the child, several kernels side by side
            assert summed(large)[0] == 4000
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    right(7)  # the parent goes on

    class Rows(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, place):
            signal.alarm(120)
            return compiled(x + place, 2)[1] + staxlab.compile(function(place))(x).sum()

    loaded = torch.stack([row for row in DataLoader(Rows(), batch_size=None, num_workers=2)])
    expected = torch.stack([two_kernels(x + n, 2)[1] + function(n)(x).sum() for n in range(6)])
    torch.testing.assert_close(loaded, expected)
    right(9)
    print("right")
"""


@pytest.mark.slow
def test_forked_children_and_workers_run_and_compile(cache_dir):
    assert run(FORKED, cache_dir).strip() == "right"


SPAWNED = (
    FUNCTIONS
    + """
from torch.utils.data import DataLoader, Dataset

def doubled(x):
    return torch.relu(x) * 2 + x.mean(-1, keepdim=True)

compiled = staxlab.compile(doubled)

class Rows(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, place):
        return compiled(torch.arange(12.0).reshape(3, 4) - place)

if __name__ == "__main__":
    compiled(torch.ones(3, 4))
    loader = DataLoader(Rows(), batch_size=None, num_workers=1, multiprocessing_context="spawn")
    for place, row in enumerate(loader):
        assert torch.equal(row, doubled(torch.arange(12.0).reshape(3, 4) - place))
    print("right")
"""
)


@pytest.mark.slow
def test_spawned_workers_run(cache_dir, tmp_path):
    (tmp_path / "program.py").write_text(SPAWNED)
    environment = {**os.environ, "STAXLAB_CACHE_DIR": str(cache_dir)}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and done.stdout.strip() == "right", done.stderr[-4000:]


@pytest.mark.slow
def test_threads_compile_side_by_side(cache_dir, tmp_path, monkeypatch):
    import torch

    import staxlab
    from staxlab.runtime import build, toolchain

    compiler, notes = counting_compiler(tmp_path)
    monkeypatch.setenv("STAXLAB_CXX", str(compiler))
    build.clear()
    failed, x = [], torch.arange(24.0).reshape(4, 6)

    def work(place: int) -> None:
        try:
            for number in (place % 4, (place + 1) % 4):
                function = eval(
                    f"lambda x: torch.relu(x - {number + 70}) * 3 + x.sum(-1, keepdim=True)", {"torch": torch}
                )
                assert torch.equal(staxlab.compile(function, strict_native=True)(x), function(x))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    toolchain.clear()
    assert not failed
    compiled = notes.read_text().split("-\n")[:-1]
    assert len(compiled) == len(set(compiled)) == 4


# --- Places that cannot be written ------------------------------------------------------------------------------------

HOMELESS = """
    caught = []
    warnings.showwarning = lambda message, category, file, line, *_: caught.append((str(message), file))
    check([1, 2])
    print(staxlab.explain(function(3), torch.ones(4, 6)).wrapper is not None)
    (said,) = {text for text, _ in caught}
    assert all(file == "<string>" for _, file in caught), caught
    assert os.environ["HOME"] in said and "for this process" in said, said
"""


def mounted(script: str, *arguments: str) -> subprocess.CompletedProcess:
    """Run a shell script where it may mount file systems that nobody else sees."""
    return subprocess.run(["unshare", "-m", "sh", "-ec", script, "sh", *arguments], capture_output=True, text=True)


def can_mount() -> bool:
    try:
        return os.getuid() == 0 and mounted("mount -t tmpfs none /mnt").returncode == 0
    except (OSError, AttributeError):
        return False


@pytest.mark.slow
def test_a_home_that_cannot_be_written_is_no_obstacle(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(FUNCTIONS + textwrap.dedent(HOMELESS).replace('"<string>"', repr(str(program))))
    unset = "unset STAXLAB_CACHE_DIR XDG_CACHE_HOME\n"
    home = tmp_path / "home"
    home.mkdir()
    if can_mount():
        script = 'mount -t tmpfs none "$1"; mount -o remount,ro none "$1"; HOME="$1" "$2" "$3"; ls -A "$1"'
        done = mounted(unset + script, str(home), sys.executable, str(program))
    else:
        script = 'HOME="$1" "$2" "$3"'
        home = Path("/dev/null/home")
        command = ["sh", "-ec", unset + script, "sh", str(home), sys.executable, str(program)]
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "True\n", done.stdout + done.stderr


FULL = """
    from staxlab.errors import BuildError
    import tempfile
    cache_directory, temporary = sys.argv[1:]
    assert tempfile.gettempdir() == temporary  # asked for the first time on a full disk, Python would go elsewhere

    def fill(where):
        with open(os.path.join(where, "filler"), "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def children(numbers):
        child = os.fork()
        if child == 0:
            caught = []
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, *_: caught.append(str(message))
            try:
                check(numbers)
            except BuildError as error:
                print(f"BuildError: {error.remedy}", flush=True)
                os._exit(3)
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", flush=True)
                os._exit(1)
            for text in caught:
                print(text, flush=True)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    from staxlab.runtime import cache
    assert children([1]) == 0
    kept = {e.name for e in cache.entries()}
    fill(cache_directory)
    print("-- full cache")
    assert children([1, 2, 3]) == 0
    assert {e.name for e in cache.entries()} == kept
    os.unlink(os.path.join(cache_directory, "filler"))
    print("-- space again")
    assert children([2]) == 0
    assert len({e.name for e in cache.entries() if e.kind == "kernel"}) == 2
    fill(temporary)
    print("-- full temporary directory")
    status = children([4])
    assert status == 3, status
    os.unlink(os.path.join(temporary, "filler"))
    assert children([4]) == 0
"""


@pytest.mark.slow
def test_a_full_disk_loses_nothing_and_space_brings_everything_back(tmp_path):
    if not can_mount():
        pytest.skip("needs the right to mount a small file system")
    (tmp_path / "cache").mkdir()
    (tmp_path / "temporary").mkdir()
    program = tmp_path / "program.py"
    program.write_text(FUNCTIONS + textwrap.dedent(FULL))
    script = (
        'mount -t tmpfs -o size=1m,mode=0700 none "$1"; mount -t tmpfs -o size=4m none "$2"\n'
        'STAXLAB_CACHE_DIR="$1" TMPDIR="$2" "$3" "$4" "$1" "$2"'
    )
    done = mounted(script, str(tmp_path / "cache"), str(tmp_path / "temporary"), sys.executable, str(program))
    assert done.returncode == 0, done.stdout + done.stderr
    _, full, again, temporary = done.stdout.split("-- ")[0:4]
    assert full.count("No space left on device") == 1 and "staxlab cache clear" in full
    assert again.strip() == "space again"
    assert "BuildError: free some space" in temporary and str(tmp_path / "temporary") in temporary
