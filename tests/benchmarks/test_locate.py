"""The benchmark of the error locator: its counts are those of one search, and it writes what it measured."""

from __future__ import annotations

import json

import pytest

from benchmarks import locate
from staxlab.loops.lowering import RULES


def test_one_program_is_measured_and_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("STAXLAB_PLANS", "0")  # which the command sets
    out = tmp_path / "locate.json"
    assert locate.main(["--programs", "recurrence", "--repeats", "1", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    (found,) = record["results"]
    assert record["format"] == locate.FORMAT and found["found"] == "Lowering: lowering of aten.sigmoid.default"
    assert (found["checks"], found["checks_with_fault"], found["left"]) == (3, 6, 1)
    assert found["calls"] > 40 and 0 < found["trials"] < 20
    assert {side: len(readings) for side, readings in found["seconds"].items()} == dict.fromkeys(locate.SIDES, 1)
    assert "recurrence" in capsys.readouterr().out


def test_the_mistake_is_gone_afterwards():
    program = locate.PROGRAMS["softmax"]
    right = RULES[program.operator]
    with pytest.raises(KeyError), locate.planted(program):
        assert RULES[program.operator] is RULES[program.instead]
        raise KeyError
    assert RULES[program.operator] is right


@pytest.mark.parametrize(
    ("arguments", "message"), [(["--programs", "x"], "unknown program 'x'"), (["--repeats", "0"], "1 or more")]
)
def test_what_cannot_be_measured_is_refused(arguments, message, capsys):
    with pytest.raises(SystemExit):
        locate.main(arguments)
    assert message in capsys.readouterr().err
