"""CUDA Graphs and whoever else there is: other streams, threads, recordings, and forked processes."""

from __future__ import annotations

import os
import threading
import warnings

import torch

from staxlab.errors import GraphWarning
from staxlab.runtime import graphs
from tests.runtime.test_graphs import doubled, region, replays, simple


def test_another_stream_waits_for_the_last_replay():
    x = torch.ones(3)
    f, device = region(simple(doubled))
    f([x]), f([x]), f([x])
    assert not any(entry[0] == "wait" for entry in device.log)
    device.stream = "stream 1"
    f([x]), f([x])
    device.stream = "stream 0"
    f([x])
    waits = [entry for entry in device.log if entry[0] == "wait"]
    assert waits == [("wait", "stream 1", "stream 0"), ("wait", "stream 0", "stream 1")]


def test_inside_a_recording_of_the_callers_the_region_is_launched():
    x = torch.ones(3)
    f, device = region(simple(doubled))
    f([x]), f([x])
    device.capturing_elsewhere = True
    assert f([x])[0].tolist() == [2.0] * 3
    assert dict(f.report().direct)[graphs.CAPTURED] == 1 and replays(device) == 1


def test_threads_get_the_values_of_their_own_calls():
    f, _ = region(simple(lambda x: (x * 2 + 1,)))
    wrong = []

    def work(number):
        x = torch.full((16,), float(number))
        for call in range(60):
            x.fill_(number + call)
            (y,) = f([x])
            if not torch.equal(y, x * 2 + 1):
                wrong.append((number, call))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong and f.replays > 0


def test_a_thread_warms_up_before_it_records():
    f, device = region(simple(doubled))
    pair = torch.ones(3), torch.ones(3)
    f([pair[0]]), f([pair[0]])
    for _ in range(3):  # each time another thread, which replays what is there and records nothing yet
        thread = threading.Thread(target=lambda: [f([x]) for x in pair])
        thread.start()
        thread.join()
    assert [entry[0] for entry in device.log].count("record") == 1
    thread = threading.Thread(target=lambda: [f([pair[1]]) and None for _ in range(3)])
    thread.start()
    thread.join()
    assert [entry[0] for entry in device.log][-4:] == ["warm up", "record", "replay", "replay"]


def test_a_forked_child_does_not_touch_the_recordings(monkeypatch):
    x = torch.ones(3)
    f, device = region(simple(doubled))
    f([x]), f([x])
    monkeypatch.setattr(graphs.os, "getpid", lambda: os.getppid())
    before = replays(device)
    assert f([x])[0].tolist() == [2.0] * 3
    assert replays(device) == before and dict(f.direct)[graphs.FORKED] == 1
