"""Modes and options (Section 11.5, Table 11.1)."""

from __future__ import annotations

import dataclasses

import pytest

from staxlab import view
from staxlab.errors import OptionError
from staxlab.modes import ACTS_ON, mode_table
from staxlab.options import ELSEWHERE, MODES, Options


def settings(**given):
    options = dataclasses.asdict(Options.resolve(**given))
    del options["mode"]
    return options


def test_presets_first_and_then_options_key_by_key():
    assert settings(mode="max-autotune", options={"cuda_graphs": False}) == settings(mode="max-autotune-no-cudagraphs")
    assert settings(mode="default") == settings() == settings(mode=None)
    assert settings(mode="reduce-overhead", options={"cuda_graphs": False}) == settings()
    assert settings(mode="max-autotune", options={"autotune": "halving"})["autotune"] == "halving"


def test_the_table_is_what_compiling_uses():
    table = mode_table()
    assert [row.name for row in table.rows] == [mode for mode in MODES if mode]
    for row in table.rows:
        assert dict(row.values) == {option: settings(mode=row.name)[option] for option in ACTS_ON}
    assert {row.name: row.acts_on for row in table.rows} == {
        "default": (),
        "reduce-overhead": ("n * t_launch",),
        "max-autotune": ("|C|", "n * t_launch"),
        "max-autotune-no-cudagraphs": ("|C|",),
    }
    lines = str(table).splitlines()
    assert lines[3].split() == ["max-autotune", "yes", "yes", "yes", "|C|,", "n", "*", "t_launch"]


@pytest.mark.parametrize("spelling", ELSEWHERE)
def test_another_spelling_is_answered_with_ours(spelling):
    with pytest.raises(OptionError, match=f"here it is called {ELSEWHERE[spelling]!r}"):
        Options.resolve(options={spelling: False})


@pytest.mark.parametrize(
    "given, words",
    [
        ({"mode": "max-autotun"}, "did you mean 'max-autotune'"),
        ({"mode": 3}, "unknown mode 3"),
        ({"options": {"cuda_graph": True}}, "did you mean 'cuda_graphs'"),
        ({"options": {"dynamic": True}}, "a parameter of its own"),
        ({"options": {"outside": None}}, "unknown option 'outside'"),
    ],
)
def test_unknown_names_are_refused(given, words):
    with pytest.raises(OptionError, match=words):
        Options.resolve(**given)


def test_the_table_is_drawn():
    markup = view.fragment_of(mode_table()) if hasattr(view, "fragment_of") else str(view.mimebundle(mode_table()))
    for word in ("reduce-overhead", "n * t_launch", "Table 11.1"):
        assert word in markup
