"""The harness: agreement before timing, missing and failing peers, records, plots, interruption, process per peer."""

from __future__ import annotations

import json
import math
from xml.etree import ElementTree

import pytest
import torch

from benchmarks import cases, harness, overhead, peers, records, run, startup
from benchmarks.peers import Peer, Side
from staxlab.measure.fresh_process import ProcessFailed, run_python
from staxlab.measure.reproduce import flat, largest_error, reference_of
from staxlab.measure.timing import Timing
from staxlab.measure.tolerance import beside_eager

CASE = cases.select("example_1_1")[0]
QUICK = harness.Settings(readings=3, warmup=1, rounds=2, pause=0.0)
SIZE = (16, 32)


def fake_peer(name, function, missing=None, install=""):
    def prepare(case, inputs):
        return Side(lambda: function(*inputs), lambda: flat(function(*inputs)), 0.5, {"note": "fake"})

    return Peer(name, name, prepare, lambda device: missing, install)


@pytest.fixture
def silent():
    return lambda line: None


def test_peers_are_timed_side_by_side(silent):
    other = fake_peer("other", CASE.function)
    result = harness.run_case(CASE, SIZE, [peers.PEERS["eager"], other], QUICK, silent)
    entry = result.entry("other")
    assert [len(t.readings) for t in entry.timings] == [3, 3]
    assert [s["paired"] for s in entry.speedups] == [True, True]
    assert entry.problem is None
    assert entry.details == {"note": "fake"}
    assert entry.model_bytes == 4 * CASE.elements("compiled", SIZE)
    assert result.entry("eager").model_bytes == 4 * CASE.elements("eager", SIZE)
    text = harness.result_table(result).text()
    assert "rho = " in text
    assert "other" in text


def test_wrong_answers_are_not_timed(silent):
    wrong = fake_peer("wrong", lambda x, w: CASE.function(x, w) + 1)
    nan = fake_peer("nan", lambda x, w: CASE.function(x, w) * math.nan)
    shape = fake_peer("shape", lambda x, w: CASE.function(x, w)[:-1])
    result = harness.run_case(CASE, SIZE, [peers.PEERS["eager"], wrong, nan, shape], QUICK, silent)
    for name in ("wrong", "nan", "shape"):
        assert result.entry(name).problem.startswith("wrong"), name
        assert result.entry(name).timings == []
    assert "wrong: wrong: off by" in harness.result_table(result).text()


def test_rounding_differences_of_ill_conditioned_rows_are_no_errors():
    case = cases.select("example_7_1")[0]
    x = case.make_inputs((64, 4096), torch.float32, "cpu")[0]
    x[0] -= x[0].double().mean().float()  # this row's sum is nothing but rounding
    reference = reference_of(case, [x])
    other_order = x / x.flip(-1).cumsum(-1)[:, -1:]
    eager_error = largest_error((case.function(x),), reference)
    assert largest_error((other_order,), reference) <= beside_eager(eager_error, torch.float32, 4096)


def test_missing_and_failing_peers_are_reported(silent):
    def boom(*inputs):
        raise RuntimeError("no such thing")

    absent = fake_peer("absent", CASE.function, missing="absent is not installed", install="pip install absent")
    result = harness.run_case(CASE, SIZE, [peers.PEERS["eager"], absent, fake_peer("broken", boom)], QUICK, silent)
    assert result.entry("absent").problem == "missing: absent is not installed; pip install absent"
    assert result.entry("broken").problem == "failed: RuntimeError: no such thing"
    assert result.entry("eager").timings


