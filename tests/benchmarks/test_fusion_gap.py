"""The corpus of fragments on which greedy fusion is held against the optimum: what a run records, and the kept file."""

from __future__ import annotations

import json

from benchmarks import fusion_gap


def test_a_fragment_and_its_backward_pass_have_a_row_each():
    said = []
    results = fusion_gap.measure(["RMS norm, training"], 10.0, said.append)
    assert list(results) == ["RMS norm, training", "RMS norm, training (backward)"]
    for row in results.values():
        assert row["optimum"]["bytes"] <= row["greedy"]["bytes"] == row["bytes_scheduled"] <= row["bytes_unfused"]
        assert set(row["by_score"]) == set(fusion_gap.SCORES)
        assert all(row["optimum"]["bytes"] <= moved <= row["bytes_unfused"] for moved in row["by_score"].values())
        assert row["optimum"]["bound"] <= row["optimum"]["bytes"]
    assert len(said) == 2


def test_the_kept_run_covers_the_corpus(repository):
    record = json.loads((repository / "benchmarks" / "results" / "fusion_gap.json").read_text())
    assert record["format"] == fusion_gap.FORMAT
    assert {name.removesuffix(" (backward)") for name in record["results"]} == set(fusion_gap.FRAGMENTS)
    assert len(fusion_gap.FRAGMENTS) >= 20
    for row in record["results"].values():
        assert row["reasons"] or not row["relative_gap"]


def test_an_unknown_fragment_is_refused(capsys):
    try:
        fusion_gap.main(["--fragments", "nope"])
    except SystemExit:
        pass
    assert "no fragment named 'nope'" in capsys.readouterr().err
