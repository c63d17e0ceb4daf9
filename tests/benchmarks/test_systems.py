"""The comparison of systems: counting is right, what is kept is what happens now, schedules change no value."""

from __future__ import annotations

import importlib.util
import json
import os

import pytest
import torch

from benchmarks import harness, peers
from benchmarks.systems import __main__ as command
from benchmarks.systems import halide, own, programs, timing, tvm, watching
from benchmarks.systems.programs import PROGRAMS, Program, sequence_text
from staxlab.measure.comparison import PACKAGES, SAVED, numbers_of, read

BY_NAME = {program.name: program for program in PROGRAMS}
KEPT = json.loads(SAVED.read_text())


# --- Counting, with a system made up for it ---------------------------------------------------------------------------


class Imagined:
    """A system that compiles for every new first argument, and does with a function what the test asks for."""

    name, title, library = "imagined", "Imagined", "torch"
    make = staticmethod(watching.torch_argument)
    values = staticmethod(lambda result: result.tolist())

    def __init__(self, change=lambda result: result):
        self.change = change

    def take(self, program, log):
        function = programs.function_of(program.source, {"torch": torch, "log": log}, "<imagined>")
        change = self.change

        class Taken:
            seen: set = set()

            def __init__(self):
                self.seen = set()

            def call(self, x, *rest):
                self.seen.add(tuple(x.shape))
                return change(function(x, *rest))

            def graphs(self):
                return len(self.seen)

        return Taken()


def test_graphs_effects_and_outcomes_are_counted_after_every_call():
    run = watching.watch(Imagined(), BY_NAME["append"], (("+4",), ("+4",), ("+2",)))
    assert (run.graphs, run.effects, run.outcomes) == ([1, 1, 2], [1, 2, 3], ["right"] * 3)
    printed = watching.watch(Imagined(), BY_NAME["printing"], (("+4",), ("+4",)))
    assert printed.effects == [1, 2]
    assert printed.to_json()["graphs"] == "1 1" and printed.to_json()["outcomes"] == "right, right"


def test_a_wrong_value_and_an_error_are_findings():
    assert watching.watch(Imagined(lambda r: r + 1), BY_NAME["branch"], (("+4",),)).outcomes == ["wrong value"]

    def refuse(result):
        raise TypeError("no\nmore")

    run = watching.watch(Imagined(refuse), BY_NAME["branch"], (("+4",), ("-4",)))
    assert run.outcomes == ["TypeError"] * 2 and run.errors == ["TypeError: no"]


def test_pairs_are_made_of_fresh_systems():
    calls = (("+4", 2), ("+4", 3), ("+2", 2))
    assert watching.shared(Imagined(), BY_NAME["guarded_scale"], calls) == ["==.", "==.", "..="]
    with pytest.raises(ValueError, match="does not take guarded_scale"):
        watching.shared(Imagined(lambda r: r + 1), BY_NAME["guarded_scale"], calls)


def test_arguments_are_what_they_are_written_as():
    x = watching.torch_argument("-4x2h")
    assert x.shape == (4, 2) and x.dtype == torch.float16 and bool((x == -1).all())
    assert watching.torch_argument(2.5) == 2.5


# --- The programs, and what was kept of them --------------------------------------------------------------------------


def test_the_kept_record_is_of_these_programs():
    assert KEPT["format"] == command.FORMAT and set(KEPT["programs"]) == set(BY_NAME)
    for name, program in BY_NAME.items():
        entry = KEPT["programs"][name]
        assert (entry["source"], entry["jax"]) == (program.source, program.text("jax"))
        assert entry["sequences"] == [sequence_text(sequence) for sequence in program.sequences]
        assert [numbers_of(text) for text in entry["sequences"]] == list(program.sequences)


