"""STAXLAB_LOGS: who is heard, when texts are written, and that table, documentation and uses agree."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import staxlab
from staxlab import logs, pipeline, remarks
from staxlab.compilation import STAGES

ROOT = Path(__file__).resolve().parent.parent
SAID = re.compile(r'\b(?:say|enabled)\(\s*"(\w+)"')


@pytest.fixture(autouse=True)
def _nobody_listens(monkeypatch):
    monkeypatch.delenv(logs.VARIABLE, raising=False)
    logs.clear()
    yield
    logs.clear()


def test_only_named_topics_are_printed_and_only_their_texts_are_written(monkeypatch, capsys):
    monkeypatch.setenv(logs.VARIABLE, " Cache ,build")
    written = []

    def text(topic):
        return lambda: written.append(topic) or f"about {topic}"

    for topic in ("cache", "loops", "build"):
        logs.say(topic, text(topic))
    assert capsys.readouterr().err == "[cache] about cache\n[build] about build\n"
    assert written == ["cache", "build"]
    monkeypatch.setenv(logs.VARIABLE, "loops")  # read anew: what was on is off
    logs.say("cache", text("cache"))
    logs.say("loops", "100 % of it")
    assert capsys.readouterr().err == "[loops] 100 % of it\n"
    monkeypatch.delenv(logs.VARIABLE)
    assert not any(map(logs.enabled, logs.TOPICS))


def test_all_is_every_topic(monkeypatch):
    monkeypatch.setenv(logs.VARIABLE, "all")
    assert all(map(logs.enabled, logs.TOPICS))
    with pytest.raises(KeyError, match="no topic"):
        logs.enabled("looops")


def test_an_unknown_topic_warns_once_with_the_nearest(monkeypatch):
    monkeypatch.setenv(logs.VARIABLE, "recompile,cache")
    with pytest.warns(UserWarning, match="'recompile'; did you mean 'recompiles'") as caught:
        for _ in range(3):
            logs.say("loops", "text")
    assert len(caught) == 1
    assert logs.enabled("cache") and not logs.enabled("recompiles")


def test_several_threads_that_notice_a_new_value_warn_once():
    with pytest.warns(UserWarning, match="no topic 'nonsense'") as caught:
        for _ in range(2):  # as the second of two threads that were both about to
            logs._attached.attend_to("nonsense")
    assert len(caught) == 1


def test_an_application_s_own_logging_hears_the_same(caplog):
    with caplog.at_level(logging.DEBUG, logger="staxlab.fusion"):
        logs.say("fusion", lambda: "two nodes")
        logs.say("memory", lambda: pytest.fail("nobody listens"))
    assert [(record.name, record.getMessage()) for record in caplog.records] == [("staxlab.fusion", "two nodes")]


def test_levels_and_handlers_are_given_back(monkeypatch):
    logger = logging.getLogger("staxlab.cache")
    before = logger.level, [*logger.handlers]
    logger.setLevel(logging.ERROR)
    try:
        monkeypatch.setenv(logs.VARIABLE, "cache")
        assert logs.enabled("cache") and logger.level == logging.DEBUG
        monkeypatch.setenv(logs.VARIABLE, "")
        assert not logs.enabled("cache")
        assert logger.level == logging.ERROR and logger.handlers == before[1]
    finally:
        logger.setLevel(before[0])


def test_a_text_that_cannot_be_written_stops_nothing(monkeypatch, capsys):
    monkeypatch.setenv(logs.VARIABLE, "loops")
    logs.say("loops", lambda: 1 // 0)
    assert "cannot be printed: ZeroDivisionError" in capsys.readouterr().err


def test_a_closed_standard_error_stops_nothing(monkeypatch):
    import io

    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    monkeypatch.setenv(logs.VARIABLE, "loops")
    logs.say("loops", "text")


def test_a_new_version_lists_its_guards(monkeypatch, capsys):
    monkeypatch.setenv(logs.VARIABLE, "guards")
    compiled = staxlab.compile(lambda x: x + 1, backend="eager")
    compiled(torch.ones(3))
    said = capsys.readouterr().err
    assert said.startswith("[guards] version 1 of '<lambda>':\n") and "x.shape[0] == 3" in said


@pytest.fixture
def said_by(monkeypatch, capsys, tmp_path):
    """What a compilation says under topics: (lines under ``stages``, everything)."""
    monkeypatch.setenv("STAXLAB_CACHE_DIR", str(tmp_path))  # nothing to restore: every stage runs

    def said_by(topics, function, *args):
        monkeypatch.setenv(logs.VARIABLE, topics)
        staxlab.explain(function, *args)
        said = capsys.readouterr().err
        return [line for line in said.splitlines() if line.startswith("[stages]")], said

    return said_by


def test_every_stage_says_what_it_delivered(said_by):
    def f(x, w):
        return (x * w).relu().sum(1)

    stages, said = said_by("all", f, torch.ones(4, 8), torch.ones(8))
    titles = [stage.title for stage in STAGES if not (stage.differentiates or stage.option or stage.name == "outside")]
    assert [re.match(r"\[stages\] f: (.*?) [\d.]+ ms: \S", line)[1] for line in stages] == titles
    for topic in ("graph", "transforms", "operators", "loops", "fusion", "memory", "kernels", "wrapper"):
        assert f"[{topic}] f, " in said, topic
    assert "%mul" in said and 'extern "C"' in said and "def call(" in said


def test_a_restored_region_says_so(plans, monkeypatch, capsys):
    def f(x):
        return x.exp().sum()

    staxlab.explain(f, torch.ones(4))
    monkeypatch.setenv(logs.VARIABLE, "stages")
    compilation = staxlab.explain(f, torch.ones(4))
    said = capsys.readouterr().err
    assert compilation.restored and "Loop IR" not in said
    assert f"[stages] f: restored from the cache, key {compilation.plan_key}: loops, schedule" in said


def test_topics_of_restored_stages_say_that_they_did_not_run(plans, monkeypatch, capsys):
    def f(x):
        return x.exp().sum()

    staxlab.explain(f, torch.ones(4))
    for topic in ("loops", "fusion", "memory", "kernels", "wrapper"):
        monkeypatch.setenv(logs.VARIABLE, topic)
        assert staxlab.explain(f, torch.ones(4)).restored
        assert capsys.readouterr().err.startswith(f"[{topic}] f: restored from the cache, nothing is made anew"), topic


def test_a_training_region_says_its_joint_graph_and_its_backward_half(said_by):
    x = torch.ones(4, requires_grad=True)
    stages, said = said_by("stages,joint", lambda x: x.exp().sin(), x)
    assert any(": Joint graph " in line for line in stages)
    assert any("<lambda>, backward: Artifact" in line for line in stages)
    assert "[joint] <lambda>, Rematerialization (Section 5.4):" in said and "[BW]" in said


def test_a_fallback_says_why(said_by, monkeypatch):
    def f(x):
        return x.sort()[0] + 1

    _, said = said_by("fallbacks", f, torch.ones(4))
    assert said.count("aten.sort.default runs through PyTorch (library)") == 1 and "test_logs.py" in said
    monkeypatch.setitem(pipeline.RUN, "loops", lambda compilation: 1 // 0)
    with pytest.warns(staxlab.FallbackWarning):
        _, said = said_by("fallbacks", f, torch.ones(5))
    assert "f runs operator by operator: stage 'loops': ZeroDivisionError" in said


def test_warnings_of_a_logger_look_like_its_remarks_from_the_start():
    program = "import staxlab, logging; logging.getLogger('staxlab.cache').warning('an entry is damaged')"
    environment = os.environ | {logs.VARIABLE: "cache", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == "[cache] an entry is damaged\n"


def test_every_topic_is_said_by_somebody_and_no_other():
    told = {topic for rows in remarks._TOLD.values() for topic, _ in rows}
    said = {topic for path in (ROOT / "staxlab").rglob("*.py") for topic in SAID.findall(path.read_text("utf-8"))}
    assert said | told == logs.TOPICS.keys()


def test_the_documentation_has_the_table():
    text = (ROOT / "docs" / "logs.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.MULTILINE))
    assert rows == {**logs.TOPICS, "all": "every topic"}
    assert logs.VARIABLE in text
