"""The command that measures attention on a CPU, on problems that take no time: what it records and refuses."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import attention_cpu
from benchmarks.attention_cpu import Case


def run(monkeypatch, tmp_path, cases, *arguments):
    monkeypatch.setattr(attention_cpu, "CASES", cases)
    out = tmp_path / "attention.json"
    assert attention_cpu.main(["--readings", "1", "--without", "flex", "--out", str(out), *arguments]) == 0
    return json.loads(out.read_text())


def test_a_run_records_times_ratios_and_what_is_missing(monkeypatch, tmp_path):
    small = (1, 8, 8, 24, 24, 8)
    cases = (
        Case("causal", small, attention_cpu.causal),
        Case("causal, ALiBi", small, attention_cpu.causal, attention_cpu.alibi),
        Case("window, backward", small, attention_cpu.window, backward=True),
    )
    record = run(monkeypatch, tmp_path, cases)
    assert record["format"] == attention_cpu.FORMAT and record["threads"] == torch.get_num_threads()
    causal, alibi, backward = record["cases"]
    assert causal["visible_positions"] == 8 * 24 * 25 // 2
    assert set(causal["seconds"]) == {"staxlab", "sdpa"} and causal["ratios"]["sdpa"]["slower"] == "sdpa"
    assert alibi["missing"] == {"sdpa": "has no such attention"} and not alibi["ratios"]
    assert backward["pass"] == "backward" and set(backward["seconds"]) == {"staxlab", "sdpa"}


def test_a_side_that_is_wrong_is_not_timed(monkeypatch, tmp_path):
    made = attention_cpu.sdpa_side
    monkeypatch.setattr(attention_cpu, "sdpa_side", lambda case, tensors: lambda: made(case, tensors)() + 0.1)
    (case,) = run(monkeypatch, tmp_path, (Case("causal", (1, 2, 2, 9, 9, 8), attention_cpu.causal),))["cases"]
    assert "differs from float64" in case["missing"]["sdpa"] and set(case["seconds"]) == {"staxlab"}


def test_grouped_heads_are_one_of_the_cases(monkeypatch, tmp_path):
    (case,) = run(monkeypatch, tmp_path, (Case("decoding", (1, 4, 2, 1, 40, 16)),))["cases"]
    assert set(case["seconds"]) == {"staxlab", "sdpa"} and case["visible_positions"] == 4 * 40


def test_cases_that_are_not_measured_again_are_kept(monkeypatch, tmp_path):
    cases = tuple(Case(name, (1, 1, 1, 9, 9, 8)) for name in ("one", "two"))
    before = run(monkeypatch, tmp_path, cases)["cases"]
    after = run(monkeypatch, tmp_path, cases, "--only", "two")["cases"]
    assert [case["case"] for case in after] == ["one", "two"] and after[0] == before[0] and after[1] != before[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "no such"], "no case"),
        (["--without", "mkl"], "no peer named 'mkl'"),
        (["--readings", "0"], "at least"),
    ],
)
def test_what_the_command_refuses(arguments, said, capsys):
    with pytest.raises(SystemExit):
        attention_cpu.main(arguments)
    assert said in capsys.readouterr().err
