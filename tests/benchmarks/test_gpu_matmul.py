"""The command that measures products on a device, tried without one: cases, sweep, going on, peers."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import gpu_matmul

pytest.importorskip("triton")


def test_every_case_is_there_by_name_and_counts_its_operations():
    names = [case.name for case in gpu_matmul.cases()]
    assert len(set(names)) == len(names) and "relu(A B + b), 8192 x 8192 x 8192" in names
    case = gpu_matmul.Case(3, 5, 7, True)
    assert case.operations == 2 * 3 * 5 * 7
    a, b, c = case.inputs(0, "cpu")
    assert torch.equal(case.function(a, b, c), torch.relu(a @ b + c)) and a.dtype == torch.bfloat16


def test_a_sweep_finds_the_best_and_goes_on_where_it_stopped(tmp_path, capsys):
    path = tmp_path / "sweep.json"
    command = ["--smoke", "--sweep", "--only", "A B, 64", "--out", str(path)]
    assert gpu_matmul.main([*command, "--seconds", "0"]) == 0
    (entry,) = json.loads(path.read_text())["cases"].values()
    assert entry["best"] is None and "nothing measured" in capsys.readouterr().out
    assert gpu_matmul.main([*command, "--seconds", "60"]) == 0
    (entry,) = json.loads(path.read_text())["cases"].values()
    measured = gpu_matmul.ranked(entry["configurations"])
    assert entry["best"] == measured[0] and len(measured) > 8
    written = path.stat().st_mtime_ns, len(entry["configurations"])
    assert gpu_matmul.main([*command, "--seconds", "60"]) == 0
    (again,) = json.loads(path.read_text())["cases"].values()
    assert again["configurations"] == entry["configurations"] and path.stat().st_mtime_ns > written[0]


def test_a_file_of_another_kind_is_not_overwritten(tmp_path):
    path = tmp_path / "other.json"
    path.write_text('{"format": "something else"}')
    with pytest.raises(SystemExit, match="name another file"):
        gpu_matmul.main(["--smoke", "--sweep", "--out", str(path)])


def test_peers_are_compared_in_the_swept_configuration_and_held_against_eager(tmp_path):
    swept, found = tmp_path / "sweep.json", tmp_path / "found.json"
    gpu_matmul.main(["--smoke", "--sweep", "--only", "relu", "--seconds", "5", "--out", str(swept)])
    arguments = ["--smoke", "--only", "relu", "--sweep-file", str(swept), "--out", str(found)]
    assert gpu_matmul.main([*arguments, "--readings", "3"]) == 0
    record = json.loads(found.read_text())
    assert record["measured"] is False
    (entry,) = record["cases"]
    assert entry["peers"]["staxlab, swept"]["readings"] == 3 and entry["peers"]["eager"]["error_to_scale"] < 2**-8
    with pytest.raises(ValueError, match="measured nothing"):
        gpu_matmul.rates(record)
    rest = ["--smoke", "--only", "A B, 64", "--without", "eager", "--sweep-file", str(swept), "--out", str(found)]
    assert gpu_matmul.main(rest) == 0
    first, second = json.loads(found.read_text())["cases"]  # the first call's case is still there
    assert first == entry and second["peers"] == {}
    with pytest.raises(SystemExit, match="name another file"):
        gpu_matmul.main(["--smoke", "--only", "relu", "--out", str(swept)])  # the sweep itself


def test_rates_are_those_of_the_table():
    entry = {"case": "A B, 8 x 8 x 8", "operations": 1024, "peers": {
        "eager": {"median_s": 1.0}, "staxlab, swept": {"median_s": 1.25}}}  # fmt: skip
    other = entry | {"case": "relu(A B + b), 8 x 8 x 8"}
    assert gpu_matmul.rates({"measured": True, "cases": [entry, other]}) == {"bfloat16": [(1024.0, 0.8)]}


def test_without_a_device_it_says_what_to_do(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert gpu_matmul.main([]) == 2 and "--smoke" in capsys.readouterr().out
