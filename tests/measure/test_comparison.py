"""What systems were observed to do: the kept record is whole, its tables say what it says, observing anew replaces."""

from __future__ import annotations

import json
import subprocess

import pytest

from staxlab import view
from staxlab.errors import OptionError
from staxlab.measure import comparison
from staxlab.measure.comparison import COMMAND, SAVED, numbers_of, observations, observe_again, read
from staxlab.view.document import SIZE_CAP
from tests.view.reading import read as read_html
from tests.view.reading import references, stripped

WATCHED = ("own", "dynamo", "xla")


@pytest.fixture(scope="module")
def seen():
    return observations()


def kept_record():
    return json.loads(SAVED.read_text())


def test_every_system_was_observed_in_every_sequence(seen):
    assert [system.name for system in seen.watched] == list(WATCHED)
    for name, program in seen.programs.items():
        for place, sequence in enumerate(program.sequences):
            for system in WATCHED:
                run = seen.of(system, name, place)
                calls = len(numbers_of(sequence))
                assert len(run.graphs) == len(run.effects) == len(run.outcomes) == calls
                assert list(run.graphs) == sorted(run.graphs) and list(run.effects) == sorted(run.effects)


def test_nobody_gave_a_wrong_value_and_staxlab_never_fell_back(seen):
    for system in seen.watched:
        for runs in system.runs.values():
            assert all("wrong value" not in run.outcomes for run in runs)
            assert all(run.refused or set(run.outcomes) == {"right"} for run in runs)
    assert all("FallbackWarning" not in run.warnings for runs in seen.systems["own"].runs.values() for run in runs)


def test_the_aspects_are_those_of_the_section(seen):
    """Section 12: a break, a gate and an error at a branch; effects replayed or not; numbers by value, symbol, type."""
    branch = seen.behaviour("branch")
    assert branch.of("own").graphs[-1] == 2 and branch.of("dynamo").graphs[-1] == 3
    assert branch.of("xla").refused and "Tracer" in branch.of("JAX and XLA").said
    assert {run.graphs[-1] for _, run in seen.behaviour("select").rows} == {1}
    printing = seen.behaviour("printing", 1)
    assert [run.effects[-1] for _, run in printing.rows] == [1, 4, 1]
    scale = seen.behaviour("scale", 1)
    assert [run.graphs[-1] for _, run in scale.rows] == [4, 2, 1]
    assert [run.graphs[-1] for _, run in seen.behaviour("shapes", 2).rows] == [4, 2, 4]


def test_calls_that_share_a_compilation_are_classes(seen):
    """Sharing is an equivalence in every system, and the coarser key has the coarser classes."""
    by_system = {name: seen.shared("guarded_scale", name) for name in WATCHED}
    for shared in by_system.values():
        places = range(len(shared.calls))
        assert all(shared.together(i, i) for i in places)
        assert all(shared.together(i, j) == shared.together(j, i) for i in places for j in places)
        assert all(
            shared.together(i, k)
            for i in places for j in places for k in places
            if shared.together(i, j) and shared.together(j, k)
        )  # fmt: skip
    assert len(by_system["own"].classes()) == len(by_system["own"].calls)
    assert ("+4, 2", "-4, 2", "+4, 3", "-4, 3") in by_system["xla"].classes()


def test_failures_say_what_is_returned_by_default(seen):
    rows = {(title, setting): (outcome, said) for title, setting, outcome, said in seen.failure().rows}
    assert rows["staxlab", "default"] == ("right", "FallbackWarning")
    assert rows["staxlab", "strict_native=True"][0] == "LoweringError"
    assert rows["TorchDynamo", "default"][0] == "BackendCompilerFailed"
    assert rows["TorchDynamo", "suppress_errors=True"] == ("right", "")
    assert rows["JAX and XLA", "default"][0] == "NotImplementedError"


def records(seen):
    return {
        "all": seen,
        "behaviour": seen.behaviour("shapes"),
        "same words": seen.behaviour("branch"),
        "failure": seen.failure(),
        "key": seen.key("scale"),
        "shared": seen.shared("guarded_scale", "xla"),
    }


@pytest.mark.parametrize("kind", ["all", "behaviour", "same words", "failure", "key", "shared"])
def test_a_record_is_text_and_a_self_contained_page(kind, seen):
    record = records(seen)[kind]
    bundle = record._repr_mimebundle_()
    html = bundle["text/html"]
    assert "drawing failed" not in html and len(html) < SIZE_CAP and references(html) == []
    assert view.html(record) == html and bundle["text/plain"] == str(record)
    words = read_html(stripped(html)).text
    for row in record.table().rows:
        assert all(cell in words for cell in row)


def test_a_behaviour_shows_its_program_in_the_words_that_differ(seen):
    same, other = (read_html(seen.behaviour(name)._repr_mimebundle_()["text/html"]).text for name in ("loop", "shapes"))
    assert "while x.sum() < 16" in same and "in JAX's words" not in same
    assert "torch.relu(x)" in other and "jax.nn.relu(x)" in other and "in JAX's words" in other
    assert "f(+4), f(+8), f(+4)" in str(seen.behaviour("loop"))


