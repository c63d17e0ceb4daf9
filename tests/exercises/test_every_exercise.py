"""What every exercise must hold: full marks for the reference, zero for nothing, less for every wrong answer, by name.

Nothing here knows a particular exercise: a module added to ``staxlab.learn.exercises`` is tested by being there.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from staxlab import learn
from staxlab.learn.answers import Prose
from staxlab.learn.exercise import RESERVED_FIELD_NAMES, exercise_ids
from staxlab.learn.feedback import Status
from staxlab.learn.mutation import mutants
from staxlab.learn.variants import seed_of, variant_for

pytest.importorskip("sympy")

# The chapter's own values, and those of a few students.
SEEDS = [None, *(seed_of(student, "ex01") for student in ("ada", "grace"))]
IDS = exercise_ids()


def case(exercise_id, seed):
    exercise = learn.load(exercise_id)
    variant = variant_for(exercise.variant_class, seed)
    return exercise, variant, dict(exercise.reference(variant))


def check(exercise_id, answers, seed):
    return learn.check(exercise_id, answers, seed=seed, record=False)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("exercise_id", IDS)
def test_the_reference_answer_gets_full_marks(exercise_id, seed):
    exercise, _, reference = case(exercise_id, seed)
    feedback = check(exercise_id, reference, seed)
    assert feedback.complete and feedback.score == 1, str(feedback)
    assert set(reference) == {field.name for field in exercise.fields}, "the reference answers every field"
    for part in exercise.parts:
        assert check(f"{exercise_id}.{part.name}", reference, seed).earned == part.points


@pytest.mark.parametrize("exercise_id", IDS)
def test_nothing_gets_nothing(exercise_id):
    exercise, _, reference = case(exercise_id, None)
    for nothing in ({}, dict.fromkeys(reference), dict.fromkeys(reference, ""), dict.fromkeys(reference, [])):
        feedback = check(exercise_id, nothing, None)
        assert feedback.earned == 0 and feedback.maximum == sum(part.points for part in exercise.parts)
        graded = [item.verdict.status for item in feedback.items() if item.automatic]
        assert set(graded) == {Status.MISSING}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("exercise_id", IDS)
def test_wrong_answers_lose_points_where_they_should_and_are_named(exercise_id, seed):
    exercise, variant, reference = case(exercise_id, seed)
    wrong_answers = exercise.wrong_answers(variant)
    assert len(wrong_answers) >= 2
    for wrong in wrong_answers:
        answers = {**reference, **wrong.answers}
        parts = [part.name for part in exercise.parts if {field.name for field in part.fields} & set(wrong.answers)]
        feedbacks = [check(f"{exercise_id}.{part}", answers, seed) for part in parts]
        items = {item.field: item for feedback in feedbacks for item in feedback.items() if item.automatic}
        lost = {name for name, item in items.items() if item.verdict.credit < 1}
        assert lost == set(wrong.loses), f"{wrong.mistake}: {feedbacks}"
        verdict = items[wrong.loses[0]].verdict
        assert verdict.mistake == wrong.mistake, f"{wrong.answers} was taken for {verdict.mistake}: {verdict.message}"
        assert verdict.status in (Status.WRONG, Status.NEARLY) and len(verdict.message) > 10


@pytest.mark.parametrize("exercise_id", IDS)
def test_every_part_with_several_fields_has_wrong_answers(exercise_id):
    exercise, variant, _ = case(exercise_id, None)
    attacked = {name for wrong in exercise.wrong_answers(variant) for name in wrong.loses}
    missing = [field.name for part in exercise.parts for field in part.automatic if field.name not in attacked]
    assert not missing, f"no wrong answer to {missing}"


@pytest.mark.parametrize("exercise_id", IDS)
def test_an_answer_that_cannot_be_read_costs_its_field_alone(exercise_id):
    exercise, _, reference = case(exercise_id, None)
    for field in exercise.fields:
        if isinstance(field, Prose):
            continue
        feedback = check(exercise_id, {**reference, field.name: object()}, None)
        assert feedback[field.name].status is Status.MALFORMED
        assert field.name in feedback[field.name].message and "Example" in feedback[field.name].message
        assert feedback.maximum - feedback.earned == Fraction(field.points)


MOST_SEEDS_SLOW = [
    None,
    pytest.param(SEEDS[1], marks=pytest.mark.slow),
    *(pytest.param(seed, marks=pytest.mark.nightly) for seed in SEEDS[2:]),
]


@pytest.mark.parametrize("seed", MOST_SEEDS_SLOW)
@pytest.mark.parametrize("exercise_id", IDS)
def test_perturbed_reference_answers_are_rejected(exercise_id, seed):
    exercise, variant, reference = case(exercise_id, seed)
    survivors, tried = [], 0
    for field in exercise.fields:
        harmless = exercise.harmless.get(field.name, ())
        for mutant in mutants(field, reference[field.name], variant.constants()):
            tried += 1
            verdict = check(exercise_id, {field.name: mutant.answer}, seed)[field.name]
            assert verdict.status is not Status.UNCHECKED, f"{field.name}, {mutant.change}: {verdict.message}"
            if verdict.credit == 1 and mutant.change not in harmless:
                survivors.append(f"{field.name}: {mutant.change}")
    assert not survivors, "\n".join(survivors)
    assert tried >= 5


@pytest.mark.parametrize("exercise_id", IDS)
def test_harmless_changes_exist_and_are_harmless(exercise_id):
    exercise, variant, reference = case(exercise_id, None)
    for name, changes in exercise.harmless.items():
        field = next(field for field in exercise.fields if field.name == name)
        found = {mutant.change: mutant.answer for mutant in mutants(field, reference[name], variant.constants())}
        for change in changes:
            assert check(exercise_id, {name: found[change]}, None)[name].credit == 1, change


@pytest.mark.parametrize("exercise_id", IDS)
def test_students_differ_and_each_gets_the_same_again(exercise_id):
    exercise = learn.load(exercise_id)
    variants = [variant_for(exercise.variant_class, seed_of(f"student {i}", exercise_id)) for i in range(30)]
    again = [variant_for(exercise.variant_class, seed_of(f"student {i}", exercise_id)) for i in range(30)]
    assert variants == again
    if type(variants[0]).draw is not exercise.variant_class.__mro__[1].draw:
        assert len(set(variants)) > 10


@pytest.mark.parametrize("exercise_id", IDS)
def test_feedback_is_the_same_every_time(exercise_id):
    exercise, variant, reference = case(exercise_id, SEEDS[1])
    wrong = exercise.wrong_answers(variant)[0]
    answers = {**reference, **wrong.answers}
    first, second = (check(exercise_id, answers, SEEDS[1]).to_json() for _ in range(2))
    assert first == second


@pytest.mark.parametrize("exercise_id", IDS)
def test_texts_are_there(exercise_id):
    exercise, _, _ = case(exercise_id, None)
    assert exercise.statement.strip() and exercise.title and 1 <= exercise.difficulty <= 3
    for part in exercise.parts:
        assert part.statement.strip() and part.title
        assert len(part.hints) >= 2, f"part {part.name} needs stepped hints"
        for field in part.fields:
            assert field.label and not field.label.endswith(".")


def test_field_names_are_unique_in_each_notebook():
    """Answers of one exercise must not be taken for those of another in the same namespace."""
    seen: dict[tuple[int, str], str] = {}
    for exercise in learn.catalogue():
        for field in exercise.fields:
            assert field.name not in RESERVED_FIELD_NAMES
            other = seen.setdefault((exercise.section, field.name), exercise.id)
            assert other == exercise.id, f"{field.name} is asked for by {other} and {exercise.id}"
