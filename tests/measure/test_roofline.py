"""Section 13.1, machine parameters: the record, its plot in files, notebooks and terminals, and how it is measured."""

from __future__ import annotations

import json
import math
import re
import sys
from xml.etree import ElementTree

import pytest
import torch

from staxlab.errors import BuildError, MissingDependencyError, OptionError
from staxlab.measure import machine, roofline, roofline_measuring, roofline_probes
from staxlab.measure.roofline import Ceiling, Point, Probe, Roofline, measure
from staxlab.measure.timing import Timing
from staxlab.view import figures
from staxlab.view import roofline as drawing
from staxlab.view.theme import contrast

pytest.importorskip("matplotlib")


@pytest.fixture
def record() -> Roofline:
    return Roofline(
        ceilings=(
            Ceiling("read", "bandwidth", 57e9, "sum of all"),
            Ceiling("copy", "bandwidth", 28e9),
            Ceiling("streaming copy", "bandwidth", 68e9),
            Ceiling("matmul float32", "throughput", 300e9),
        ),
        points=(Point("Example 1.1 eager", 4e6, 32e6, 6e-4), Point("fused <&>", 4e6, 8e6, 1.5e-4)),
        machine={"processor": "Test Processor", "threads": 2, "device": "cpu"},
        versions={"torch": "2"},
        command="python -m staxlab roofline",
        date="2026-01-01T00:00:00+00:00",
        notes=("a note",),
    )


def test_roof_and_ridge(record):
    assert record.bandwidth == 68e9
    assert record.throughput == 300e9
    assert record.ridge == pytest.approx(300 / 68)
    assert record.attainable(1.0) == 68e9
    assert record.attainable(1e3) == 300e9
    assert record["copy"].value == 28e9
    assert record.fraction(record.points[0]) == pytest.approx(4e6 / 6e-4 / (68e9 * 0.125))
    with pytest.raises(KeyError, match="no ceiling named"):
        record["l2"]


FULL = (
    Ceiling("read", "bandwidth", 46e9),
    Ceiling("copy", "bandwidth", 20e9),
    Ceiling("streaming copy", "bandwidth", 40e9),
    Ceiling("write", "bandwidth", 15e9),
    Ceiling("streaming write", "bandwidth", 60e9),
    Ceiling("matmul float32", "throughput", 300e9),
)


@pytest.mark.parametrize(
    ("read", "written", "name", "value"),
    [
        (100, 0, "read", 46e9),
        (2 * 2048, 1, "read", 46e9),
        (0, 100, "streaming write", 60e9),
        (50, 50, "streaming copy", 40e9),
        (75, 25, "read mixed with streaming copy", 1 / (0.5 / 46e9 + 0.5 / 40e9)),
        (25, 75, "streaming copy mixed with streaming write", 1 / (0.5 / 40e9 + 0.5 / 60e9)),
    ],
)
def test_a_kernel_is_judged_by_its_own_mix_of_reads_and_writes(read, written, name, value):
    roof = Roofline(ceilings=FULL)
    point = Point("it", 10.0, read + written, (read + written) / 26.7e9, bytes_read=read)
    assert roof.limit(point).name == name
    assert roof.limit(point).value == pytest.approx(value)
    assert roof.fraction(point) == pytest.approx(26.7e9 / value)
    assert f"of {name}" in roof.with_points([point]).table().text()


def test_a_kernel_that_only_reads_can_reach_its_roof_although_writing_is_faster():
    roof = Roofline(ceilings=FULL)
    point = Point("sum", 1e6, 4e6, 4e6 / 46e9, bytes_read=4e6)
    assert roof.fraction(point) == pytest.approx(1.0)
    assert roof.bandwidth == 60e9


def test_mixes_that_were_not_measured_and_arithmetic():
    read_only = Roofline(ceilings=(FULL[0], FULL[-1]))
    assert read_only.limit(Point("fill", 1, 100, 1.0, bytes_read=0)).name == "read"
    unknown = Point("it", 1, 100, 1.0)
    assert Roofline(ceilings=FULL).limit(unknown).name == "streaming write"
    product = Point("mm", 1e9, 1e6, 1.0, bytes_read=1e6)
    assert Roofline(ceilings=FULL).limit(product).name == "matmul float32"
    assert Roofline(ceilings=FULL).fraction(product) == pytest.approx(1 / 300)
    moved = Point("move", 0.0, 92e6, 4e-3, bytes_read=92e6)
    assert Roofline(ceilings=FULL).fraction(moved) == pytest.approx(0.5), "no operations, but bytes"


