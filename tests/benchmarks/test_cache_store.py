"""The costs of the cache: what is measured, and that it is measured in turns beside the compiler."""

from __future__ import annotations

import json

from benchmarks import cache_store


def test_a_small_run_has_every_part_and_its_share(tmp_path, cache_dir, capsys):
    out = tmp_path / "run.json"
    assert cache_store.main(["--readings", "2", "--sizes", "3,6", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    names = [timing["name"] for timing in record["parts"]["comparison"]["timings"]]
    assert {"key", "read and verified", "private copy and dlopen", "lock", "compiler"} <= set(names)
    assert set(record["parts"]["compiler_over_part"]) == set(names) - {"compiler"}
    assert list(record["growth"]["seconds"]) == ["3", "6"] and record["format"] == cache_store.FORMAT
    printed = capsys.readouterr().out
    assert all(name in printed for name in names) and "6 entries" in printed


def test_the_committed_run_is_of_this_format(repository):
    record = json.loads((repository / "benchmarks" / "results" / "cache_store_cpu.json").read_text())
    assert record["format"] == cache_store.FORMAT and "compiler" in str(cache_store.table(record))
