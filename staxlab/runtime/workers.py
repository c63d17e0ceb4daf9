"""The workers of a build: threads, and for Triton a process behind each (Section 11.2).

Which kind of worker is right depends on where the time goes. Compiling C++ is waiting for a process of somebody else's,
and a waiting thread has let go of the interpreter's lock: *threads* do. Compiling Triton is in good part Python, which
one thread at a time can run: *processes* are needed. Both are one pool here: a worker is a thread, and a thread that
gets a Triton kernel starts a process (:mod:`staxlab.codegen.triton.worker`) and waits for it as for any compiler. So
the number of workers bounds everything that compiles at once, and what comes first is begun first: the greedy schedule
of Proposition 11.2.

The pool is kept for the life of the process, since builds come again and again, and is made when first needed.
Processes that had nothing to do for :data:`IDLE` seconds end. Threads are daemons: a program may end while they wait.

A worker that dies, hangs or answers nonsense is ended, and its kernel reported as :class:`WorkerLost`; the next kernel
gets a new process. Whoever asked can still compile the kernel alone.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import Any

from ..errors import BuildError
from .build_progress import Progress
from .build_report import worker_count
from .processes import Abandoned, ProcessGroup

IDLE = 60.0  # seconds after which a process without work ends
LIMIT = 600.0  # seconds that one kernel may take before its worker counts as hanging
MOST_WORDS = 4000


class WorkerLost(BuildError):
    """A worker process died or did not answer. The kernel may be fine: it can be compiled in this process."""


class _Worker(threading.Thread):
    """One lane of the pool."""

    def __init__(self, pool: Pool, lane: int):
        super().__init__(name=f"staxlab-build-{lane}", daemon=True)
        self.pool, self.lane = pool, lane
        self.process: TritonProcess | None = None

    def run(self) -> None:
        while True:
            try:
                task = self.pool.tasks.get(timeout=IDLE if self.process else None)
            except queue.Empty:
                self.release()
                continue
            if task is None:
                return self.release()
            future, function, arguments = task
            if future.set_running_or_notify_cancel():
                try:
                    result = function(*arguments)
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
            del task, future, function, arguments  # an idle worker keeps nothing alive

    def release(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()


class Pool:
    """``count`` workers that take tasks in the order of submission. Threads start as tasks come."""

    def __init__(self, count: int):
        self.count = count
        self.tasks: queue.Queue = queue.Queue()
        self.workers: list[_Worker] = []
        self._lock = threading.Lock()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
        future: Future = Future()
        with self._lock:
            self.tasks.put((future, function, arguments))
            if len(self.workers) < min(self.count, len(self.workers) + self.tasks.qsize()):
                self.workers.append(_Worker(self, len(self.workers)))
                self.workers[-1].start()
        return future

    def end(self) -> None:
        """Let the workers go once they are done with what was submitted."""
        with self._lock:
            for _ in self.workers:
                self.tasks.put(None)


_pools: dict[int, Pool] = {}
_making = threading.Lock()


def pool() -> Pool:
    """The pool of this process, for the number of workers that is wanted now. OptionError as :func:`worker_count`."""
    count = worker_count()
    with _making:
        if count not in _pools:
            _pools[count] = Pool(count)
        return _pools[count]


def gather(futures: Mapping[Any, Future]) -> dict[Any, Any]:
    """The results, by name. The first failure is raised, or Ctrl-C, and what was not begun never is: of several
    failures, that of the kernel submitted first. What is under way ends with the group of its build."""
    progress = Progress(len(futures))
    try:
        while True:
            finished, pending = wait_for(futures.values(), timeout=progress.interval, return_when=FIRST_EXCEPTION)
            progress.show(sum(future.done() for future in futures.values()))
            if not pending or any(future.exception() is not None for future in finished):
                break
    finally:
        progress.end()
        for future in futures.values():
            future.cancel()
    found = {}
    for name, future in futures.items():
        if not future.done() or future.cancelled() or isinstance(future.exception(), Abandoned):
            continue
        found[name] = future.result()
    return found


def clear() -> None:
    """Let all workers end, when they are done with what they have. The next build starts new ones."""
    with _making:
        for one in _pools.values():
            one.end()
        _pools.clear()


def _after_fork() -> None:
    """Threads do not survive a fork, and their processes answer the parent alone."""
    global _making
    _making = threading.Lock()
    for one in _pools.values():
        for thread in one.workers:
            if thread.process is not None:
                thread.process.forget()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# -- Triton ------------------------------------------------------------------------------------------------------------


def compile_triton(job: dict[str, Any], group: ProcessGroup) -> str:
    """Have this worker's process compile a Triton kernel (:mod:`staxlab.codegen.triton.ahead`); Triton's key of it.

    Raises BuildError with the compiler's words, WorkerLost where the process is gone, Abandoned where the group was
    killed. Called outside a worker, it starts a process for this kernel alone.
    """
    thread = threading.current_thread()
    own = isinstance(thread, _Worker)
    process = (thread.process if own else None) or TritonProcess()
    if own:
        thread.process = process
    try:
        with group.hosting(process.kill):
            answer = process.ask(job)
    except BaseException:
        process.kill()
        if own:
            thread.process = None
        raise
    if not own:
        process.kill()
    if "error" in answer:
        raise BuildError(
            f"Triton could not compile {job['name']} for sm_{job['capability']}: {answer['kind']}: "
            f"{answer['error'][:MOST_WORDS]}",
            remedy=f"the source is in {job['path']}",
        )
    return answer["key"]


class TritonProcess:
    """A process that compiles Triton kernels, one after the other. WorkerLost if it cannot be started."""

    script = str(Path(__file__).parent.parent / "codegen" / "triton" / "worker.py")

    def __init__(self) -> None:
        self.complaints = tempfile.TemporaryFile()
        surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        surroundings.pop("TRITON_INTERPRET", None)  # it compiles, whatever this process does
        command = [sys.executable, "-P", self.script]
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.complaints, bufsize=0,
                env=surroundings, process_group=0 if hasattr(os, "killpg") else None,
            )  # fmt: skip
        except (OSError, TypeError) as error:  # TypeError: an embedded interpreter has no executable
            raise WorkerLost(f"no worker process could be started: {error}") from error

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """The answer to a job: its "key", or its "error" and the "kind" of it. WorkerLost if there is none."""
        from ..codegen.triton import worker as triton_worker  # late: C++ kernels need nothing of Triton's generator

        deadline = time.monotonic() + LIMIT
        try:
            triton_worker.write_frame(self.process.stdin, job)
            answer = triton_worker.read_frame(_Timed(self.process.stdout, deadline))
        except TimeoutError:
            raise WorkerLost(f"the worker that compiles {job['name']} has not answered for {LIMIT:g} s") from None
        except Exception as error:  # the pipe is closed, or what came is no answer
            self.kill()
            status = self.process.returncode
            raise WorkerLost(f"the worker that compiles {job['name']} died (status {status}){self._words()}") from error
        if not isinstance(answer, dict) or not answer.keys() & {"key", "error"}:
            raise WorkerLost(f"the worker that compiles {job['name']} answered {str(answer)[:200]!r}")
        return answer

    def _words(self) -> str:
        self.complaints.seek(0)
        words = self.complaints.read().decode(errors="replace").strip()
        return f":\n{words[-MOST_WORDS:]}" if words else ""

    def kill(self) -> None:
        """End the process and what it has started."""
        if self.process.returncode is None:
            with contextlib.suppress(OSError):
                if hasattr(os, "killpg"):
                    os.killpg(self.process.pid, signal.SIGKILL)
                else:
                    self.process.kill()
            self.process.wait()

    def forget(self) -> None:
        """In a forked child: let go of the pipes, so that the process ends with the parent."""
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.returncode = 0  # not a child of this process: nothing to wait for


class _Timed:
    """The reading end of a pipe, until a moment. TimeoutError after that."""

    def __init__(self, pipe: Any, deadline: float):
        self.pipe, self.deadline = pipe, deadline

    def read(self, count: int) -> bytes:
        left = self.deadline - time.monotonic()
        if left <= 0 or not select.select([self.pipe], [], [], left)[0]:
            raise TimeoutError
        return self.pipe.read(min(count, 1 << 16))  # a nonsensical length must not be believed