def test_a_measured_kernel_has_an_interval_and_the_words_are_plain(tmp_path):
    timing = Timing("sum", tuple(1e-3 * k for k in range(1, 16)))
    point = roofline.measured_point("sum", timing, 1e6, 184e6, 0)
    assert point.between == (4e-3, 12e-3)
    record = Roofline(ceilings=FULL, points=(point,))
    text = record.table().text()
    assert "50% [33%, 100%] of read, 46 GB/s" in text
    assert "100% of it reads" in text
    assert "fetches the old one" in text and "a third" not in text
    assert "50% [33%, 100%] of read" in record.description
    assert Roofline.load(record.save(tmp_path / "r.json")) == record


def test_example_1_1_says_what_it_reads():
    eager, fused = roofline.example_points(lambda x, w: x.sum(-1), rows=8, columns=16, readings=3)
    assert (eager.bytes_read, eager.nbytes) == (4 * 5 * 128, 4 * (8 * 128 + 8))
    assert (fused.bytes_read, fused.nbytes) == (4 * 2 * 128, 4 * (2 * 128 + 8))
    assert eager.between is not None and eager.between[0] <= eager.seconds <= eager.between[1]


def test_a_roofline_saved_before_mixes_were_kept_is_read(record):
    data = {**record.to_json(), "format": "staxlab-roofline-1"}
    del data["sweep"]
    for ceiling in data["ceilings"]:
        for key in ("level", "capacity", "threads", "rounds"):
            del ceiling[key]
    for point in data["points"]:
        for key in ("bytes_read", "seconds_interval", "working_set", "dtype"):
            del point[key]
    assert Roofline.from_json(data) == record


def test_json_round_trip(record, tmp_path):
    path = record.save(tmp_path / "deep" / "roof.json")
    assert Roofline.load(path) == record
    data = json.loads(path.read_text())
    assert {"machine", "versions", "command", "date"} <= set(data)
    data["format"] = "something else"
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match="not a roofline"):
        Roofline.load(path)