@pytest.mark.parametrize("name", BY_NAME)
def test_staxlab_does_what_is_kept(name, cache_dir):
    program = BY_NAME[name]
    kept = KEPT["systems"]["own"]
    for sequence, entry in zip(program.sequences, kept["runs"][name], strict=True):
        found = watching.watch(own, program, sequence)
        assert found.to_json() == entry, sequence
    if program.pairs:
        assert watching.shared(own, program, program.sequences[0][:5]) == [row[:5] for row in kept["pairs"][name][:5]]
    assert own.keys(program) == kept["keys"][name]


def test_staxlabs_failures_are_those_that_are_kept(cache_dir):
    assert own.failures() == KEPT["systems"]["own"]["failures"]


@pytest.mark.slow
@pytest.mark.parametrize("system", ["dynamo", "xla", "halide", "tvm"])
def test_the_others_do_what_is_kept(system, capsys):
    """In a process of their own, in the first sequence of each program."""
    package = {"dynamo": "torch", "xla": "jax", "halide": "halide", "tvm": "apache-tvm"}[system]
    if importlib.util.find_spec(PACKAGES[system]) is None:
        pytest.skip(f"{package} is not installed")
    assert command.main(["observe", "--systems", system, "--first"]) == 0
    record = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    if version(record, package) != version(KEPT, package):
        pytest.skip(f"what is kept was observed with {package} {KEPT['versions'].get(package)}")
    found, kept = record["systems"][system], KEPT["systems"][system]
    assert found.get("failures") == kept.get("failures")
    for name, runs in found.get("runs", {}).items():
        assert runs == kept["runs"][name][:1], name
    if system == "halide":  # the lengths of vectors are the processor's
        for function, now in found["structure"].items():
            before = kept["structure"][function]
            assert (now["algorithm"], now["schedules"]) == (before["algorithm"], before["schedules"])
            assert now["loops"][halide.STAGES] == before["loops"][halide.STAGES]
    if system == "tvm":
        assert {name: now["loops"][tvm.UNSCHEDULED] for name, now in found["structure"].items()} == {
            name: before["loops"][tvm.UNSCHEDULED] for name, before in kept["structure"].items()
        }


def version(record, package):
    """Without what a build adds to it ("+cpu")."""
    return record["versions"].get(package, "").split("+")[0]


def test_a_system_that_is_missing_is_said_to_be(monkeypatch):
    monkeypatch.setattr(halide, "missing", lambda: "halide is not installed")
    assert command.observed("halide", (), True, True) == {"missing": "halide is not installed"}


def test_the_command_refuses_unknown_names(capsys):
    with pytest.raises(SystemExit):
        command.main(["observe", "--systems", "clang"])
    assert "nothing is called clang" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["time", "--size", "many"])


def test_a_process_that_dies_is_an_entry(monkeypatch, tmp_path):
    from staxlab.measure import fresh_process as fresh

    def dies(code, environment):
        raise fresh.ProcessFailed("ended with -4: illegal instruction")

    monkeypatch.setattr(fresh, "run_python", dies)
    path = tmp_path / "record.json"
    assert command.main(["observe", "--systems", "halide", "--programs", "branch", "--out", str(path)]) == 0
    record = json.loads(path.read_text())
    assert "illegal instruction" in read(record).systems["halide"].missing
    assert list(record["programs"]) == ["branch"]


# --- Halide: a schedule changes no value ------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", halide.SCHEDULES)
@pytest.mark.parametrize("case", timing.compared_cases(), ids=lambda case: case.name)
def test_every_schedule_computes_the_function(case, schedule):
    """Sizes that neither vectors nor tiles divide."""
    pytest.importorskip("halide")
    for size in ((37, 53), (16, 32)):
        inputs = case.make_inputs(size, torch.float32, "cpu", seed=1)
        side = timing._halide_side(schedule)(case, inputs)
        (found,) = side.outputs()
        wanted = case.function(*(t.double() for t in inputs))
        assert found.shape == wanted.shape
        assert torch.allclose(found.double(), wanted, rtol=1e-5, atol=1e-5)


