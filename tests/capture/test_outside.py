"""What a function reads outside its tensors: refused where it must differ from call to call, reported where it may."""

from __future__ import annotations

import datetime
import os
import time
from time import perf_counter as now

import pytest
import torch

import staxlab
from staxlab.capture.tracer import trace


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
    import logging

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
    import sys

    events = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    try:
        trace(lambda x: x + 1, (torch.ones(2),), {})
        inner = sys.getprofile()
    finally:
        sys.setprofile(None)
    assert events and inner is not None