def texts_of(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return ["".join(e.itertext()).strip() for e in root.iter() if e.tag.split("}")[-1] in ("text", "title", "desc")]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_plot_names_its_axes_units_title_and_ridge(record, tmp_path, theme):
    path = record.plot(tmp_path / "roof.svg", theme)
    svg = path.read_text()
    texts = texts_of(svg)
    assert "Arithmetic intensity (FLOP/byte)" in texts
    assert "Performance (GFLOP/s)" in texts
    assert "Roofline of Test Processor, 2 threads" in texts
    assert "ridge 4.41 FLOP/byte" in texts
    assert any(t.startswith("Example 1.1 eager: 6.67 GFLOP/s (78% of streaming copy)") for t in texts)
    assert any(t.startswith("streaming copy: 68 GB/s") for t in texts)
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    assert "68 GB/s" in root.get("aria-label")
    assert "fused <&>" in root.get("aria-label")


def test_plots_are_reproducible_and_differ_by_theme(record, tmp_path):
    first = record.plot(tmp_path / "a.svg").read_bytes()
    assert record.plot(tmp_path / "b.svg").read_bytes() == first
    assert record.plot(tmp_path / "c.svg", "dark").read_bytes() != first


def test_every_file_type_and_the_refusal_of_others(record, tmp_path):
    assert record.plot(tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    assert b"Roofline of Test Processor" in (tmp_path / "r.png").read_bytes()
    assert record.plot(tmp_path / "r.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(OptionError, match="cannot write"):
        record.plot(tmp_path / "r.bmp")
    with pytest.raises(OptionError, match="unknown theme"):
        record.plot(tmp_path / "r.png", "sepia")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_themes_are_legible(record, theme):
    colours = figures.palette(theme)
    assert contrast(colours["text"], colours["background"]) >= 4.5
    for series in figures.SERIES:
        assert contrast(series, colours["background"]) >= 3.0, series


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_files_set_both_foreground_and_background(record, tmp_path, theme):
    svg = record.plot(tmp_path / "r.svg", theme).read_text()
    colours = figures.palette(theme)
    used = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", svg))
    assert {colours["background"], colours["text"]} <= used
    # Nothing is drawn in a colour that nobody chose (matplotlib's own black, white or blue).
    assert used <= {colours["background"], colours["text"], *figures.SERIES}


def test_kernels_and_ceilings_differ_by_more_than_colour(record):
    assert len(set(figures.MARKERS)) >= len(record.points)
    assert len(set(map(str, figures.DASHES))) >= len(record.of("bandwidth"))


def test_notebook_bundle_has_a_drawing_and_a_text_fallback(record):
    bundle = record._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    html = bundle["text/html"]
    assert "<svg" in html
    assert "<desc>" in html
    assert "fused &lt;&amp;&gt;" in html
    assert "fused <&>" not in html
    assert "http://" not in re.sub(r'xmlns(:\w+)?="[^"]*"|http://www\.w3\.org\S*|http://purl\.org\S*', "", html)
    assert "ridge point 4.41 FLOP/byte" in bundle["text/plain"]


def test_text_plot_shows_roof_ridge_and_kernels(record):
    text = drawing.text_plot(record)
    grid = [line[10:] for line in text.splitlines() if "|" in line]
    assert sum(line.count("A") for line in grid) == 1
    assert sum(line.count("B") for line in grid) == 1
    assert any("---" in line for line in grid)
    # The slope climbs: each row's first mark is further right than the one below it.
    firsts = [line.index("/") for line in grid if "/" in line]
    assert firsts == sorted(firsts, reverse=True)
    assert "GFLOP/s" in text
    assert "FLOP/byte" in text
    assert max(map(len, text.splitlines())) <= 80


def test_without_matplotlib_there_are_no_files_but_a_picture_in_the_notebook(record, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match="matplotlib"):
        record.plot(tmp_path / "r.png")
    assert "sx-roofline" in record._repr_mimebundle_()["text/html"]


def test_a_record_without_ceilings_still_shows(tmp_path):
    empty = Roofline(ceilings=(), complete=False)
    assert "interrupted" in repr(empty)
    assert "nothing to draw" in repr(empty)
    assert math.isnan(empty.ridge)
    empty.plot(tmp_path / "empty.svg")
    json.dumps(empty.to_json(), allow_nan=False)
    only = Roofline(ceilings=(Ceiling("read", "bandwidth", 1e9),))
    only.plot(tmp_path / "only.svg")
    assert "<svg" in only._repr_mimebundle_()["text/html"]


# --- Measuring --------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_matmul(monkeypatch):
    monkeypatch.setattr(roofline_probes, "MATMUL_ORDER", 64)


def test_measuring_with_torch_alone(small_matmul):
    seen = []
    record = measure(lambda f, m: seen.append((f, m)), quick=True, native=False, buffer_bytes=1 << 16)
    assert [c.name for c in record.of("throughput")] == ["matmul float32"]
    assert {c.name for c in record.of("bandwidth")} == {"read", "copy", "write"}
    assert all(c.value > 0 for c in record.ceilings)
    assert record.complete
    fractions = [f for f, _ in seen]
    assert fractions == sorted(fractions)
    assert seen[-1] == (1.0, "done")
    assert record.machine["threads"] == torch.get_num_threads()
    assert record.date
    assert record.command


def test_without_a_compiler_the_record_says_so(small_matmul, monkeypatch):
    def refuse():
        raise BuildError("no C++ compiler found")

    monkeypatch.setattr(roofline_probes, "load_kernels", refuse)
    record = measure(quick=True, buffer_bytes=1 << 16)
    assert any("no C++ compiler" in note for note in record.notes)
    assert "no C++ compiler" in repr(record)


def test_the_best_of_all_rounds_is_kept(monkeypatch):
    rounds = iter([{"read": 2.0}, {"read": 1.0}, {"read": 3.0}])
    monkeypatch.setattr(roofline_measuring, "_cpu_round", lambda probes, readings, progress: (next(rounds), True))
    monkeypatch.setattr(
        roofline_probes, "cpu_probes", lambda *a, **k: ([Probe("read", "bandwidth", 10.0, lambda: None)], [])
    )
    assert measure()["read"].value == 10.0


def test_interruption_keeps_what_was_measured(monkeypatch):
    calls = []

    def stop():
        calls.append(1)
        if len(calls) > 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(roofline_probes, "cpu_probes", lambda *a, **k: ([Probe("read", "bandwidth", 10.0, stop)], []))
    record = measure()
    assert not record.complete
    assert [c.name for c in record.ceilings] == ["read"]
    calls[:] = [0] * 9  # now even the warm-up is interrupted
    record = measure()
    assert not record.complete
    assert record.ceilings == ()


def test_time_limit_stops_after_a_round(monkeypatch, small_matmul):
    monkeypatch.setattr(roofline_measuring, "TIME_LIMIT", -1.0)
    record = measure(native=False, buffer_bytes=1 << 16)
    assert record.complete
    assert any("1 of 3 rounds" in note for note in record.notes)


def test_unknown_devices_are_refused():
    with pytest.raises(OptionError, match="unknown device"):
        measure(device="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(OptionError, match="no CUDA device"):
            measure(device="cuda")


def test_buffers_that_fit_in_cache_are_remarked():
    notes = roofline_measuring._cache_notes({"device": "cpu", "last_level_cache_bytes": 100}, 64)
    assert "may be partly the cache's" in notes[0]
    assert roofline_measuring._cache_notes({"device": "cpu", "last_level_cache_bytes": 32}, 64) == []
    assert roofline_measuring._cache_notes({"device": "cpu", "last_level_cache_bytes": None}, 64) == []


def test_points_of_example_1_1():
    points = roofline.example_points(roofline.example_1_1, rows=16, columns=32, readings=2)
    assert [p.label for p in points] == ["Example 1.1 eager", "Example 1.1 fused"]
    assert points[0].intensity == pytest.approx(0.125, rel=0.01)
    assert points[1].intensity == pytest.approx(0.5, rel=0.02)
    assert [p.nbytes for p in points] == [4 * (8 * 512 + 16), 4 * (2 * 512 + 16)]
    assert all(p.seconds > 0 for p in points)


@pytest.mark.gpu
def test_measuring_a_gpu():
    record = measure(quick=True, device="cuda", buffer_bytes=1 << 26)
    assert record.machine["device"] != "cpu"
    assert record["copy"].value > 0
    assert record["matmul bfloat16"].value > 0


def test_machine_record_reads_caches(tmp_path):
    for i, (kind, size) in enumerate(
        [("Data", "48K"), ("Instruction", "64K"), ("Unified", "2048K"), ("Unified", "33M")]
    ):
        index = tmp_path / f"index{i}"
        index.mkdir()
        (index / "type").write_text(kind + "\n")
        (index / "size").write_text(size + "\n")
    assert machine.last_level_cache(tmp_path) == 33 << 20
    assert machine.last_level_cache(tmp_path / "nowhere") is None
    json.dumps([machine.machine_record(), machine.version_record()], allow_nan=False)


def test_command_line_names_no_directories(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["/opt/env/bin/python", "/somewhere/tool.py", "--out", "results/x.json"])
    assert machine.command_line() == "python tool.py --out results/x.json"


def test_the_kernels_do_what_their_names_say():
    """Each probe once on small buffers: the sum is the sum, a copy is a copy, and sizes that leave a rest are cut to
    it."""
    entry = roofline_probes.load_kernels()
    probes = {p.name: p for p in roofline_probes._native_bandwidth(entry, 4 * (128 * 37 + 5))}
    assert tuple(probes) == roofline_probes.NATIVE_PROBES
    source, target = probes["read"].buffers
    assert source.numel() == 128 * 37
    source.copy_(torch.arange(source.numel()) % 5)
    assert probes["read"].run()[0] == int(source.sum())
    for name in ("copy", "streaming copy"):
        target.zero_()
        probes[name].run()
        assert torch.equal(target, source), name
    for name, value in (("write", 2.0), ("streaming write", 3.0)):
        probes[name].run()
        assert bool((target == value).all()), name
    assert probes["copy"].amount == 2 * probes["read"].amount == 8 * source.numel()


def test_measuring_with_our_own_kernels(small_matmul):
    record = measure(quick=True, buffer_bytes=1 << 18)
    assert {c.name for c in record.of("bandwidth")} == set(roofline_probes.NATIVE_PROBES)
    assert all(math.isfinite(c.value) and c.value > 0 for c in record.ceilings)


def test_a_busy_machine_is_remarked():
    assert "load 3 on 2 cores" in machine.busy_note({"load_average": 3.0, "cores_in_all": 2})
    assert machine.busy_note({"load_average": 0.2, "cores_in_all": 2}) is None
    assert machine.busy_note({"load_average": None, "cores_in_all": 2}) is None