def test_the_target_has_only_what_the_processor_reports(monkeypatch, tmp_path):
    pytest.importorskip("halide")
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nflags\t\t: fpu sse4_1 avx avx2 fma\n")

    class Here(type(tmp_path)):
        def read_text(self, *args, **more):
            return info.open().read()

    monkeypatch.setattr(halide, "Path", Here)
    assert "avx512" not in str(halide.target()) and "f16c" not in str(halide.target())
    assert "avx2" in str(halide.target())


# --- Timing -----------------------------------------------------------------------------------------------------------


def test_a_run_has_every_peer_and_names_those_that_are_missing(tmp_path, capsys):
    path = tmp_path / "times.json"
    arguments = ["time", "--size", "16x32", "--readings", "3", "--peers", "eager,staxlab,halide_pieces"]
    assert command.main([*arguments, "--out", str(path)]) == 0
    record = json.loads(path.read_text())
    assert record["format"] == command.TIMES_FORMAT and record["complete"]
    assert [case["case"] for case in record["cases"]] == list(timing.NAMES)
    for case in record["cases"]:
        entries = {entry["peer"]: entry for entry in case["peers"]}
        assert set(entries) == {"eager", "staxlab", "halide_pieces"}
        assert entries["staxlab"]["problem"] is None and entries["staxlab"]["speedups_over_eager"]
        missing = importlib.util.find_spec("halide") is None
        assert (entries["halide_pieces"]["problem"] is not None) == missing


def test_first_calls_find_empty_caches(monkeypatch, tmp_path):
    monkeypatch.setenv("STAXLAB_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    with pytest.raises(ZeroDivisionError), timing.cold_caches():
        inside = os.environ["STAXLAB_CACHE_DIR"], os.environ["TORCHINDUCTOR_CACHE_DIR"]
        assert str(tmp_path) not in inside and len(set(inside)) == 2 and not any(map(os.path.exists, inside))
        raise ZeroDivisionError
    assert os.environ["STAXLAB_CACHE_DIR"] == str(tmp_path) and "TORCHINDUCTOR_CACHE_DIR" not in os.environ


def test_page_faults_of_a_call_are_among_the_details():
    case = timing.compared_cases()[0]
    peer = timing.counting_faults(peers.PEERS["eager"])
    side = peer.prepare(case, case.make_inputs((4096, 4096), torch.float32, "cpu"))
    assert side.details["page_faults"] > 0, "values of 64 MiB are new memory at each call"
    assert peer.title == peers.PEERS["eager"].title


def test_every_peer_has_a_title_and_a_way_to_get_it():
    found = timing.compared_peers()
    assert [peer.name for peer in found] == [
        "eager", "torch_compile", "xla", "halide_stages", "halide_pieces", "tvm", "staxlab",
    ]  # fmt: skip
    for peer in found:
        assert peer.title and (peer.name in peers.PEERS or "staxlab[" in peer.install)
        if peer.name in ("halide_pieces", "tvm"):
            assert peer.missing("cuda"), "these are compared on a CPU"


def test_a_peer_with_another_answer_is_not_timed():
    wrong = peers.Peer("halide_pieces", "wrong", lambda case, inputs: peers.Side(
        lambda: None, lambda: (torch.zeros(16),), 0.1))  # fmt: skip
    case = timing.compared_cases()[0]
    settings = harness.Settings(readings=3, rounds=1, roof=False)
    result = harness.run_case(case, (16, 32), [peers.PEERS["eager"], wrong], settings, lambda line: None)
    assert result.entry("halide_pieces").problem.startswith("wrong")


def test_programs_say_which_aspect_they_show():
    assert {program.aspect for program in PROGRAMS} == {
        programs.CONTROL_FLOW, programs.EFFECTS, programs.SPECIALIZATION,
    }  # fmt: skip
    assert all(isinstance(program, Program) and program.title for program in PROGRAMS)
