"""check, hint and their kin: what a call may look like, what is written down, and that no answer makes them raise."""

from __future__ import annotations

import types
from dataclasses import dataclass
from fractions import Fraction

import pytest

from staxlab import learn
from staxlab.errors import MissingDependencyError
from staxlab.learn import exercise as ex
from staxlab.learn import frame
from staxlab.learn.answers import Choice, FormulaIn, Function, Prose
from staxlab.learn.claims import integers
from staxlab.learn.exercise import LearnError, Part, WrongAnswer, from_module
from staxlab.learn.feedback import Status
from staxlab.learn.judges import one_of, read_by_a_person, same_quantity
from staxlab.learn.records import StudentRecord
from staxlab.learn.rubrics import Criterion, Rubric
from staxlab.learn.variants import BaseVariant

RUBRIC = Rubric((Criterion("Reason", 2, "all"),))


@dataclass(frozen=True)
class Variant(BaseVariant):
    k: int = 2

    @classmethod
    def draw(cls, rng):
        return cls(k=rng.randint(3, 1000))

    def constants(self):
        return {"k": Fraction(self.k)}


def judges(variant, answers, seed):
    def needs_sympy(answer):
        raise MissingDependencyError("checking needs sympy", remedy="pip install 'staxlab[grading]'")

    def broken(answer):
        raise RuntimeError("a defect")

    return {
        "double": same_quantity(lambda n: Fraction(variant.k * n), {"n": integers(1, 50)}, seed=seed),
        "sign": one_of("plus"),
        "why": read_by_a_person(RUBRIC),
        "lazy": needs_sympy,
        "faulty": broken,
    }


def module(**changes):
    parts = (
        Part("1", "Numbers", "How much?", (FormulaIn("double", "twice", 2, example='"n"'),
             Choice("sign", "sign", example='"plus"', options=("plus", "minus"))), ("think", "think more")),
        Part("2", "Words", "Why?", (Prose("why", "reason", 2, rubric=RUBRIC),
             Function("lazy", "l", example="f", parameters=()), Function("faulty", "f", example="f", parameters=()))),
    )  # fmt: skip
    values = {
        "SECTION": 1, "TITLE": "Doubling", "DIFFICULTY": 2, "statement": "Double it.", "Variant": Variant,
        "PARTS": parts,
        "reference": lambda v: {"double": "k*n", "sign": "plus"},
        "wrong_answers": lambda v: (WrongAnswer("chose-minus", {"sign": "minus"}, ("sign",)),),
        "check": judges,
    }  # fmt: skip
    made = types.ModuleType("ex98")
    for name, value in {**values, **changes}.items():
        if value is not None:
            setattr(made, name, value)
    return made


@pytest.fixture(autouse=True)
def exercise(monkeypatch, tmp_path):
    monkeypatch.setenv("STAXLAB_LEARN_DIR", str(tmp_path / "records"))
    monkeypatch.delenv("STAXLAB_STUDENT", raising=False)
    made = from_module(module(), "ex98")
    real = frame.load
    monkeypatch.setattr(frame, "load", lambda name: made if name == "ex98" else real(name))
    return made


def test_answers_come_as_keywords_or_as_a_mapping_and_keywords_win():
    for feedback in (
        learn.check("ex98.1", double="2*n", sign="plus"),
        learn.check("ex98.1", {"double": "2*n", "sign": "plus"}),
        learn.check("EX98.1", {"double": "3*n", "sign": "plus"}, double="k*n"),
        learn.check("98.1", {"__builtins__": {}, "double": "2*n", "sign": "plus", "unrelated": 3}),
    ):
        assert feedback.complete and feedback.notes == (frame.NAMELESS,) and feedback.maximum == 3


def test_a_missing_or_malformed_field_costs_that_field_only():
    feedback = learn.check("ex98.1", double="8n", sign="plus")
    assert feedback["double"].status is Status.MALFORMED and feedback["sign"].credit == 1
    assert "double must be a formula in n" in feedback["double"].message
    feedback = learn.check("ex98.1", double="k*n")
    assert feedback["sign"].status is Status.MISSING and feedback.earned == 2 and feedback.maximum == 3


def test_nothing_scores_nothing():
    for nothing in ({}, {"double": None, "sign": ""}, None):
        assert learn.check("ex98.1", nothing).earned == 0
    assert learn.check("ex98").maximum == 5  # the prose stays out


def test_an_unknown_field_is_noted_with_the_nearest():
    feedback = learn.check("ex98.1", doubel="2*n", sign="plus")
    assert "did you mean 'double'" in feedback.notes[0] and feedback["double"].status is Status.MISSING


