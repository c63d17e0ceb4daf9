"""Calling somebody else's function: with a time limit, and with its exceptions caught and described.

A student's function may loop forever, recurse without end, raise anything or call ``sys.exit``. None of this may end
the checker, and the reason must reach the student together with the input that caused it.

The call runs in a thread of its own. When time is up the thread gets an exception raised inside it, which ends any
loop written in Python. One may not be enough: Python drops an exception that arrives inside a callback of the garbage
collector or a ``__del__``, and a loop that fills memory spends much of its time there. So it is raised again until
the thread has ended. A function that still runs after a grace period (it swallows everything, or sits in a long
library call) no longer holds up the checker, and goes on being interrupted behind it.

A signal would be simpler and works only in the main thread of a Unix process. This protects against accidents. It is no
sandbox: the code runs with the rights of the student's own process, which is where formative checking belongs.
"""

from __future__ import annotations

import contextvars
import ctypes
import linecache
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

DEFAULT_SECONDS = 2.0
GRACE_SECONDS = 0.5
PAUSE_SECONDS = 0.02  # between two exceptions: long enough for one to unwind the function before the next arrives


class TimeLimitExceeded(BaseException):
    """Raised inside a function that used up its time. Not an Exception, so ``except Exception`` lets it pass."""


@dataclass(frozen=True)
class Outcome:
    """What became of a call: a ``value``, or an ``error`` that was raised, or neither because time ran out.

    ``limit`` is the limit it ran under and ``elapsed`` the time it took, both in seconds.
    """

    value: Any = None
    error: BaseException | None = None
    timed_out: bool = False
    limit: float = DEFAULT_SECONDS
    elapsed: float = 0.0

    @property
    def failed(self) -> bool:
        return self.timed_out or self.error is not None

    def reason(self) -> str:
        """One line for the student: what happened, and in which line of their function."""
        if self.timed_out:
            return f"it was still running after {self.limit:.2g} s and was stopped"
        return describe_error(self.error) if self.error is not None else "it returned"


def call(function: Callable[..., Any], *args: Any, seconds: float = DEFAULT_SECONDS, **kwargs: Any) -> Outcome:
    """``function(*args, **kwargs)`` under a time limit in seconds. Raises nothing but KeyboardInterrupt.

    Context variables are those of the caller. Costs one thread start (under 0.1 ms) beside the call itself.
    """
    result: list[Outcome] = []

    def body() -> None:
        try:
            value = function(*args, **kwargs)
            result.append(Outcome(value=value, limit=seconds, elapsed=time.perf_counter() - start))
        except TimeLimitExceeded:
            pass
        except BaseException as error:  # SystemExit and KeyboardInterrupt raised by the function are its own errors
            result.append(Outcome(error=error, limit=seconds, elapsed=time.perf_counter() - start))

    def guarded() -> None:
        # The exception that ends a function may arrive a moment late, in the lines around it.
        try:
            context.run(body)
        except TimeLimitExceeded:
            pass

    start = time.perf_counter()
    context = contextvars.copy_context()
    thread = threading.Thread(target=guarded, name="staxlab-student-code", daemon=True)
    thread.start()
    try:
        thread.join(seconds)
        if thread.is_alive() and not result:
            _end(thread)
    except KeyboardInterrupt:
        _end(thread)
        raise
    return result[0] if result else Outcome(timed_out=True, limit=seconds, elapsed=time.perf_counter() - start)


def collect(
    function: Callable[..., Iterable[Any]], *args: Any, limit: int, seconds: float = DEFAULT_SECONDS
) -> Outcome:
    """Call ``function`` and list at most ``limit + 1`` items of what it returns or yields, all in one time limit.

    One item more than the limit tells the caller that there were too many. A value that cannot be iterated is an
    error of the function.
    """

    def gather() -> list[Any]:
        produced = function(*args)
        if produced is None:
            raise TypeError("it returned None; return a list, or use yield")
        return list(islice(iter(produced), limit + 1))

    return call(gather, seconds=seconds)


def _end(thread: threading.Thread) -> None:
    """Interrupt ``thread`` until it has ended; after the grace period, from a thread of its own."""
    if not _interrupt(thread, PAUSE_SECONDS, rounds=round(GRACE_SECONDS / PAUSE_SECONDS)):
        threading.Thread(
            target=_interrupt, args=(thread, GRACE_SECONDS), name="staxlab-interrupts", daemon=True
        ).start()


def _interrupt(thread: threading.Thread, pause: float, rounds: int | None = None) -> bool:
    """Raise TimeLimitExceeded in ``thread`` every ``pause`` seconds; whether it ended within ``rounds`` of them."""
    for _ in count() if rounds is None else range(rounds):
        if thread.ident is not None and thread.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident), ctypes.py_object(TimeLimitExceeded)
            )
            thread.join(pause)
        if not thread.is_alive():
            return True
    return False


def describe_error(error: BaseException) -> str:
    """``ZeroDivisionError: division by zero, at line 3: return 1 / (n - 4)``, the line being the function's own."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    # The student's own line helps; a line deep inside a library it called does not.
    own = [f for f in frames if "site-packages" not in f.filename]
    if own:
        frame = own[-1]
        line = (frame.line or linecache.getline(frame.filename, frame.lineno or 0)).strip()
        text += f", at line {frame.lineno}" + (f": {line}" if line else "")
    return text
