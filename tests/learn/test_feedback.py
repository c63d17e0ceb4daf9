"""Feedback as a value, as terminal text, and as HTML in which nothing of the student's becomes markup."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest

from staxlab.learn import feedback as f
from staxlab.learn.rubrics import Criterion, Rubric

NASTY = "<script>alert(1)</script> & \"quoted\" 'text' \x07 \ud800"


def sample():
    items = (
        f.Item("eager", "bytes", Fraction(2), f.right("Right.")),
        f.Item(
            "fused", "bytes", Fraction(3), f.nearly("Almost.", ("at", "n = 1"), ("yours", NASTY), credit=Fraction(1, 3))
        ),
        f.Item("intensity", "rate", Fraction(1), f.wrong(NASTY, ("at", "n = 2"), mistake="inverted")),
        f.Item("steps", "chain", Fraction(1), f.missing()),
        f.Item("other", "x", Fraction(1), f.malformed("other must be a number.")),
        f.Item("more", "x", Fraction(1), f.unchecked("needs sympy")),
        f.Item("proof", "prose", Fraction(4), f.pending("Recorded.")),
    )
    return f.Feedback("ex99", "A title", 5, (("C", "128"),), (f.PartFeedback("1", "Part", items),), ("a note",))


def test_points_are_exact_and_prose_is_kept_apart():
    feedback = sample()
    assert feedback.earned == 3 and feedback.maximum == 9 and feedback.pending == 4
    assert feedback.score == Fraction(1, 3) and feedback.points == 3.0 and not feedback.complete
    assert feedback["fused"].credit == Fraction(1, 3)
    with pytest.raises(KeyError):
        feedback["nothing"]


def test_credit_and_status_cannot_contradict_each_other():
    with pytest.raises(ValueError):
        f.nearly("all of it", credit=1)
    with pytest.raises(ValueError):
        f.Verdict(f.Status.RIGHT, Fraction(1, 2), "half right")
    with pytest.raises(ValueError):
        f.Verdict(f.Status.WRONG, Fraction(-1), "less than nothing")


def test_the_terminal_text_says_everything():
    text = str(sample())
    expected = """
        ex99 · A title: 3 of 9 points, 4 more from your instructor
        with C = 128
        [3/9]
        ✓ eager (right, 2/2)
        ≈ fused (nearly, 1/3)
        ✗ intensity (wrong, 0/1)
        ○ steps (not answered, 0/1)
        ! other (cannot be read, 0/1)
        ? more (could not be checked, 0/1)
        ✎ proof (for your instructor, 4 points)
        at    : n = 1
        Note: a note
    """
    for part in filter(None, map(str.strip, expected.splitlines())):
        assert part in text, part
    assert all(len(line) <= 104 for line in text.splitlines())
    assert repr(sample()) == text


def test_html_escapes_and_holds_the_same_content():
    bundle = sample()._repr_mimebundle_()
    assert bundle["text/plain"] == str(sample())
    html = bundle["text/html"]
    html.encode("utf-8")  # no lone surrogate survives
    assert "<script" not in html and "&lt;script&gt;" in html and "\x07" not in html
    assert not re.search(r"(?:src|href|url)\s*[=(]", html), "something would be fetched"
    for part in ("sx-right", "sx-nearly", "sx-wrong", "✓", "≈", "✗", "not answered", "What was found", "n = 1"):
        assert part in html


def test_html_reads_without_styles_and_sets_both_colours():
    html = sample()._repr_mimebundle_()["text/html"]
    without = re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)
    words = re.sub(r"<[^>]+>", " ", without)
    assert "nearly, 1/3" in words and "Almost." in words and "style=" not in without
    root = re.search(r"\.staxlab\.sx-learn \{([^}]*)\}", html).group(1)
    assert "color: var(--sx-text)" in root and "background: var(--sx-background)" in root
    assert "--jp-layout-color1" in html and "--vscode-editor-background" in html


def test_html_is_the_same_every_time():
    assert sample()._repr_mimebundle_() == sample()._repr_mimebundle_()


def test_json_is_plain():
    import json

    data = json.loads(json.dumps(sample().to_json()))
    assert data["earned"] == "3" and data["fields"]["fused"]["credit"] == "1/3"
    assert data["fields"]["intensity"]["mistake"] == "inverted"


def test_show_prints_where_there_is_no_notebook(capsys):
    f.Feedback("ex99", "T", None, (), ()).show()
    captured = capsys.readouterr()
    assert captured.out.startswith("ex99 · T: 0 of 0 points") and captured.err == ""


@pytest.mark.parametrize(("value", "text"), [(3, "3"), (Fraction(5, 2), "2.5"), (Fraction(1, 3), "1/3"), (0, "0")])
def test_amounts(value, text):
    assert f.amount(Fraction(value)) == text


def test_rubrics_print_and_draw():
    rubric = Rubric(
        (Criterion("Traffic", 2, "both <directions>", "one", "none"), Criterion("End", 1, "equality")), "Proof"
    )
    assert rubric.points == 3
    text = str(rubric)
    assert "Proof (3 points)" in text and "2 : both <directions>" in text and "0 : none" in text
    html = rubric._repr_mimebundle_()["text/html"]
    assert "both &lt;directions&gt;" in html and html.count("<tr>") == 5