def test_record_and_plot(silent, tmp_path):
    from staxlab.view.benchmark import write_run_plot

    other = fake_peer("other", CASE.function)
    result = harness.run_case(CASE, SIZE, [peers.PEERS["eager"], other], QUICK, silent)
    record = harness.run_record([result], QUICK, False, True)
    saved = json.loads(records.save(record, tmp_path / "deep" / "run.json").read_text())
    assert {"format", "date", "command", "machine", "versions", "settings", "complete", "cases"} <= set(saved)
    row = next(p for p in saved["cases"][0]["peers"] if p["peer"] == "other")
    for parts, speedup in zip(row["decomposition"], row["speedups_over_eager"], strict=True):
        assert parts["speedup"] == pytest.approx(parts["rho"] * parts["quality"])
        assert speedup["interval"]["coverage"] == 0.75  # three readings
    assert row["decomposition"][0]["rho"] == pytest.approx(saved["cases"][0]["rho"])
    # The plot is drawn from the saved data alone.
    svg = ElementTree.fromstring(write_run_plot(saved, tmp_path / "run.svg").read_text())
    texts = ["".join(e.itertext()) for e in svg.iter() if e.tag.endswith("}text")]
    assert any(t.startswith("Speedup over eager (times)") for t in texts)
    assert "Model byte ratio rho (times)" in texts
    assert "Speedup S (times)" in texts
    assert CASE.title in texts
    assert "other" in texts
    assert CASE.title in svg.get("aria-label")
    assert write_run_plot(saved, tmp_path / "run.png", "dark").read_bytes().startswith(b"\x89PNG")


def test_interruption_is_recorded(silent):
    calls = []

    def stop(x, w):
        calls.append(1)
        if len(calls) > 6:
            raise KeyboardInterrupt
        return CASE.function(x, w)

    result = harness.run_case(CASE, SIZE, [peers.PEERS["eager"], fake_peer("other", stop)], QUICK, silent)
    assert not result.complete
    assert harness.run_record([result], QUICK, False, True)["complete"] is False
    json.dumps(harness.run_record([result], QUICK, False, True), allow_nan=False)


def test_separate_processes_combine_two_medians_intervals():
    result = harness.CaseResult(CASE, SIZE, [harness.Entry("eager"), harness.Entry("other")], {})
    eager = Timing("eager", tuple(float(v) for v in range(10, 25)))
    other = Timing("other", tuple(float(v) for v in range(1, 16)))
    harness.record_separate_round(result, [eager, other])
    speedup = result.entry("other").speedups[0]
    assert speedup["paired"] is False
    assert speedup["median"] == 17 / 8
    assert (speedup["interval"]["low"], speedup["interval"]["high"]) == (13 / 12, 21 / 4)
    assert speedup["interval"]["coverage"] == pytest.approx(0.9648**2, abs=1e-3)


def test_command_line_writes_json_and_plot(tmp_path, capsys):
    out = tmp_path / "r.json"
    code = run.main(
        ["--case", "relu", "--size", "8x16", "--peers", "eager", "--readings", "3", "--rounds", "1", "--out", str(out)]
    )
    assert code == 0
    assert json.loads(out.read_text())["complete"]
    assert out.with_suffix(".svg").read_text().startswith("<svg")
    assert "median A" in capsys.readouterr().out


def test_command_line_refusals(capsys):
    assert run.main(["--case", "nothing"]) == 2
    assert "no case named 'nothing'" in capsys.readouterr().err
    assert run.main(["--peers", "numpy"]) == 2
    assert "no peer named 'numpy'" in capsys.readouterr().err
    assert run.main(["--threads", "100000"]) == 2
    for bad in ("8192", "0x4", "axb"):
        with pytest.raises(SystemExit):
            run.main(["--size", bad])


def test_list_names_cases_and_peers(capsys):
    assert run.main(["--list"]) == 0
    text = capsys.readouterr().out
    assert all(case.name in text for case in cases.CASES)
    assert all(name in text for name in peers.PEERS)


@pytest.mark.slow
def test_isolated_processes_take_turns(silent):
    result = run._run_isolated(CASE, SIZE, [peers.PEERS["eager"]], QUICK, silent)
    assert len(result.entry("eager").timings) == 2
    assert result.entry("eager").model_bytes == 4 * CASE.elements("eager", SIZE)


