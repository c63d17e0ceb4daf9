"""The benchmark of launch rules for rows: what it tries, what it says, and the command itself."""

import pytest

from benchmarks import row_kernels


class Tuning:
    rule = (1, 1024, 2, 1)


def test_configurations_hold_or_walk_and_fill_every_lane():
    for columns in (100, 1000, 8192, 32768):
        found = list(row_kernels.configurations(Tuning, columns))
        assert found[0] == Tuning.rule
        row = 1 << (columns - 1).bit_length()
        for rows, step, warps, stages in found[1:]:
            assert 4 <= rows * step // (32 * warps) <= 32 and step <= row
            assert stages == 1 or step < row
    assert any(step == 8192 for _, step, *_ in row_kernels.configurations(Tuning, 32768))


def test_a_summary_is_of_what_was_measured():
    records = [
        {"case": "a", "dtype": "float32", "shape": [2, 8], "share": 0.5},
        {"case": "b", "dtype": "float32", "shape": [2, 8], "share": 1.0},
        {"case": "c", "dtype": "float32", "shape": [2, 8], "problem": "none"},
    ]
    found = row_kernels.summary(records)
    assert found["cases"] == 2 and found["geometric_mean"] == pytest.approx(0.5**0.5)
    assert found["least"] == ("a float32 8", 0.5)
    assert row_kernels.summary(records[2:]) == {} and "none" in row_kernels.line(records[2])


def test_every_kind_by_every_length():
    assert len(row_kernels.jobs((64, 128), "")) == 2 * 14
    assert {job[0] for job in row_kernels.jobs((64,), "norm")} == {"layer_norm", "rms_norm"}


def test_the_command_refuses_what_is_no_length(capsys):
    for given in ("x", "1", ""):
        with pytest.raises(SystemExit):
            row_kernels.main(["--columns", given])


def test_a_small_run_without_a_device(capsys):
    assert row_kernels.main(["--smoke"]) == 0
    assert capsys.readouterr().out.count("equal") == len(row_kernels.KINDS)
