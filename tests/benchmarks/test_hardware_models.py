"""The comparison of hardware models with a device, without one: predictions, and the shape of the record."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import hardware_models

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="what it does with a device is measured there")


def test_bytes_in_flight_grow_with_instances():
    few, many = hardware_models.flight(1 << 16, 1, [(1, 128), (2, 128)])
    assert many["in_flight"] == 2 * few["in_flight"] > 0 and "bandwidth" not in few
    assert hardware_models.sectors(64, 1)["variants"]["as tiled"]["efficiency"] == 1


@pytest.mark.slow
def test_without_a_device_it_predicts(tmp_path, capsys):
    out = tmp_path / "models.json"
    assert hardware_models.main(["--smoke", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert record["format"] == hardware_models.FORMAT and "driver" not in str(record)
    few, many = record["flight"]
    assert 0 < few["in_flight"] < many["in_flight"] and few["predicted_bandwidth"] <= many["predicted_bandwidth"]
    assert few["resident_blocks"] == 1 and many["resident_blocks"] == 4
    flat, tiled = (record["sectors"]["variants"][name] for name in ("one dimension", "as tiled"))
    assert flat["efficiency"] < 0.5 and tiled["efficiency"] == 1
    forms = {row["form"] for row in record["occupancy"]}
    assert {"pointwise", "persistent", "looped", "tiled"} <= forms
    assert all(row["model"]["blocks"] >= 1 for row in record["occupancy"])
    assert "sectors are needed" in capsys.readouterr().out


def test_without_a_device_nothing_is_measured(capsys):
    assert hardware_models.main([]) == 2 and "--smoke" in capsys.readouterr().out
