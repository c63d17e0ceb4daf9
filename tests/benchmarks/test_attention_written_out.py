"""The command that times attention written out, on problems that take no time: what it records and refuses."""

from __future__ import annotations

import json

import pytest

from benchmarks import attention_written_out as command


def run(tmp_path, *arguments):
    out = tmp_path / "attention.json"
    assert command.main(["--readings", "1", "--without", "compile", "--out", str(out), *arguments]) == 0
    return json.loads(out.read_text())


def test_a_run_records_the_decision_its_bytes_and_ratios(tmp_path):
    record = run(tmp_path, "--only", "plain", "--lengths", "24,96")
    assert record["format"] == command.FORMAT and [c["training"] for c in record["cases"]] == [False, True] * 2
    small, *_, large = record["cases"]
    assert small["choice"] == "as written" and large["choice"] == "scaled_dot_product_attention"
    assert large["bytes"]["scores"] == 8 * 96 * 96 * 4 and large["bytes"]["written out"] == 4 * large["bytes"]["scores"]
    assert set(large["seconds"]) == {"recognised", "off", "eager"} and set(large["ratios"]) == {"off", "eager"}


def test_a_side_that_is_wrong_is_not_timed(monkeypatch, tmp_path):
    made = command.errors

    def errors(run, *rest):
        found = made(run, *rest)
        wrong = run is not command.plain and run.versions[0].compilation.options.attention == "off"
        return found + wrong

    monkeypatch.setattr(command, "errors", errors)
    record = run(tmp_path, "--only", "plain", "--lengths", "16")
    assert all("differs from float64" in case["missing"]["off"] for case in record["cases"])
    assert all(set(case["seconds"]) == {"recognised", "eager"} for case in record["cases"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "no such"], "no program"),
        (["--without", "mkl"], "no side named 'mkl'"),
        (["--lengths", "12,a"], "whole numbers"),
        (["--readings", "0"], "at least"),
    ],
)
def test_what_the_command_refuses(arguments, said, capsys):
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert said in capsys.readouterr().err
