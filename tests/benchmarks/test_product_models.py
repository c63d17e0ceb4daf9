"""The command that holds the models of Section 9.8 against a device, without one; and on one where there is one."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import product_models
from staxlab.measure.matrix_traffic import tile_traffic

pytest.importorskip("triton")


def test_a_small_run_needs_no_device(tmp_path, capsys):
    out = tmp_path / "smoke.json"
    assert product_models.main(["--smoke", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    (case,) = record["cases"]
    assert record["format"] == product_models.FORMAT and case["times"] == {} and not case["failed"]
    assert set(case["errors"]) == {"group 1", "group 2", "stages 1", "stages 2", "stages 3"}
    assert max(case["errors"].values()) <= product_models.ALLOWED
    assert "not timed" in capsys.readouterr().out


def test_without_a_device_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert product_models.main([]) == 2 and "--smoke" in capsys.readouterr().out


def test_variants_differ_in_what_they_should():
    case = product_models.SMOKE[0]
    kernel, _ = product_models.variant(case, 1, 2)
    other, _ = product_models.variant(case, 2, 3)
    assert (kernel.launch["constants"]["GROUP_M"], other.launch["constants"]["GROUP_M"]) == (1, 2)
    assert (kernel.launch["num_stages"], other.launch["num_stages"]) == (2, 3)
    assert kernel.source == other.source and [a.role for a in kernel.arguments] == ["input", "input", "output"]


def test_the_models_lie_between_their_ends():
    case = product_models.CASES[1]
    model = product_models.numbering_model(case, (1, 8), 50 << 20, 132)
    most = 2 * tile_traffic(case.order, case.order, case.order, tile=case.tile, capacity=1 << 20).read
    for resident in ("1", "2"):
        assert all(model["least"] <= nbytes <= most for nbytes in model[resident].values())
    stages = product_models.stages_model(case)
    assert stages["most"] == 7 and stages["compiler"]["4"] == stages["section"]["4"] == 128 << 10


@pytest.mark.gpu
def test_a_case_on_the_device():
    case = product_models.ProductCase(512, (64, 64, 64), 4, 3)
    found = product_models.measure(case, 3, "cuda")
    assert "library" in found["times"] and max(found["errors"].values()) <= product_models.ALLOWED
    assert "TFLOP/s" in product_models.report(found)