def test_a_worker_that_dies_is_an_entry_with_a_problem(silent, monkeypatch):
    class Dead:
        returncode, stdout, stderr = -9, "", "Killed\n"

    monkeypatch.setattr(run.subprocess, "run", lambda *a, **k: Dead)
    result = run._run_isolated(CASE, SIZE, [peers.PEERS["eager"]], QUICK, silent)
    assert "the process ended with -9: Killed" in result.entry("eager").problem
    assert "Killed" in harness.result_table(result).text()


# --- Start-up and overhead --------------------------------------------------------------------------------------------


def test_a_fresh_process_answers_in_json():
    assert run_python("print('noise'); print('[1, 2]')") == [1, 2]
    assert run_python("import os, json; print(json.dumps(os.environ['X']))", {"X": "y"}) == "y"
    with pytest.raises(ProcessFailed, match="ended with 1: ZeroDivisionError"):
        run_python("1/0")
    with pytest.raises(ProcessFailed, match="no JSON"):
        run_python("print('hello')")


def test_startup_uses_one_cache_for_cold_and_warm_and_a_new_one_each_time():
    seen = []

    def runner(code, environment=None):
        if environment is None:
            return {"import_torch": 1.0, "import_staxlab": 0.05}
        seen.append(environment["STAXLAB_CACHE_DIR"])
        compile(code, "snippet", "exec")
        return {"first_call": 1.0 if seen.count(seen[-1]) == 1 else 0.25, "stages": {"capture": 0.1}}

    record = startup.measure(["staxlab"], SIZE, 3, 1, say=lambda line: None, runner=runner)
    assert len(set(seen)) == 4  # one of them does not count
    assert len(seen) == 12  # cold, with kernels, and with the plan
    assert record["results"]["staxlab"]["cold"]["first_call"]["median"] == 1.0
    assert record["results"]["staxlab"]["warm"]["first_call"]["readings"] == [0.25] * 3
    text = startup.table(record).text()
    assert "staxlab, first call, warm" in text
    assert "    capture" in text


def test_startup_snippets_are_valid_python():
    for snippet, variables in startup.COMPILERS.values():
        compile(snippet.format(rows=4, columns=8, device="cpu"), "snippet", "exec")
        assert variables
    compile(startup.IMPORT, "snippet", "exec")


def test_startup_keeps_going_without_a_failing_peer_and_stops_when_interrupted():
    def runner(code, environment=None):
        if environment is None:
            return {"import_torch": 1.0, "import_staxlab": 0.05}
        if "torch.compile" in code:
            raise ProcessFailed("ended with 1: no compiler")
        if runner.left == 0:
            raise KeyboardInterrupt
        runner.left -= 1
        return {"first_call": 1.0}

    runner.left = 6  # a repetition that does not count, and one that does
    record = startup.measure(["torch_compile", "staxlab"], SIZE, 3, 3, say=lambda line: None, runner=runner)
    assert record["failed"] == {"torch_compile": "ended with 1: no compiler"}
    assert not record["complete"]
    assert len(record["results"]["staxlab"]["cold"]["first_call"]["readings"]) == 1
    assert "interrupted" in startup.table(record).text()


def test_overhead_of_eager(tmp_path, capsys):
    out = tmp_path / "o.json"
    assert overhead.main(["--peers", "eager", "--readings", "3", "--bandwidth", "5e10", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    ways = ["same tensor", "new tensor", "data gate, same tensor", "data gate, new tensor"]
    assert [t["name"] for t in record["comparison"]["timings"]] == [f"eager, {way}" for way in ways]
    assert "eager, new tensor" in capsys.readouterr().out


def test_overhead_reports_missing_and_failing_peers(monkeypatch):
    monkeypatch.setitem(peers.PEERS, "xla", Peer("xla", "XLA", None, lambda d: "not here", "pip install it"))
    monkeypatch.setattr(torch, "compile", lambda f: (_ for _ in ()).throw(RuntimeError("no compiler")))
    found, missing = overhead.sides(["eager", "xla", "torch_compile"], 8)
    assert len(found) == 4 and all(name.startswith("eager, ") for name in found)
    assert missing == {"xla": "missing: not here; pip install it", "torch_compile": "failed: RuntimeError: no compiler"}
