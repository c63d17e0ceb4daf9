"""The command that counts how operators are compiled: it adds to a file, goes on where it stopped, survives crashes."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import coverage

pytest.importorskip("torch.testing._internal.common_methods_invocations")


def run(path, *arguments: str) -> dict:
    coverage.main(["--out", str(path), "--samples", "1", "--processes", "1", *arguments])
    return json.loads(path.read_text())


def test_an_operator_is_added_and_one_is_replaced(tmp_path, capsys):
    path = tmp_path / "coverage.json"
    record = run(path, "--operators", "clamp_mi?")
    assert record["format"] == coverage.FORMAT and record["samples"] == 1 and record["machine"] and record["versions"]
    assert [*record["operators"]] == ["clamp_min"] and record["failures"] == []
    assert record["operators"]["clamp_min"]["float32"] == {"native": 2}
    record["operators"]["clamp_min"]["float32"] = {"refused": 9}
    record["failures"] = ["clamp_min float32 sample 0: planted", "exp float32 sample 0: another's"]
    path.write_text(json.dumps(record))
    again = run(path, "--operators", "clamp_min")
    assert again["operators"]["clamp_min"]["float32"] == {"native": 2}
    assert again["failures"] == ["exp float32 sample 0: another's"]
    assert "clamp_min: " in capsys.readouterr().out
    assert len(path.read_text().splitlines()) < 60 and not [*tmp_path.glob("*.part")]


def test_what_is_run():
    names = ["add", "cumsum", "cumprod", "scatter"]
    assert coverage.chosen(names, None, ["add"], False) == ["cumsum", "cumprod", "scatter"]
    assert coverage.chosen(names, None, ["add"], True) == names
    assert coverage.chosen(names, ["cum*", "add"], ["add"], False) == ["add", "cumsum", "cumprod"]
    with pytest.raises(ValueError, match="nothing"):
        coverage.chosen(names, ["nothing"], [], False)


def test_arguments_that_make_no_sense(tmp_path, capsys):
    other = tmp_path / "other.json"
    other.write_text('{"format": "staxlab-benchmark-1"}')
    for arguments in (["--operators", "no_such_operator"], ["--processes", "0"], ["--samples", "-1"]):
        with pytest.raises(SystemExit):
            coverage.main(["--out", str(tmp_path / "new.json"), *arguments])
    with pytest.raises(SystemExit):
        coverage.main(["--out", str(other), "--operators", "add"])
    other.write_text(json.dumps({"format": coverage.FORMAT, "versions": {"torch": "1.0"}, "samples": 1, "failures": [],
                                 "operators": {"add": {}}}))  # fmt: skip
    with pytest.raises(SystemExit):
        coverage.main(["--out", str(other), "--operators", "add"])
    assert "made with PyTorch 1.0" in capsys.readouterr().err


SERVER = """
import json, os, signal, sys
for line in sys.stdin:
    name, dtype, samples = json.loads(line)
    print(json.dumps({"start": f"{name} {dtype} sample 3"}), flush=True)
    if name == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "quit":
        sys.exit(3)
    if name == "hang":
        signal.pause()
    print(json.dumps({"counts": {"native": 1}, "failures": []}), flush=True)
"""


def test_a_process_that_dies_or_hangs_is_a_failure_and_the_others_go_on(monkeypatch):
    monkeypatch.setattr(coverage, "LONGEST", 3.0)
    monkeypatch.setattr(coverage, "JOBS_OF_A_PROCESS", 2)
    names = ["a", "crash", "b", "quit", "c", "d", "e", "hang", "f"]
    worker = lambda: coverage.Worker([sys.executable, "-c", SERVER])  # noqa: E731
    found = {
        n: (row, failed) for n, row, failed in coverage.run_all(names, dict.fromkeys(names, ["int64"]), 1, 2, worker)
    }
    assert set(found) == set(names)
    assert all(found[name] == ({"int64": {"native": 1}}, []) for name in "abcdef")
    assert found["crash"][1] == ["crash int64 sample 3: the process died (signal 11)"]
    assert found["quit"][1] == ["quit int64 sample 3: the process died (exit status 3)"]
    assert found["hang"][1][0].startswith("hang int64 sample 3: not done after 3 s")
