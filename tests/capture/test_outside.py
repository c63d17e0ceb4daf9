"""What a function reads outside its tensors: refused where it must differ from call to call, reported where it may."""

from __future__ import annotations

import argparse
import contextvars
import datetime
import io
import logging
import os
import queue
import sys
import threading
import time
import types
from time import perf_counter as now

import numpy as np
import pytest
import torch

import staxlab
from staxlab.capture.tracer import trace
from staxlab.errors import SideEffectWarning


def reads_time(x):
    return x + time.time()


def reads_under_another_name(x):
    return x * now()


def reads_in_a_helper(x):
    def helper():
        return time.monotonic_ns() % 7

    return x + helper()


def reads_the_date(x):
    return x + datetime.datetime.now().microsecond


def reads_today(x):
    return x + datetime.date.today().year


@pytest.mark.parametrize(
    "f",
    [reads_time, reads_under_another_name, reads_in_a_helper, reads_the_date, reads_today],
    ids=lambda f: f.__name__,
)
def test_a_clock_is_refused_with_the_line_that_reads_it(f):
    x = torch.ones(3)
    with pytest.raises(staxlab.CaptureError, match="reads the clock") as caught:
        staxlab.compile(f)(x)
    assert caught.value.where.file == __file__ and "0-dimensional tensor" in str(caught.value)
    assert any(word in caught.value.where.text for word in ("time", "now", "monotonic", "today"))


def test_a_library_may_read_the_clock():
    def f(x):
        logging.getLogger("quiet").debug("at %s", x.shape)
        logging.getLogger("quiet").makeRecord("quiet", 10, "here", 1, "text", (), None)  # reads time.time()
        return x + 1

    assert torch.equal(staxlab.compile(f)(torch.ones(2)), torch.full((2,), 2.0))


def test_the_environment_and_files_are_reported_once(tmp_path, monkeypatch):
    monkeypatch.setenv("STAXLAB_TEST_SCALE", "3")
    path = tmp_path / "scale"
    path.write_text("2")

    def f(x):
        with open(path) as file:
            scale = float(file.read())
        return x * scale * float(os.environ.get("STAXLAB_TEST_SCALE", 1)) * float(os.environ["STAXLAB_TEST_SCALE"])

    with pytest.warns(UserWarning, match="Python side effects.*STAXLAB_TEST_SCALE"):
        capture = trace(f, (torch.ones(2),), {})
    said = [str(effect) for effect in capture.python_effects]
    assert len(said) == 2 and "a file is opened (open)" in said[0] and "STAXLAB_TEST_SCALE" in said[1]
    assert all(__file__ in text for text in said)
    assert torch.equal(capture(torch.ones(2)), torch.full((2,), 18.0))


def test_a_profiler_that_is_there_goes_on():
    events = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    try:
        trace(lambda x: x + 1, (torch.ones(2),), {})
        inner = sys.getprofile()
    finally:
        sys.setprofile(None)
    assert events and inner is not None


def _writers():
    text, numbers, line, buffer = io.StringIO(), np.zeros(1), queue.Queue(), bytearray()
    simple, event, variable, flag = queue.SimpleQueue(), threading.Event(), contextvars.ContextVar("v"), [0]
    logger = logging.getLogger("staxlab.tests.outside")
    logger.addHandler(logging.NullHandler())

    def adds(x):
        numbers[0] += 1
        return x

    def sets_the_environment(x):
        os.environ["STAXLAB_TEST_WRITTEN"] = "1"
        return x

    def sets_threads(x):
        torch.set_num_threads(torch_threads)
        return x

    torch_threads = torch.get_num_threads()
    return {
        "text was written to": lambda x: (text.write("x"), x)[1],
        "numbers was written to": adds,
        "buffer was written to": lambda x: (buffer.append(1), x)[1],
        "put into a queue": lambda x: (line.put(1), x)[1],
        "SimpleQueue.put": lambda x: (simple.put(1), x)[1],
        "an event is set": lambda x: (event.set(), x)[1],
        "ContextVar.set": lambda x: (variable.set(1), x)[1],
        "a message is logged": lambda x: (logger.warning("at %s", 1), x)[1],
        "a file is written to": lambda x: (sys.stderr.write(""), x)[1],
        "an environment variable is set": sets_the_environment,
        "the number of threads is set": sets_threads,
        "flag was changed": lambda x: (flag.append(1), x)[1],
    }


@pytest.mark.parametrize("what", _writers())
def test_what_is_written_outside_is_reported(what, monkeypatch):
    monkeypatch.setenv("STAXLAB_TEST_WRITTEN", "0")
    with pytest.warns(SideEffectWarning, match=what):
        capture = trace(_writers()[what], (torch.ones(2),), {})
    assert any(what in str(effect) for effect in capture.python_effects)


def test_a_buffer_of_the_functions_own_is_its_own_business(recwarn):
    def f(x):
        text, numbers = io.StringIO(), np.zeros(2)
        text.write("2")
        numbers[0] = float(text.getvalue())
        return x * float(numbers[0])

    x = torch.ones(2)
    assert torch.equal(staxlab.compile(f)(x), x * 2) and not recwarn


def _rebinders():
    tensor, space, local, fn = torch.zeros(2), argparse.Namespace(n=0), threading.local(), _outer
    local.n = 0

    def on_a_tensor(x):
        tensor.tag = 1
        return x

    def on_an_argument(x):
        x.tag = 1
        return x

    def on_a_namespace(x):
        space.n += 1
        return x

    def on_a_new_name(x):
        space.m = 1
        return x

    def on_a_thread_local(x):
        local.n += 1
        return x

    def on_a_function(x):
        fn.n = 1
        return x

    def by_name(x):
        setattr(space, "n" * 1, 5)
        return x

    def on_a_logger(x):
        _logger.level = 5
        return x

    holders = {"tensor": tensor, "space": space, "local": local, "fn": fn, "logger": _logger}
    return holders, {f.__name__: f for f in list(vars().values()) if isinstance(f, types.FunctionType) and f is not fn}


_logger = logging.getLogger("staxlab.tests.rebinding")


def _outer(x):
    return x


@pytest.mark.parametrize("name", _rebinders()[1])
def test_attributes_bound_outside_are_refused_and_undone(name):
    holders, functions = _rebinders()
    before = {key: dict(vars(holder)) for key, holder in holders.items()}
    with pytest.raises(staxlab.CaptureError, match="the function changes"):
        staxlab.compile(functions[name])(x := torch.ones(2))
    assert {key: dict(vars(holder)) for key, holder in holders.items()} == before and not vars(x)


def test_an_array_that_is_given_is_not_written():
    def f(x, numbers):
        numbers[0] += 1
        return x

    numbers = np.zeros(2)
    with pytest.raises(staxlab.CaptureError, match="the function changes numbers"):
        staxlab.compile(f)(torch.ones(2), numbers)
    assert not numbers.any()


@pytest.mark.parametrize(
    "read",
    [
        torch.get_num_threads,
        torch.initial_seed,
        lambda: len(torch.get_float32_matmul_precision()),
        lambda: torch.backends.mkldnn.enabled,
        torch.backends.cuda.flash_sdp_enabled,
        torch.is_anomaly_enabled,
        torch.is_deterministic_algorithms_warn_only_enabled,
    ],
)
def test_settings_that_no_key_holds_are_refused(read):
    with pytest.raises(staxlab.CaptureError, match="the function reads .*no part of a key") as caught:
        staxlab.compile(lambda x: x * (read() % 3))(torch.ones(2))
    assert caught.value.where.file == __file__