def test_parts_are_judged_alone_or_together():
    assert [part.name for part in learn.check("ex98").parts] == ["1", "2"]
    assert [part.name for part in learn.check("ex98.2").parts] == ["2"]


def test_prose_is_pending_whether_given_or_not():
    for given, part in (({}, "read by your instructor"), ({"why": "Because."}, "Reason"), ({"why": 3}, "must be text")):
        feedback = learn.check("ex98.2", given)
        assert feedback["why"].status is Status.PENDING and part in feedback["why"].message
        assert feedback.pending == 2 and feedback.maximum == 2


def test_a_missing_extra_and_a_broken_checker_are_not_the_students_fault():
    feedback = learn.check("ex98.2", lazy=lambda: 1, faulty=lambda: 1)
    assert feedback["lazy"].status is Status.UNCHECKED and "staxlab[grading]" in feedback["lazy"].message
    assert feedback["faulty"].status is Status.UNCHECKED and "report" in feedback["faulty"].message


def test_a_checker_that_cannot_even_begin_is_reported_per_field(monkeypatch):
    def fails(variant, answers, seed):
        raise RuntimeError("no model")

    monkeypatch.setattr(frame, "load", lambda name: from_module(module(check=fails), "ex98"))
    feedback = learn.check("ex98.1", double="2*n")
    assert feedback["double"].status is Status.UNCHECKED and feedback["sign"].status is Status.MISSING


class Hostile:
    """Everything about it raises."""

    def __getattribute__(self, name):
        raise RuntimeError("no")

    def __repr__(self):
        raise RuntimeError("no")

    __str__ = __eq__ = __hash__ = __repr__

    def __call__(self, *args):
        raise RuntimeError("no")


def test_hostile_answers_do_not_raise():
    for answer in (Hostile(), [Hostile()], lambda n: Hostile(), {1: 2}, "\ud800", "n" * 10**5, b"n", object, print):
        feedback = learn.check("ex98.1", double=answer, sign=answer)
        assert feedback.earned == 0 and feedback["double"].status in (Status.MALFORMED, Status.WRONG)
        str(feedback)


def test_the_variant_follows_the_student_and_the_seed():
    ada, bob = (learn.check("ex98.1", student=name, double="k*n").variant for name in ("ada", "bob"))
    assert ada != bob and ada == learn.check("ex98.1", student="ADA ").variant
    assert learn.check("ex98.1").variant == (("k", "2"),) == learn.check("ex98.1", student="anonymous").variant
    assert learn.check("ex98.1", student="ada", seed=7).seed == 7
    assert dict(ada)["k"] in str(learn.values("ex98", student="ada"))


def test_the_student_may_come_from_the_environment(monkeypatch):
    expected = learn.check("ex98.1", student="ada").variant
    monkeypatch.setenv("STAXLAB_STUDENT", "ada")
    assert learn.check("ex98.1").variant == expected
    assert learn.check("ex98.1", student="anonymous").variant == (("k", "2"),)


def test_whoever_has_no_name_is_told_once_how_to_get_one():
    for student in (None, "anonymous", " Anonymous "):
        assert learn.check("ex98.1", student=student).notes.count(frame.NAMELESS) == 1
        for shown in (learn.values("ex98", student=student), learn.statement("ex98.1", student=student)):
            assert str(shown).count('student = "your id"') == 1
    for named in ({"student": "ada"}, {"seed": 7}):
        assert learn.check("ex98.1", **named).notes == () and "anonymous" not in str(learn.statement("ex98", **named))


def test_an_exercise_that_is_the_same_for_everyone_needs_no_name(monkeypatch):
    same = type("Same", (BaseVariant,), {"constants": lambda self: {"k": Fraction(2)}, "k": 2})
    monkeypatch.setattr(frame, "load", lambda name: from_module(module(Variant=same), "ex98"))
    assert learn.check("ex98.1", double="2*n").notes == ()


def test_the_student_of_the_notebook_is_taken(monkeypatch):
    """``student = "ada"`` in a cell: every verb then speaks to her, whether or not it is handed the name again."""
    import __main__

    monkeypatch.setattr(__main__, "student", "ada", raising=False)
    monkeypatch.setenv("STAXLAB_STUDENT", "grace")
    given = learn.check("ex98.1", student="ada", record=False).variant
    assert learn.check("ex98.1").variant == given != learn.check("ex98.1", student="grace").variant
    assert str(learn.statement("ex98")) == str(learn.statement("ex98", student="ada"))
    assert str(learn.values("ex98")) == str(learn.values("ex98", student="ada"))
    assert len(learn.history("ex98")) == len(learn.history("ex98", student="ada")) == 1
    monkeypatch.setattr(__main__, "student", 3)  # somebody else's variable of that name
    assert learn.check("ex98.1", record=False).variant == learn.check("ex98.1", student="grace").variant


