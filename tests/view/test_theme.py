"""Every colour that carries text is readable on every background it can meet, in both themes."""

from __future__ import annotations

import re

import pytest

from staxlab.view.theme import BACKGROUND_ROLES, COLOURS, HOST_VARIABLES, TEXT_ROLES, contrast, stylesheet

READABLE = 4.5  # WCAG 2.2, 1.4.3
VISIBLE = 3.0  # WCAG 2.2, 1.4.11: graphical objects
THEMES = {"light": 0, "dark": 1}


def test_contrast_is_the_standard_ratio():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#777777") == 1
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("background", [*BACKGROUND_ROLES, "linked", "added", "removed"])
def test_text_is_readable(theme, background):
    position = THEMES[theme]
    poor = {
        role: round(contrast(COLOURS[role][position], COLOURS[background][position]), 2)
        for role in TEXT_ROLES
        if contrast(COLOURS[role][position], COLOURS[background][position]) < READABLE
    }
    assert not poor


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("fill", ["input", "call", "constant", "output", "linked"])
def test_nodes_of_a_drawing_are_readable(theme, fill):
    position = THEMES[theme]
    for role in ("text", "muted"):
        assert contrast(COLOURS[role][position], COLOURS[fill][position]) >= READABLE


@pytest.mark.parametrize("theme", THEMES)
def test_lines_and_bars_are_visible(theme):
    position = THEMES[theme]
    for role in ("strong-rule", "linked-mark", "read", "write", "accent"):
        for background in BACKGROUND_ROLES:
            assert contrast(COLOURS[role][position], COLOURS[background][position]) >= VISIBLE, (role, background)


# The backgrounds of JupyterLab's and VS Code's own themes, which take the place of ours.
@pytest.mark.parametrize(
    "theme,host", [("light", "#ffffff"), ("dark", "#212121"), ("dark", "#1f1f1f"), ("dark", "#111111")]
)
def test_text_is_readable_on_the_hosts_background(theme, host):
    for role in TEXT_ROLES:
        assert contrast(COLOURS[role][THEMES[theme]], host) >= READABLE, role


def test_the_stylesheet_defines_every_role_in_every_theme():
    css = stylesheet()
    blocks = re.findall(r"\{([^{}]*)\}", css)
    literal = [set(re.findall(r"--sx-([\w-]+): #", block)) for block in blocks]
    expected = {f"own-{role}" if role in HOST_VARIABLES else role for role in COLOURS}
    assert sum(found == expected for found in literal) == 4  # light, the reader's dark, hosts' light, hosts' dark
    for role in HOST_VARIABLES:
        assert f"--sx-{role}: var(--jp-" in css
