"""Records of long runs: going on where one ended, refusing what is not one, and surviving an interruption."""

import json
from types import SimpleNamespace

import pytest

from benchmarks import records

HERE = SimpleNamespace(device="cpu", measured=False)


def test_a_sweep_goes_on_where_it_ended(tmp_path):
    path = tmp_path / "folder" / "sweep.json"
    record = records.continued(path, "sweep-1", HERE)
    assert record["cases"] == {} and record["measured"] is False and record["format"] == "sweep-1"
    record["cases"]["one"] = {"rate": 2.0}
    records.save_progress(record, path)
    assert records.continued(path, "sweep-1", HERE) == record
    records.save_progress(record, None)  # kept nowhere


@pytest.mark.parametrize(
    "changed", [{"format": "other-1"}, {"measured": True}, {"cases": []}], ids=["format", "device", "comparison"]
)
def test_what_is_no_sweep_of_this_kind_is_refused_and_left_alone(tmp_path, changed):
    path = tmp_path / "sweep.json"
    records.save_progress(records.continued(None, "sweep-1", HERE) | changed, path)
    before = path.read_bytes()
    with pytest.raises(SystemExit, match="sweep.json is not a sweep of this command"):
        records.continued(path, "sweep-1", HERE)
    assert path.read_bytes() == before


def test_a_comparison_keeps_the_cases_that_are_not_measured_anew(tmp_path):
    path = tmp_path / "found.json"
    record = records.added_to(path, "found-1", HERE, {"a"})
    record["cases"] = [{"case": "a"}, {"case": "b"}]
    records.save_progress(record, path)
    assert records.added_to(path, "found-1", HERE, {"a"})["cases"] == [{"case": "b"}]
    with pytest.raises(SystemExit, match="no comparison"):
        records.added_to(path, "found-1", SimpleNamespace(device="cpu", measured=True), set())


@pytest.mark.parametrize("save", [records.save, records.save_progress])
def test_an_interruption_leaves_the_file_that_was_there(tmp_path, monkeypatch, save):
    path = tmp_path / "found.json"
    save({"n": 1}, path)

    def full(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(type(path), "write_text", full)
    with pytest.raises(OSError, match="no space"):
        save({"n": 2}, path)
    assert json.loads(path.read_text()) == {"n": 1}
