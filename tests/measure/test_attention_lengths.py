"""A run of lengths, read and drawn: numbers of the file and no others."""

from __future__ import annotations

import json

import pytest

from staxlab import view
from staxlab.errors import OptionError
from staxlab.measure.attention_lengths import FORMAT, attention_lengths
from staxlab.view.attention_lengths import memory_chart, time_chart
from tests.view.reading import read, references

SAID = {"machine": {"device": "a device"}, "versions": {"torch": "2"}, "command": "a command", "date": "2026-01-02T03"}
SHAPE = {"batch": 1, "heads": 2, "head_size": 16, "dtype": "float32", "mask": "causal"}


def peer(seconds, nbytes):
    return {"median_s": seconds, "interval_s": [0.9 * seconds, 1.1 * seconds], "peak_bytes": nbytes}


def entry(n):
    quadratic = peer(1e-9 * n * n, 4 * n * n) if n < 4000 else {"problem": "three matrices would take too much"}
    return {"length": n, "peers": {"staxlab": peer(1e-10 * n * n, 100 * n), "matrix": quadratic}}


@pytest.fixture
def saved(tmp_path):
    def save(**changes):
        record = {
            "format": FORMAT,
            **SAID,
            "shape": SHAPE,
            "lengths": [entry(4096), entry(1024), entry(2048)],
            **changes,
        }
        (tmp_path / "run.json").write_text(json.dumps(record))
        return attention_lengths("run", tmp_path)

    return save


def test_growth_is_read_off_the_longest_lengths(saved):
    run = saved()
    assert run.growth("omni_attention") == pytest.approx(1) and run.growth("operator by operator") == pytest.approx(2)
    assert "memory as N^1.00" in run.summary() and "memory as N^2.00" in run.summary()
    assert run.left_out == ("operator by operator at N = 4,096: three matrices would take too much",)
    assert [row[0] for row in run.table().rows] == ["1,024", "2,048", "4,096"]
    assert "1.678 ms" in str(run) and "a command" in str(run) and "400 KiB" in str(run)


def test_both_pictures_have_every_point(saved):
    run = saved()
    for chart, unit in ((memory_chart(run), "(MB)"), (time_chart(run), "(ms)")):
        drawn = read(chart)
        curves = {e.attributes["data-curve"] for e in drawn.find("path") if "data-curve" in e.attributes}
        assert curves == {"omni_attention", "operator by operator"} and unit in drawn.text
        assert len([e for e in drawn.find("circle") if "data-x" in e.attributes]) == 5
    html = view.html(run)
    assert html == run._repr_mimebundle_()["text/html"] and references(html) == [] and "drawing failed" not in html


def test_without_counted_memory_only_time_is_drawn(saved):
    run = saved(lengths=[{"length": 8, "peers": {"staxlab": peer(1e-3, None)}}])
    assert memory_chart(run) is None and run.growth("omni_attention") is None and "memory as" not in run.summary()


def test_what_is_not_there_says_what_would_measure_it(tmp_path, saved):
    missing = attention_lengths("nothing", tmp_path)
    assert not missing and "benchmarks.attention_lengths" in str(missing)
    assert not saved(device_present=False), "a trial is no measurement"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "another"}, "has the format 'another'"),
        ({"lengths": []}, "does not hold"),
        ({"lengths": [{"length": 3}]}, "does not hold"),
        ({"shape": None}, "does not hold"),
    ],
)
def test_damaged_files_are_refused(saved, changes, message):
    with pytest.raises(OptionError, match=message):
        saved(**changes)
