"""Section 13.1, Lab 1: knees on planted staircases, caches beside them, and a sweep of tiny working sets."""

from __future__ import annotations

import json
import math
import random
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.errors import OptionError
from staxlab.measure import bandwidth_kernels, size_sweep
from staxlab.measure.size_sweep import SizeSweep, SweepCurve, plateaus_and_knees, sizes_between, sweep
from staxlab.view import size_sweep as drawing
from tests.view.reading import check_page, read

SIZES = sizes_between(4096, 256 << 20)


def staircase(sizes, steps, levels, width=0.0):
    """Bandwidth that falls at ``steps`` (octaves above the first size) from each of ``levels`` to the next, over
    ``width`` octaves."""
    found = []
    for size in sizes:
        octave, value = math.log2(size / sizes[0]), math.log(levels[0])
        for step, (a, b) in zip(steps, zip(levels, levels[1:], strict=False), strict=True):
            part = min(max((octave - step) / width + 0.5, 0.0), 1.0) if width else float(octave > step)
            value += part * (math.log(b) - math.log(a))
        found.append(math.exp(value))
    return found


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 2**32),
    st.lists(st.tuples(st.floats(3.0, 4.5), st.floats(1.5, 4.0)), min_size=1, max_size=3),
    st.floats(0, 1.0),
    st.floats(0, 0.04),
)
def test_planted_knees_are_found_where_they_are(seed, steps, width, noise):
    generator = random.Random(seed)
    places, levels = [], [200e9]
    for apart, drop in steps:
        places.append((places[-1] if places else 0.0) + apart)
        levels.append(levels[-1] / drop)
    planted = staircase(SIZES, places, levels, width)
    measured = [value * math.exp(generator.uniform(-1.7, 1.7) * noise) for value in planted]
    plateaus, knees = plateaus_and_knees(SIZES, measured, max(noise, 0.01))
    assert [knee.size / SIZES[0] for knee in knees] == [
        pytest.approx(2**place, rel=0.45) for place in places
    ], "within half an octave"
    for knee, before, after in zip(knees, levels, levels[1:], strict=False):
        assert knee.before == pytest.approx(before, rel=0.15) and knee.after == pytest.approx(after, rel=0.15)
        assert knee.between[0] <= knee.size <= knee.between[1]
    assert len(plateaus) == len(levels)


def test_a_sharp_knee_lies_between_its_neighbours():
    _, (knee,) = plateaus_and_knees(SIZES, staircase(SIZES, [4.1], [100e9, 40e9]), 0.01)
    assert knee.between[0] <= 4096 * 2**4.1 <= knee.between[1]
    assert (knee.before, knee.after) == (pytest.approx(100e9), pytest.approx(40e9))


def test_the_knee_of_a_long_transition_is_its_middle():
    _, (knee,) = plateaus_and_knees(SIZES, staircase(SIZES, [6.1], [100e9, 25e9], 2.0), 0.01)
    assert knee.size == pytest.approx(4096 * 2**6.1, rel=0.05)


def test_what_is_no_knee():
    flat = [50e9] * len(SIZES)
    assert plateaus_and_knees(SIZES, flat, 0.01)[1] == ()
    upwards = staircase(SIZES, [5.0], [10e9, 50e9])
    plateaus, knees = plateaus_and_knees(SIZES, upwards, 0.01)
    assert len(plateaus) == 2 and knees == ()
    near = staircase(SIZES, [5.0], [50e9, 46e9])
    assert plateaus_and_knees(SIZES, near, 0.01)[1] == (), "less than 15%"
    down = staircase(SIZES, [5.0], [50e9, 20e9])
    assert plateaus_and_knees(SIZES, down, 0.3) == ((), ()), "too noisy to believe"
    spike = [*flat[:20], 10e9, *flat[21:]]
    plateaus, knees = plateaus_and_knees(SIZES, spike, 0.01)
    assert knees == () and len(plateaus) == 1, "one size is no plateau, and does not divide one"
    with pytest.raises(OptionError):
        plateaus_and_knees((1024, 2048), (1.0, 0.0), 0.01)