def test_attempts_are_recorded_with_answers_and_feedback():
    learn.check("ex98.1", student="ada", double=lambda n: 2 * n)
    learn.check("ex98.2", student="ada", why="Because.")
    learn.check("ex98.1", student="ada", double="k*n", record=False)
    attempts = learn.history("ex98", student="ada")
    assert [attempt["parts"] for attempt in attempts] == [["1"], ["2"]]
    assert "lambda n: 2 * n" in attempts[0]["answers"]["double"] and attempts[1]["answers"] == {"why": "Because."}
    assert attempts[0]["feedback"]["fields"]["double"]["status"] == "wrong"
    assert len(learn.history("ex98.2", student="ada")) == 1 and learn.history("ex98", student="bob") == []


def test_an_unusable_folder_costs_no_feedback(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("STAXLAB_LEARN_DIR", str(blocked / "below"))
    feedback = learn.check("ex98.1", double="2*n", sign="plus")
    assert feedback.complete and "could not be recorded" in feedback.notes[0]
    hints = learn.hint("ex98.1")
    assert hints.texts == ("think",) and "could not be recorded" in str(hints)


def test_a_damaged_record_is_mentioned_in_the_feedback():
    learn.check("ex98.1", student="ada")
    StudentRecord("ada").path.write_text("{")
    feedback = learn.check("ex98.1", student="ada", double="k*n")
    assert feedback["double"].credit == 1 and "could not be read" in feedback.notes[0]


def test_hints_come_one_at_a_time_and_are_recorded():
    assert learn.hint("ex98.1", student="ada").texts == ("think",)
    assert "1 more" in str(learn.hint("ex98.1", student="bob"))
    second = learn.hint("ex98", student="ada")
    assert second.texts == ("think", "think more") and "all there are" in str(second)
    for _ in range(3):  # the last part has none, and there is nothing left to reveal
        assert learn.hint("ex98.1", student="ada").texts == second.texts
    entry = StudentRecord("ada").load().data["exercises"]["ex98"]
    assert entry["hints"] == {"1": 2} and [log["number"] for log in entry["hint_log"]] == [1, 2]
    assert "no hints" in str(learn.hint("ex98.2", student="ada"))


def test_statement_and_rubric_show_what_they_should():
    text = str(learn.statement("ex98", student="ada"))
    for part in ("Exercise 98. Doubling ★★", "Double it.", "How much?", "`double`", "2 points", "Your values"):
        assert part in text
    assert "How much?" not in str(learn.statement("ex98.2"))
    assert learn.statement("ex98")._repr_mimebundle_()["text/markdown"].startswith("## Exercise 98")
    assert learn.rubric("ex98").points == 2 and learn.rubric("ex98.1").points == 0


@pytest.mark.parametrize("target", ["ex00", "ex53", "nonsense", "ex01.9", "", "ex1.", "ex01.1.1"])
def test_unknown_targets_are_refused_with_what_exists(target):
    with pytest.raises(LearnError, match="remedy"):
        learn.check(target)


def test_answers_that_are_no_mapping_are_refused():
    with pytest.raises(LearnError, match="mapping"):
        learn.check("ex98.1", ["2*n"])


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"TITLE": None}, "TITLE: missing"),
        ({"SECTION": "one"}, "SECTION: must be int"),
        ({"SECTION": 77}, "not a section"),
        ({"PARTS": ()}, "at least one Part"),
        ({"Variant": int}, "BaseVariant"),
        ({"PARTS": (Part("1", "", "", (FormulaIn("student", "", example="1"),)),)}, "cannot be the name"),
        ({"PARTS": (Part("1", "", "", (FormulaIn("x", ""),)),)}, "needs an example"),
        ({"PARTS": (Part("1", "", "", ()), Part("1", "", "", ()))}, "same name"),
        (
            {"PARTS": (Part("1", "", "", (FormulaIn("x", "", example="1"), FormulaIn("x", "", example="1"))),)},
            "two fields",
        ),
        ({"PARTS": (Part("1", "", "", (Prose("x", "", 5, rubric=RUBRIC),)),)}, "its points must be"),
    ],
)
def test_an_incomplete_exercise_is_refused_with_everything_that_is_wrong(changes, part):
    with pytest.raises(LearnError, match=part):
        from_module(module(**changes), "ex98")


def test_exercises_are_found_by_their_modules():
    assert "ex01" in ex.exercise_ids() and all(len(name) == 4 for name in ex.exercise_ids())
    assert learn.catalogue()[0].id == "ex01"
