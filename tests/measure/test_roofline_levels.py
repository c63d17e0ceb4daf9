"""Rooflines by level of memory: whose roof a kernel stands under, how levels are measured, data sheets, the picture."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from staxlab.errors import OptionError
from staxlab.measure import bandwidth_kernels, machine, roofline, roofline_measuring, roofline_probes
from staxlab.measure.machine import cache_capacity, data_caches
from staxlab.measure.roofline import Ceiling, Point, Roofline
from staxlab.measure.roofline_measuring import visits
from staxlab.measure.roofline_nominal import DATA_SHEETS, beside_data_sheet, data_sheet, nominal_roofline
from staxlab.measure.size_sweep import SizeSweep, SweepCurve
from staxlab.view.roofline_chart import drawn_ceilings, figure
from tests.view.reading import check_page, read


def level(name, where, value, capacity, threads=2, rounds=()):
    return Ceiling(name, "bandwidth", value, "", where, capacity, threads, rounds)


CEILINGS = (
    level("read", "memory", 50e9, None, rounds=(50e9, 40e9)),
    level("copy", "memory", 20e9, None),
    level("read, 1 thread", "memory", 30e9, None, 1),
    level("L2 read", "L2", 150e9, 2 << 20),
    level("L2 copy", "L2", 100e9, 2 << 20),
    level("L2 read, 1 thread", "L2", 90e9, 1 << 20, 1),
    level("L1 read", "L1", 400e9, 64 << 10),
    level("L1 read, 1 thread", "L1", 200e9, 32 << 10, 1, (200e9, 198e9)),
    Ceiling("matmul float32", "throughput", 100e9),
    Ceiling("matmul bfloat16", "throughput", 400e9),
)


@pytest.fixture
def record() -> Roofline:
    points = (
        Point("in L2 <&>", 1e5, 1e6, 1e-5, 1e6, (0.9e-5, 1.1e-5), 1 << 20, "float32"),
        Point("in memory", 1e6, 1e8, 4e-3, 1e8, None, 1e8, "float32"),
        Point("product", 1e9, 1e6, 5e-3, 1e6, None, 1e6, "bfloat16"),
    )
    sizes = tuple(4096 << k for k in range(12))
    sweep = SizeSweep((SweepCurve("read", 1, sizes, ((2e11, 1e11),) * 12),), machine={"processor": "Test"})
    return Roofline(CEILINGS, points, {"processor": "Test", "threads": 2, "device": "cpu"}, sweep=sweep)


def test_the_roof_is_that_of_memory_with_all_threads(record):
    assert record.threads == 2 and record.levels == ("L1", "L2", "memory")
    assert record.bandwidth == 50e9 and [c.name for c in record.of("bandwidth")] == ["read", "copy"]
    assert [c.name for c in record.of("bandwidth", "L2")] == ["L2 read", "L2 copy"]
    assert record["L1 read, 1 thread"].probe == record["L2 read"].probe == record["read, 1 thread"].probe == "read"


def test_the_working_set_decides_the_roof(record):
    assert [record.level_of(point) for point in record.points] == ["L2", "memory", "L2"]
    near, far, product = record.points
    assert record.limit(near).name == "L2 read" and record.fraction(near) == pytest.approx(1e11 / 150e9)
    assert record.limit(far).name == "read" and record.fraction(far) == pytest.approx(25e9 / 50e9)
    assert record.limit(product).name == "matmul bfloat16" and record.fraction(product) == pytest.approx(0.5)
    assert record.limit(replace(product, dtype="float32")).name == "matmul float32"
    assert record.limit(replace(product, dtype="float64")).name == "matmul bfloat16", "not measured: the highest"
    assert record.level_of(replace(near, working_set=None)) == "memory"
    assert record.level_of(replace(near, working_set=64 << 10)) == "L1", "as much as fits"
    assert record.level_of(replace(near, working_set=(64 << 10) + 1)) == "L2"
    mixed = replace(near, bytes_read=75e4)
    assert record.limit(mixed).value == pytest.approx(1 / (0.5 / 150e9 + 0.5 / 100e9))
    assert record.limit(mixed).name == "L2 read mixed with L2 copy" and record.limit(mixed).level == "L2"


def test_the_words_have_every_level_and_how_far_rounds_differ(record):
    text = record.table().text()
    assert "rounds differ by 25%" in text and "L1, 1 thread, 32 KiB" in text and "rounds differ by at most 1%" in text
    assert "L2, 2 threads, 2 MiB" in text and "read 150 GB/s, copy 100 GB/s" in text
    assert "67% [61%, 74%] of L2 read, 150 GB/s" in text
    assert "compared with that cache" in text
    assert "compared with that cache" not in Roofline(CEILINGS[:2]).table().text()
    assert "up to 64 KiB are in L1, whose roof rises with 400 GB/s" in record.description
    assert record["read"].spread == pytest.approx(0.25) and record["copy"].spread is None
    assert "1, 2: slopes of L1, L2" in str(record) and "111" in str(record)


def test_a_record_with_levels_is_kept_as_it_is(record, tmp_path):
    assert Roofline.load(record.save(tmp_path / "roof.json")) == record
    assert [path.name for path in tmp_path.iterdir()] == ["roof.json"], "nothing half-written beside it"


# --- The picture ------------------------------------------------------------------------------------------------------


def test_the_picture_says_every_number_to_mouse_keyboard_and_reader(record):
    check_page(record)
    page = read(figure(record))
    drawn = [e for e in page.find("g") if "data-ceiling" in e.attributes]
    assert len(drawn) == len(drawn_ceilings(record)) == 2 + 2 + 2
    entries = [e for e in page.find("li") if "data-ceiling" in e.attributes]
    assert [e.attributes["data-ceiling"] for e in entries] == [e.attributes["data-ceiling"] for e in drawn]
    points = [e for e in page.find("g") if "data-point" in e.attributes]
    assert len(points) == 3
    for part in (*drawn, *points):
        words = part.attributes["data-words"]
        assert part.attributes["tabindex"] == "0" and part.attributes["aria-label"] == words
        assert part.find("title")[0].text == words
    near = points[0].attributes["data-words"]
    for piece in ("in L2 <&>", "10 GFLOP/s at 0.1 FLOP/byte", "67% [61%, 74%] of L2 read", "1 MB moved", "100 kFLOP",
                  "working set 1 MiB, in L2"):  # fmt: skip
        assert piece in near, piece
    assert "working sets up to 64 KiB" in drawn[0].attributes["data-words"]
    assert "arithmetic intensity (FLOP/byte)" in page.text and "performance (GFLOP/s)" in page.text
    assert page.find("output", class_="sx-roof-words")


def test_a_kernel_is_drawn_below_its_own_roof(record):
    page = read(figure(record))
    reach = [float(e.attributes["data-reach"]) for e in page.find("path") if "data-reach" in e.attributes]
    assert reach == [pytest.approx(150e9 * 0.1), pytest.approx(50e9 * 0.01), pytest.approx(400e9)]
    marks = [(float(e.attributes["data-x"]), float(e.attributes["data-y"])) for e in page.find("path") if "data-x" in
             e.attributes]  # fmt: skip
    assert marks == [(pytest.approx(0.1), pytest.approx(1e10)), (pytest.approx(0.01), pytest.approx(2.5e8)),
                     (pytest.approx(1e3), pytest.approx(2e11))]  # fmt: skip


def test_files_show_every_level_too(record, tmp_path):
    pytest.importorskip("matplotlib")
    svg = record.plot(tmp_path / "roof.svg").read_text()
    assert "L1 read: 400 GB/s" in svg and "L2 read: 150 GB/s" in svg and "of L2 read" in svg
    assert [path.name for path in tmp_path.iterdir()] == ["roof.svg"]


def test_a_picture_without_roofs_or_operations():
    check_page(Roofline(CEILINGS[:1], (Point("moves", 0.0, 1e6, 1e-4),)))
    check_page(Roofline((CEILINGS[-1],), (Point("product", 1e9, 1e6, 1e-2),)))


# --- Measuring --------------------------------------------------------------------------------------------------------


def cache(number, size, shared_by=1):
    return {"level": number, "bytes": size << 10, "shared_by": shared_by}


def test_levels_are_visited_inside_their_capacity_and_outside_the_one_before():
    plan = visits([cache(1, 32), cache(2, 1024), cache(3, 32 << 10, 8)], 4)
    assert [(v.level, v.capacity >> 10) for v in plan] == [("L1", 128), ("L2", 4096), ("L3", 32 << 10)]
    before = 0
    for visit in plan:
        assert all(2 * before <= size <= visit.capacity // 2 for size in visit.working_sets), visit
        before = visit.capacity
    assert [v.level for v in visits([cache(1, 32), cache(2, 40), cache(3, 4096)], 1)] == ["L1", "L3"]
    assert [v.working_sets for v in visits([cache(1, 32), cache(2, 64)], 1)] == [(8 << 10, 16 << 10), (32 << 10,)]
    assert visits([], 1) == []
    assert (plan[1].name("read", 4), plan[1].name("read", 8)) == ("L2 read", "L2 read, 4 threads")


def test_what_the_system_reports(tmp_path):
    for number, (level_, kind, size, cores) in enumerate(
        [("1", "Data", "48K", "0,4"), ("1", "Instruction", "32K", "0"), ("3", "Unified", "33M", "0-15"),
         ("2", "Unified", "2048K", "?")]
    ):  # fmt: skip
        index = tmp_path / f"index{number}"
        index.mkdir()
        for name, content in (("level", level_), ("type", kind), ("size", size), ("shared_cpu_list", cores)):
            (index / name).write_text(content + "\n")
    found = data_caches(tmp_path)
    shown = [(c["level"], c["bytes"] >> 10, c["shared_by"]) for c in found]
    assert shown == [(1, 48, 2), (2, 2048, 1), (3, 33 << 10, 16)]
    assert machine.last_level_cache(tmp_path) == 33 << 20 and data_caches(tmp_path / "nowhere") == []
    assert [cache_capacity(found[0], n) >> 10 for n in (1, 2, 3, 4, 5)] == [48, 48, 96, 96, 144]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(roofline_probes, "MATMUL_ORDER", 64)
    monkeypatch.setattr(bandwidth_kernels, "CPU_TRAFFIC", 1 << 14)
    monkeypatch.setattr(roofline_measuring, "LEVEL_READINGS", 1)


def test_all_levels_of_this_machine(small, monkeypatch):
    before = machine.machine_record()
    caches = [cache(1, 16), cache(2, 64)]
    monkeypatch.setattr(roofline_measuring, "machine_record", lambda device="cpu": {**before, "caches": caches})
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(roofline_measuring, "_cache_notes", lambda machine, size: [])
    seen = []
    found = roofline.measure(lambda f, m: seen.append(f), buffer_bytes=1 << 17, levels=True)
    names = {c.name for c in found.ceilings}
    for probe in roofline_probes.NATIVE_PROBES:
        for where in ("", "L1 ", "L2 "):
            assert {f"{where}{probe}", f"{where}{probe}, 1 thread"} <= names
    assert {"matmul float32", "matmul bfloat16", "matmul float64"} <= names
    assert found.levels == ("L1", "L2", "memory") and found["L1 read"].capacity == 32 << 10
    assert found["L1 read, 1 thread"].capacity == 16 << 10 and found["read"].threads == 2
    for ceiling in found.ceilings:
        assert len(ceiling.rounds) == 3 and ceiling.value == max(ceiling.rounds) > 0, ceiling.name
    assert found.complete and seen == sorted(seen) and seen[-1] == 1.0


def test_the_best_reading_of_a_level_counts_and_a_gpu_s_memory_keeps_the_better_of_two():
    class Kernels:
        probes = ("read",)
        values = iter([3e9, 7e9, 5e9, 4e9, 6e9, 1e9, 2e9, 2e9, 2e9, 2e9, 8e9, 1e9, 1e9, 1e9, 1e9])

        def bandwidth(self, probe, working_set, threads):
            return next(self.values)

    best = {"read": roofline_measuring._Best(Ceiling("read", "bandwidth", 0.0, "torch.sum"), [4e9])}
    roofline_measuring._visit(Kernels(), roofline_measuring.Visit("L2", None, 1 << 20, (1 << 19,)), None, best)
    assert best["L2 read"].ceiling() == Ceiling("L2 read", "bandwidth", 7e9, "", "L2", 1 << 20, None, (7e9,))
    memory = roofline_measuring.Visit("memory", None, None, (1 << 30,))
    roofline_measuring._visit(Kernels(), memory, None, best)
    assert best["read"].rounds == [4e9] and best["read"].ceiling().note == "torch.sum"
    roofline_measuring._visit(Kernels(), memory, None, best)
    assert best["read"].rounds == [8e9] and "Triton" in best["read"].ceiling().note


def test_interruption_in_a_level_keeps_what_was_measured(small, monkeypatch):
    calls = []
    bandwidth = bandwidth_kernels.CpuKernels.bandwidth

    def stop(self, probe, working_set, threads=1, **more):
        calls.append(probe)
        if len(calls) > 14:
            raise KeyboardInterrupt
        return bandwidth(self, probe, working_set, threads, **more)

    monkeypatch.setattr(bandwidth_kernels.CpuKernels, "bandwidth", stop)
    before = {**machine.machine_record(), "caches": [cache(1, 16), cache(2, 64)]}
    monkeypatch.setattr(roofline_measuring, "machine_record", lambda device="cpu": before)
    found = roofline.measure(quick=True, buffer_bytes=1 << 16, levels=True)
    names = {c.name for c in found.ceilings}
    assert not found.complete and "L1 read" in names and "L2 read" not in names and "matmul float32" in names


def test_a_kind_of_number_that_takes_long_is_measured_with_less(monkeypatch):
    monkeypatch.setattr(roofline_probes, "LONGEST_PRODUCT", 1e-9)
    assert roofline_probes._affordable_order(torch.float64) == 256
    monkeypatch.setattr(roofline_probes, "LONGEST_PRODUCT", 1e9)
    assert roofline_probes._affordable_order(torch.float64) == roofline_probes.MATMUL_ORDER
    monkeypatch.setattr(torch, "mm", lambda *a, **k: (_ for _ in ()).throw(RuntimeError("not implemented")))
    assert roofline_probes._affordable_order(torch.float16) is None


def test_the_precision_of_products_is_put_back():
    seen, before = [], torch.get_float32_matmul_precision()
    roofline_probes._with_precision("high", lambda: seen.append(torch.get_float32_matmul_precision()))()
    assert seen == ["high"] and torch.get_float32_matmul_precision() == before


# --- Data sheets ------------------------------------------------------------------------------------------------------


def test_ridge_points_of_an_h100_are_those_of_the_chapter():
    h100 = nominal_roofline("H100 SXM")
    assert h100.bandwidth == 3.35e12 and h100["matmul float32"].value == 67e12
    assert h100["matmul float32"].value / h100.bandwidth == 20
    assert math.floor(h100["matmul bfloat16"].value / h100.bandwidth) == 295
    assert "float32 20, " in h100.notes[0] and "nothing here is measured" in str(h100)
    check_page(h100)


def test_a_device_finds_its_data_sheet_or_none():
    assert all(data_sheet(sheet.name) is sheet for sheet in DATA_SHEETS)
    known = {
        "NVIDIA H200": "H200 SXM", "NVIDIA H100 80GB HBM3": "H100 SXM", "h100": "H100 SXM",
        "NVIDIA A100-SXM4-40GB": "A100 SXM 40GB", "NVIDIA A100-SXM4-80GB": "A100 SXM 80GB",
    }  # fmt: skip
    assert {device: data_sheet(device).name for device in known} == known
    for device in ("NVIDIA H100 PCIe", "NVIDIA H100 NVL", "A100", "cpu", "", "Tesla T4"):
        with pytest.raises(OptionError, match="no data sheet"):
            data_sheet(device)


def test_a_measured_gpu_is_held_against_its_data_sheet():
    ceilings = (Ceiling("copy", "bandwidth", 2.4e12), Ceiling("matmul bfloat16", "throughput", 989e12 / 2),
                Ceiling("matmul float64", "throughput", 30e12))  # fmt: skip
    (words,) = beside_data_sheet(Roofline(ceilings, machine={"device": "NVIDIA H200"}))
    assert words == "of the data sheet of H200 SXM: bandwidth 50%, matmul bfloat16 50%"
    assert beside_data_sheet(Roofline(ceilings, machine={"device": "cpu"})) == ()


@pytest.mark.gpu
def test_levels_of_a_gpu():
    found = roofline.measure(quick=True, device="cuda", buffer_bytes=1 << 26, levels=True)
    assert found.levels == ("L2", "memory") and found["L2 read"].value > 0
    assert {"matmul tf32", "matmul float16", "matmul float64"} <= {c.name for c in found.ceilings}
