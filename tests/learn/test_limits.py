"""Calling a student's function: results, exceptions and endless loops all come back as data."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import time

import pytest

from staxlab.learn import limits


def test_a_value_comes_back():
    outcome = limits.call(lambda a, b: a + b, 2, b=3)
    assert outcome.value == 5 and not outcome.failed


def divides(n):
    return 1 // n


def test_an_exception_names_the_students_line():
    outcome = limits.call(divides, 0)
    assert outcome.failed and isinstance(outcome.error, ZeroDivisionError)
    assert "ZeroDivisionError" in outcome.reason() and "return 1 // n" in outcome.reason()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), MemoryError("much"), AssertionError()])
def test_exceptions_that_would_end_the_process_do_not(error):
    def function():
        raise error

    outcome = limits.call(function)
    assert outcome.error is error and type(error).__name__ in outcome.reason()


def test_endless_recursion_is_an_exception():
    def function(n):
        return function(n + 1)

    assert isinstance(limits.call(function, 0, seconds=5).error, RecursionError)


def loops():
    while True:
        pass


def loops_and_swallows_exceptions():
    while True:
        try:
            time.sleep(0.001)
        except Exception:
            pass


def loops_where_exceptions_are_dropped():
    """Ends only at the sixth exception: as in a callback of the garbage collector, those before it go nowhere."""
    for _ in range(5):
        try:
            while True:
                time.sleep(0.001)
        except BaseException:
            pass
    while True:
        pass


def loops_beyond_the_grace_period():
    end = time.perf_counter() + limits.GRACE_SECONDS + 0.1
    while time.perf_counter() < end:
        try:
            time.sleep(0.001)
        except BaseException:
            pass
    while True:
        pass


@pytest.mark.parametrize(
    "function",
    [loops, loops_and_swallows_exceptions, loops_where_exceptions_are_dropped, loops_beyond_the_grace_period],
)
def test_an_endless_loop_is_ended(function):
    before = threading.active_count()
    outcome = limits.call(function, seconds=0.1)
    assert outcome.timed_out and outcome.failed and "still running after 0.1 s" in outcome.reason()
    for _ in range(200):
        if threading.active_count() <= before:
            break
        time.sleep(0.01)
    assert threading.active_count() <= before, "the loop goes on in the background"


def test_an_endless_loop_that_keeps_the_garbage_collector_busy_is_ended(monkeypatch):
    """Exceptions arrive inside the collector's callbacks, where Python drops them (and reports them as unraisable)."""
    dropped = []
    monkeypatch.setattr(sys, "unraisablehook", lambda info: dropped.append(info.exc_type))

    def slow_callback(phase, info):
        sum(range(2000))

    def fills_memory():
        kept = []
        while True:
            kept.append([kept])

    before = threading.active_count()
    gc.callbacks.append(slow_callback)
    try:
        outcome = limits.call(fills_memory, seconds=0.1)
        for _ in range(200):
            if threading.active_count() <= before:
                break
            time.sleep(0.01)
    finally:
        gc.callbacks.remove(slow_callback)
    assert outcome.timed_out and threading.active_count() <= before
    assert set(dropped) <= {limits.TimeLimitExceeded}


def test_a_function_that_cannot_be_interrupted_is_left_behind():
    release = threading.Event()
    outcome = limits.call(release.wait, 20, seconds=0.05)
    release.set()
    assert outcome.timed_out


def test_collect_takes_one_more_than_the_limit():
    outcome = limits.collect(itertools.count, limit=5)
    assert outcome.value == [0, 1, 2, 3, 4, 5]


def test_collect_runs_generators_inside_the_limit():
    def generator():
        yield 1
        raise ValueError("half way")

    outcome = limits.collect(generator, limit=5)
    assert isinstance(outcome.error, ValueError)
    assert "returned None" in limits.collect(lambda: None, limit=5).reason()
    assert isinstance(limits.collect(lambda: 7, limit=5).error, TypeError)


def test_the_callers_threads_and_trace_are_left_alone():
    trace = sys.gettrace()
    limits.call(loops, seconds=0.05)
    assert sys.gettrace() is trace
    assert limits.call(lambda: 1).value == 1  # no stray exception arrives later
