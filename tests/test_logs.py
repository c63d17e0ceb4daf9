"""STAXLAB_LOGS: who is heard, when texts are written, and that table, documentation and uses agree."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
import torch

import staxlab
from staxlab import logs

ROOT = Path(__file__).resolve().parent.parent
SAID = re.compile(r'logs\.(?:say|enabled)\(\s*"(\w+)"')


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
    import sys

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


def test_every_topic_that_is_said_exists():
    said = {topic for path in (ROOT / "staxlab").rglob("*.py") for topic in SAID.findall(path.read_text("utf-8"))}
    assert said <= logs.TOPICS.keys()