def test_columns_of_effects_stand_where_there_are_effects(seen):
    assert "effects so far" in seen.behaviour("append").table().columns
    assert "effects so far" not in seen.behaviour("branch").table().columns


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("+4; -4", (("+4",), ("-4",))),
        ("+4x2h, 2; +4, 2.5", (("+4x2h", 2), ("+4", 2.5))),
    ],
)
def test_sequences_are_read_as_they_were_written(text, calls):
    found = numbers_of(text)
    assert found == calls and [[type(a) for a in call] for call in found] == [[type(a) for a in c] for c in calls]


def test_what_does_not_exist_is_refused_with_what_does(seen):
    with pytest.raises(OptionError, match="no program is called 'branches'") as caught:
        seen.behaviour("branches")
    assert "branch" in caught.value.remedy
    with pytest.raises(OptionError, match="sequences"):
        seen.behaviour("loop", 7)
    with pytest.raises(OptionError, match="not observed"):
        seen.of("halide", "branch")
    with pytest.raises(OptionError, match="no pairs"):
        seen.shared("branch", "own")
    with pytest.raises(OptionError, match="nothing is called clang"):
        observe_again(["clang"])
    with pytest.raises(OptionError, match="format 'of another kind'"):
        read({"format": "of another kind"})


def test_a_damaged_record_names_the_command_that_makes_it(tmp_path, monkeypatch):
    broken = tmp_path / "observed.json"
    broken.write_text("{")
    monkeypatch.setattr(comparison, "SAVED", broken)
    observations.cache_clear()
    try:
        with pytest.raises(OptionError, match="cannot be read") as caught:
            observations()
        assert COMMAND in caught.value.remedy
    finally:
        observations.cache_clear()


def asked(record):
    """A command that answers with ``record`` and remembers what it was asked."""
    questions = []

    def run(arguments):
        questions.append(list(arguments))
        return record

    return run, questions


def test_what_is_observed_anew_replaces_what_was_kept(seen):
    record = kept_record()
    (branch,) = [record["systems"]["own"]["runs"]["branch"][:1]]
    branch[0]["graphs"] = "7 7 7 8"
    record["systems"] = {"own": {"title": "staxlab", "runs": {"branch": branch}}}
    record["versions"]["torch"] = "9.9"
    run, questions = asked(record)
    now = observe_again(["own"], ["branch"], structure=False, run=run)
    assert questions == [["--first", "--systems", "own", "--programs", "branch", "--no-structure"]]
    assert now.of("own", "branch").graphs == (7, 7, 7, 8) and now.systems["own"].fresh == {"branch"}
    assert now.of("own", "branch", 1) == seen.of("own", "branch", 1), "other sequences are those that were kept"
    assert now.systems["dynamo"] == seen.systems["dynamo"] and now.shared("guarded_scale", "own").marks
    shown = str(now.behaviour("branch"))
    assert "observed just now: staxlab" in shown and "torch 9.9" in shown
    assert "observed on" in shown and "just now" in str(now)
    for other in (now.behaviour("branch", 1), now.behaviour("loop"), now.failure(), now.key("loop")):
        assert "just now" not in str(other), "what was not asked again is not said to be new"
        assert "torch 9.9" not in str(other), "nor to be of the version that is installed now"


def test_a_system_that_is_not_installed_is_shown_as_it_was(seen, monkeypatch):
    run, questions = asked(kept_record())
    monkeypatch.setattr(comparison.importlib.util, "find_spec", lambda name: None if name == "jax" else object())
    now = observe_again(["xla"], run=run)
    assert not questions and now.systems == seen.systems
    assert "jax is not installed; what is shown was observed before" in str(now)


def test_a_system_that_reports_itself_missing_keeps_its_entry(seen):
    record = kept_record()
    record["systems"] = {"own": {"missing": "its process ended with 1: no memory"}}
    now = observe_again(["own"], run=lambda arguments: record)
    assert now.systems == seen.systems and "no memory" in str(now)


@pytest.mark.parametrize(
    "error",
    [subprocess.TimeoutExpired("python", 1), subprocess.CalledProcessError(1, "python"), ValueError("no JSON")],
)
def test_observing_that_fails_is_said_and_changes_nothing(seen, error):
    def run(arguments):
        raise error

    now = observe_again(["own"], run=run)
    assert now.systems == seen.systems
    assert f"observing anew failed ({type(error).__name__})" in str(now)


def test_without_a_checkout_nothing_is_run(seen, monkeypatch, tmp_path):
    monkeypatch.setattr(comparison, "results_directory", lambda: tmp_path / "benchmarks" / "results")
    run, questions = asked(kept_record())
    now = observe_again(["own"], run=run)
    assert not questions and now.systems == seen.systems and "no checkout" in str(now)
