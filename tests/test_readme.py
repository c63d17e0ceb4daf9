"""The README as its reader takes it: its lines run in order, its commands parse, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
import warnings
from pathlib import Path

import pytest

from staxlab import cli
from staxlab.learn.exercise import SECTIONS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, flags=re.M | re.S)


def test_the_python_lines_run_from_top_to_bottom_without_a_warning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # one of them saves a file
    namespace: dict = {"__name__": "readme"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number, source in enumerate(text for language, text in BLOCKS if language == "python"):
            exec(compile(source, f"<README, block {number}>", "exec"), namespace)
    assert namespace["compilation"].kernels and len(namespace["f"].versions) == 1


def commands() -> list[list[str]]:
    lines = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines()]
    return [words[1:] for line in lines if (words := shlex.split(line, comments=True))[:1] == ["staxlab"]]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_the_commands_exist(words):
    cli.build_parser().parse_args(words)
    for stage in (b for a, b in zip(words, words[1:], strict=False) if a == "--stage"):
        assert cli._known_stage(stage) == stage


def test_the_links_lead_somewhere():
    headings = {re.sub(r"[^a-z0-9]+", "-", text.lower()) for text in re.findall(r"^#+ (.+)$", README, flags=re.M)}
    for target in re.findall(r"\]\(([^)#]*)(?:#[^)]*)?\)", README):
        assert not target or (ROOT / target).exists(), target
    for anchor in re.findall(r"\]\(#([^)]*)\)", README):
        assert anchor in headings
    assert "(exercises/)" in README and "(notebooks/)" in README


def test_it_says_what_the_sections_are_about():
    table = README.split("## Numbers")[1].split("## ")[0]
    assert {int(number) for number in re.findall(r"\| (\d+) \|", table)} == set(SECTIONS)


def test_it_says_near_the_top_what_is_not_compiled():
    top = README.split("## Look at")[0]
    assert "torch.no_grad()" in top and "operator by operator" in top and "FallbackWarning" in top
