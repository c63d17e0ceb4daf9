"""The backends side by side: a small run, its file, and a backend that refuses."""

from __future__ import annotations

import json

from benchmarks import backends


def test_a_small_run_has_every_side_and_is_saved(tmp_path, capsys):
    out = tmp_path / "backends.json"
    arguments = ["--case", "softmax", "--backends", "aot_eager,stax", "--readings", "3", "--divide", "512"]
    assert backends.main([*arguments, "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert record["format"] == backends.FORMAT and record["command"]
    (result,) = record["results"]
    assert set(result["seconds"]) == {"eager", "aot_eager", "stax"} and result["operations"]["stax"] == 1
    assert all(low <= middle <= high for middle, low, high in result["over_eager"].values())
    assert "first call" in capsys.readouterr().out


def test_a_backend_that_refuses_is_named_with_its_words():
    result = backends.measure("softmax, 4096x1024", ["cudagraphs"], readings=2, scale=512)
    assert "needs every value on one GPU" in result["refused"]["cudagraphs"]
    assert any("refused: " in line for line in backends.lines(result))
