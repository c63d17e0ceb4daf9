"""Starting compilers so that none outlives the build that wants it (Section 11.2).

An external compiler is a tree of processes: ``g++`` starts ``cc1plus``, an assembler and a linker. Whoever ends a build
must end the tree, and whoever is killed cannot end anything. So the compilers of a build share one *process group*, and
the group has a guardian: a shell that does nothing but wait for the end of a pipe whose other end this process holds.
However this process ends, by an exception, by a signal or by a power that nobody can catch, the system closes the pipe;
the guardian then kills its group and removes the group's temporary files. Nothing has to be recorded, and nothing is
left to a handler that might not run.

A group of its own also means that Ctrl-C in a terminal, which goes to the foreground group, does not reach a compiler
in the middle of writing: the build ends it, when it has decided to.

Where there are no process groups (Windows), compilers are ended one by one, as far as this process gets to do it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ..errors import BuildError

_GROUPS = hasattr(os, "killpg")
# TERM first, which the guardian itself ignores: then no compiler writes into what is removed.
_GUARDIAN = "trap '' INT TERM HUP; read -r end; kill -TERM 0; rm -rf -- \"$1\"; kill -KILL 0"


class Abandoned(Exception):
    """What was to be compiled is not wanted any more: its build failed or was interrupted."""


_alive: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()


class ProcessGroup:
    """The compilers of one build. A context manager: at its end no process of the group is left, and no file.

    :meth:`run` may be called from several threads, :meth:`kill` from any. Raises BuildError where a command cannot be
    started, Abandoned once the group was killed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._killed = False
        self._directory: Path | None = None
        self._guardian: subprocess.Popen | None = None
        self._running: set[subprocess.Popen] = set()
        self._guests: set[Callable[[], None]] = set()
        _alive.add(self)

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()

    @property
    def killed(self) -> bool:
        return self._killed

    def directory(self) -> Path:
        """A private directory for the files of this group, which goes with it."""
        with self._lock:
            return self._made()

    def run(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> tuple[int, str, str]:
        """Run a command to its end: exit status, what it printed, what it complained. Its temporary files are in
        :meth:`directory`."""
        with self._lock:
            if self._killed:
                raise Abandoned
            directory = self._made()
            surroundings = {**(os.environ if environment is None else environment), "TMPDIR": str(directory)}
            group = {"process_group": self._guardian.pid} if self._guardian is not None else {}
            try:
                process = subprocess.Popen(
                    command, cwd=directory, env=surroundings, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE, text=True, errors="replace", **group,
                )  # fmt: skip
            except OSError as error:
                raise BuildError(f"{command[0]} could not be started: {error}") from error
            self._running.add(process)
        try:
            output, complaints = process.communicate()
        except BaseException:  # Ctrl-C, in the main thread
            self.kill()
            process.wait()
            raise
        finally:
            with self._lock:
                self._running.discard(process)
        if self._killed:
            raise Abandoned
        return process.returncode, output, complaints

    @contextlib.contextmanager
    def hosting(self, end: Callable[[], None]) -> Iterator[None]:
        """While this lasts, :meth:`kill` calls ``end`` as well: for a process that works for this build, and is not of
        its group. Abandoned if the group was killed before, or meanwhile."""
        with self._lock:
            if self._killed:
                raise Abandoned
            self._guests.add(end)
        try:
            yield
        except Exception as error:
            if self._killed:
                raise Abandoned from error
            raise
        finally:
            with self._lock:
                self._guests.discard(end)

    def kill(self) -> None:
        """End every process of the group, and remove its files. Later calls change nothing."""
        with self._lock:
            self._killed = True
            guardian, self._guardian = self._guardian, None
            directory, self._directory = self._directory, None
            if guardian is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(guardian.pid, signal.SIGKILL)
                guardian.stdin.close()
                guardian.wait()
            for process in self._running:
                with contextlib.suppress(OSError):
                    process.kill()
            guests, self._guests = self._guests, set()
        for end in guests:
            end()
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)

    def _made(self) -> Path:
        if self._directory is None:
            directory = Path(tempfile.gettempdir()) / f"staxlab-build-{os.urandom(8).hex()}"
            if _GROUPS:
                with contextlib.suppress(OSError):  # without a shell there is no guardian
                    self._guardian = subprocess.Popen(
                        ["/bin/sh", "-c", _GUARDIAN, "staxlab-guardian", str(directory)], process_group=0,
                        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    )  # fmt: skip
            directory.mkdir(mode=0o700)  # not before somebody will remove it
            self._directory = directory
        return self._directory

    def _forget(self) -> None:
        """In a forked child: the group is the parent's. Only the pipe is let go of, so that it ends with the parent."""
        guardian, self._guardian, self._directory, self._killed = self._guardian, None, None, True
        self._lock = threading.Lock()
        self._running = set()
        if guardian is not None:
            guardian.stdin.close()
            guardian.returncode = 0  # not a child of this process: nothing to wait for


def _after_fork() -> None:
    for group in list(_alive):
        group._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