CACHES = ({"level": 1, "bytes": 32 << 10, "shared_by": 1}, {"level": 2, "bytes": 1 << 20, "shared_by": 1},
          {"level": 3, "bytes": 64 << 20, "shared_by": 8})  # fmt: skip


@pytest.fixture
def record() -> SizeSweep:
    one = staircase(SIZES, [3.0, 8.0], [200e9, 100e9, 30e9])  # 32 KiB, 1 MiB, and none near 64 MiB
    two = staircase(SIZES, [4.0, 11.0], [400e9, 200e9, 60e9])  # 64 KiB, and 8 MiB, which no cache explains
    curves = tuple(
        SweepCurve("read", n, SIZES, tuple((v, 0.99 * v) for v in found)) for n, found in ((1, one), (2, two))
    )
    machine = {"processor": "Test <&> Processor", "device": "cpu"}
    return SizeSweep(curves, CACHES, machine, {}, "cmd", "2026-01-01", ("n",))


def test_reported_caches_stand_beside_the_knees(record):
    (first, second, third), others = record.beside(record.curves[0])
    assert (first.name, first.capacity) == ("L1", 32 << 10) and first.knee.size == pytest.approx(32 << 10, rel=0.2)
    assert second.knee.size == pytest.approx(1 << 20, rel=0.2) and third.knee is None and others == ()
    (first, second, third), (alone,) = record.beside(record.curves[1])
    assert (first.capacity, second.capacity, third.capacity) == (64 << 10, 2 << 20, 64 << 20), "of two threads"
    assert first.knee is not None and second.knee is None and third.knee is None
    assert alone.size == pytest.approx(8 << 20, rel=0.2)
    text = str(record)
    assert "none near it" in text and "not reported" in text and "read, 2 threads" in text
    assert re.search(r"L1 +32 KiB +3\d(\.\d)? KiB +200 GB/s +100 GB/s", text)
    assert "AAAA" in text and "BBBB" in text and "GB/s" in text and "working set" in text


def test_a_sweep_is_kept_as_it_is(record, tmp_path):
    path = record.save(tmp_path / "deep" / "sweep.json")
    assert SizeSweep.load(path) == record
    data = json.loads(path.read_text())
    assert len(data["curves"][0]["knees"]) == 2
    with pytest.raises(ValueError, match="not a size sweep"):
        SizeSweep.from_json({**data, "format": "another"})


def test_the_picture_has_knees_reported_sizes_and_units(record, tmp_path):
    check_page(record)
    picture = read(drawing.chart_of(record, record.curves[0]))
    assert "working set (KiB)" in picture.text and "bandwidth (GB/s)" in picture.text
    levels = [e.attributes["data-level"] for e in picture.find("path") if "data-level" in e.attributes]
    assert levels == ["L1, 32 KiB", "L2, 1 MiB", "L3, 64 MiB"]
    marks = [e.attributes["data-mark"] for e in picture.find("path") if "data-mark" in e.attributes]
    assert len(marks) == 2 and all(mark.startswith("knee ") for mark in marks)
    pytest.importorskip("matplotlib")
    svg = record.show(tmp_path / "sweep.svg").read_text()
    assert "Working set (bytes)" in svg and "Bandwidth (GB/s)" in svg and "no knee near it" in svg
    assert "Test &lt;&amp;&gt; Processor" in svg


def test_nothing_measured_still_shows():
    empty = SizeSweep((), complete=False)
    assert "interrupted" in str(empty) and "nothing to draw" in str(empty)
    check_page(empty)


def test_sizes_are_even_on_a_logarithmic_axis():
    assert SIZES[0] == 4096 and SIZES[-1] == 256 << 20 and len(SIZES) == 16 * 4 + 1
    assert all(size % 512 == 0 for size in SIZES)
    ratios = [b / a for a, b in zip(SIZES[12:], SIZES[13:], strict=False)]
    assert min(ratios) > 1.15 and max(ratios) < 1.23
    for bad in ((512, 4096), (4096, 4096), (8192, 4096)):
        with pytest.raises(OptionError):
            sizes_between(*bad)
    with pytest.raises(OptionError):
        sizes_between(4096, 8192, 0)


