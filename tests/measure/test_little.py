"""Little's law with the chapter's numbers, worked by hand, and what the machine code keeps in flight."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from staxlab.codegen.triton.launch import bytes_in_flight_wanted
from staxlab.errors import OptionError
from staxlab.measure.little import InFlight, littles_law
from staxlab.measure.loads_in_flight import bytes_of, read_in_flight
from staxlab.options import GPU_SPECS, host_device_spec
from staxlab.view import write_page
from staxlab.view.registry import panes_of


def test_the_numbers_of_section_9_1():
    """600 ns x 3.35 TB/s = 2.01 MB; over 132 multiprocessors 15.2 KB; over 32 warps 476 B, a thread's part 14.9 B."""
    law = littles_law("sm_90")
    assert law.total == pytest.approx(2.01e6)
    assert law.per_multiprocessor == 15227  # 2,010,000 / 132 = 15,227.27
    assert law.per_warp == pytest.approx(475.85, abs=0.01) and law.per_thread == pytest.approx(14.870, abs=0.001)
    assert law.reads_per_thread == 1
    text = str(law)
    assert "600 ns x 3.35 TB/s" in text and "2.01 MB" in text and "15.2 KB" in text and "14.87 B" in text


@pytest.mark.parametrize(
    ("warps", "read_bytes", "reads"),
    [(32, 16, 1), (16, 16, 2), (8, 16, 4), (4, 16, 8), (32, 4, 4), (64, 4, 2), (1, 16, 30)],
)
def test_fewer_warps_need_more_reads_each(warps, read_bytes, reads):
    """15,227.27 / (32 * warps * bytes), rounded up: 14.87/16, 29.74/16, 59.5/16, 119/16, 14.87/4, 7.4/4, 475.9/16."""
    assert littles_law("sm_90", warps=warps, read_bytes=read_bytes).reads_per_thread == reads


def test_an_exact_quotient_is_not_rounded_up():
    law = littles_law("sm_90", latency=1e-6, bandwidth=132 * 32 * 32 * 16 * 1e6, warps=32)
    assert law.per_thread == pytest.approx(16) and law.reads_per_thread == 1


@pytest.mark.parametrize("name", GPU_SPECS)
def test_the_launch_rules_ask_for_the_same(name):
    assert littles_law(name).per_multiprocessor == bytes_in_flight_wanted(GPU_SPECS[name])


def test_bandwidth_rises_in_a_straight_line_and_stays():
    law = littles_law("sm_90")
    need = law.total / 132
    assert law.achieved(need / 2) == pytest.approx(law.bandwidth / 2)
    assert law.achieved(need) == pytest.approx(law.bandwidth) and law.achieved(10 * need) == law.bandwidth
    point = InFlight("half", need / 2 / 32 / 8, 8)
    assert law.share(point) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "given", [{"latency": 0}, {"bandwidth": -1.0}, {"warps": 0}, {"multiprocessors": "many"}, {"read_bytes": 0}]
)
def test_what_is_no_quantity_is_refused(given):
    with pytest.raises(OptionError, match=next(iter(given))):
        littles_law("sm_90", **given)


def test_a_processor_is_no_gpu():
    with pytest.raises(OptionError, match="no GPU"):
        littles_law(host_device_spec())


def test_a_device_that_is_here_tells_its_bandwidth(monkeypatch):
    """2 transfers x 3201 MHz x 6144 bits = 4.917 TB/s. Nothing told is unknown, and the law takes its own."""
    told = SimpleNamespace(
        name="a card", major=9, minor=0, multi_processor_count=132, warp_size=32, max_threads_per_multi_processor=2048,
        L2_cache_size=60 << 20, memory_clock_rate=3_201_000, memory_bus_width=6144,
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: told)
    assert littles_law("cuda").bandwidth == pytest.approx(4.917e12, rel=1e-3)
    del told.memory_clock_rate
    assert littles_law("cuda").bandwidth == 3.35e12


def sass(*instructions):
    """A listing: instructions get addresses, labels stay."""
    lines = []
    for text in instructions:
        lines.append(text if text.endswith(":") else f"    /*{16 * len(lines):04x}*/ {text};")
    return lines


def test_independent_loads_are_in_flight_together():
    found = read_in_flight(
        sass(
            "LDG.E.128 R4, desc[UR4][R2.64]", "LDG.E.128 R8, desc[UR4][R2.64+0x200]", "FADD R4, R4, R8",
            "STG.E desc[UR4][R2.64], R4",
        )
    )  # fmt: skip
    assert (found.bytes, found.loads, found.issued, found.stalls) == (32, 2, 32, (2,))


def test_a_use_in_between_ends_a_load():
    found = read_in_flight(
        sass(
            "LDG.E.128 R4, desc[UR4][R2.64]", "STS.128 [R20], R4", "LDG.E.64 R8, desc[UR4][R2.64+0x200]",
            "FADD R8, R8, R9",
        )
    )  # fmt: skip
    assert (found.bytes, found.loads, found.issued) == (16, 1, 24)


def test_the_second_word_of_a_vector_is_waited_for_too():
    found = read_in_flight(sass("LDG.E.64 R4, desc[UR4][R2.64]", "MOV R9, R5", "LDG.E R6, desc[UR4][R2.64]"))
    assert found.bytes == 8 and found.stalls == (1,)


def test_an_address_that_was_loaded_is_waited_for():
    found = read_in_flight(sass("LDG.E.64 R4, desc[UR4][R2.64]", "LDG.E R6, desc[UR4][R4.64]"))
    assert (found.bytes, found.stalls) == (8, (1,))


def test_a_predicated_load_counts_and_a_store_does_not():
    found = read_in_flight(sass("@!P0 LDG.E.EF.128 R4, desc[UR4][R2.64]", "STG.E.128 desc[UR4][R12.64], R16"))
    assert (found.bytes, found.loads) == (16, 1)


def test_a_loop_that_loads_ahead_has_both_iterations_in_flight():
    ahead = sass(
        "LDG.E.128 R4, desc[UR4][R2.64]", ".L_x_0:", "LDG.E.128 R8, desc[UR4][R2.64+0x10]", "FADD R20, R20, R4",
        "MOV R4, R8", "@P0 BRA `(.L_x_0)", "EXIT",
    )  # fmt: skip
    assert read_in_flight(ahead).bytes == 32
    at_the_end = sass(".L_x_0:", "FADD R20, R20, R4", "LDG.E.128 R4, desc[UR4][R2.64]", "@P0 BRA `(.L_x_0)", "EXIT")
    found = read_in_flight(at_the_end)
    assert found.bytes == 16 and found.stalls == (1,)  # the next iteration waits


@pytest.mark.parametrize(
    ("name", "size"),
    [("LDG.E.128", 16), ("LDG.E.EF.64", 8), ("LDG.E", 4), ("LDG.E.U16", 2), ("LDG.E.U8.CONSTANT", 1), ("LDG.E.S8", 1)],
)
def test_widths(name, size):
    assert bytes_of(name) == size


def test_it_draws_and_prints(tmp_path):
    law = littles_law("sm_80", points=(InFlight("a kernel", 16, 8),))
    (pane,) = panes_of(law).panes
    assert "TB/s" in pane.body and "<title>" in pane.body and "a kernel" in pane.body and "a kernel" in str(law)
    assert write_page(tmp_path / "law.html", law).stat().st_size > 1000
    assert law._repr_mimebundle_()["text/plain"] == str(law)