class Planted:
    """Kernels of a machine whose L1 is 16 KiB."""

    probes = ("read", "write")
    stop_after = math.inf

    def __init__(self, largest):
        self.calls = 0

    def rounded(self, probe, working_set, threads=1):
        return max(working_set // (4096 * threads), 1) * 4096 * threads

    def bandwidth(self, probe, working_set, threads=1):
        self.calls += 1
        if self.calls > Planted.stop_after:
            raise KeyboardInterrupt
        return threads * (100e9 if working_set <= 16 << 10 else 20e9)


@pytest.fixture
def planted(monkeypatch):
    monkeypatch.setattr(Planted, "stop_after", math.inf)
    monkeypatch.setattr(bandwidth_kernels, "kernels_for", lambda device, largest: Planted(largest))


def test_every_size_and_number_of_threads_has_its_turn_in_every_round(planted):
    seen = []
    found = sweep(lambda f, m: seen.append((f, m)), threads=(3, 1, 3), largest=1 << 17, rounds=2)
    assert [curve.threads for curve in found.curves] == [1, 3]
    assert all(len(readings) == 2 for curve in found.curves for readings in curve.readings)
    assert [knee.between for knee in found.curves[0].knees] == [(16 << 10, 20 << 10)]
    assert found.curves[1].sizes[:3] == (12 << 10, 24 << 10, 36 << 10), "whole blocks for every thread, each size once"
    assert [f for f, _ in seen] == [0.25, 0.5, 0.75, 1.0] and found.complete


def test_an_interrupted_sweep_keeps_whole_rounds(planted, monkeypatch):
    one, two = (len(curve.sizes) for curve in sweep(threads=(1, 2), largest=1 << 17, rounds=1).curves)
    monkeypatch.setattr(Planted, "stop_after", 2 * one + two + 5)
    found = sweep(threads=(1, 2), largest=1 << 17, rounds=9)
    assert not found.complete and [len(curve.readings[0]) for curve in found.curves] == [2, 1]
    monkeypatch.setattr(Planted, "stop_after", 3)
    found = sweep(threads=(1,), largest=1 << 17)
    assert not found.complete and found.curves == ()


def test_the_time_limit_ends_a_sweep_after_two_rounds(planted, monkeypatch):
    monkeypatch.setattr(size_sweep, "TIME_LIMIT", -1.0)
    found = sweep(threads=(1,), largest=1 << 17)
    assert len(found.curves[0].readings[0]) == 2 and found.complete
    assert any("2 of 8 rounds" in note for note in found.notes)


def test_what_cannot_be_swept(planted, monkeypatch):
    with pytest.raises(OptionError, match="unknown kernel"):
        sweep(kernel="streaming walk", threads=(1,), largest=1 << 17)
    with pytest.raises(OptionError, match="at least one thread"):
        sweep(threads=(0,))
    monkeypatch.undo()
    with pytest.raises(OptionError, match="unknown device"):
        sweep(device="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(OptionError, match="no CUDA device"):
            sweep(device="cuda")


def test_the_end_of_a_sweep_follows_the_last_cache(monkeypatch):
    monkeypatch.setattr(size_sweep, "total_memory", lambda: 64 << 30)
    assert size_sweep.largest_size([{"bytes": 16 << 20}]) == 128 << 20
    assert size_sweep.largest_size([]) == 64 << 20
    assert size_sweep.largest_size([{"bytes": 300 << 20}]) == size_sweep.LARGEST
    monkeypatch.setattr(size_sweep, "total_memory", lambda: 128 << 20)
    assert size_sweep.largest_size([{"bytes": 300 << 20}]) == 16 << 20


def test_a_real_sweep_of_little_memory(monkeypatch):
    monkeypatch.setattr(bandwidth_kernels, "CPU_TRAFFIC", 1 << 16)
    found = sweep(threads=(1,), smallest=4096, largest=1 << 14, per_octave=1, rounds=2)
    (curve,) = found.curves
    assert curve.sizes == (4096, 8192, 16384) and all(value > 0 for value in curve.bandwidths)
    assert found.complete and found.machine["device"] == "cpu" and found.date


@pytest.mark.gpu
def test_a_sweep_of_a_gpu():
    found = sweep(quick=True, device="cuda", per_octave=2)
    assert found.curves[0].threads is None and min(found.curves[0].bandwidths) > 0
