"""The survey finds what is planted (a wrong value, dtype, stride, structure, a crash) and tells ways of compiling."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import staxlab
from staxlab.measure import survey
from staxlab.measure.survey import agree, alike, compare, converted, fresh, is_dense, way

X = torch.linspace(-2, 2, 12).reshape(3, 4)


class Compiled:
    """Stands for a compiled function that may be wrong."""

    versions = ()

    def __init__(self, function):
        self.function = function

    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)


@pytest.mark.filterwarnings("ignore::staxlab.errors.FallbackWarning")
@pytest.mark.parametrize(
    "function, arguments, expected",
    [
        (torch.exp, (X,), "native"),
        (lambda x: x.sort().values, (X,), "library call"),
        (lambda x: torch.special.bessel_j0(x), (X,), "fallback kernel"),
        (lambda x: x[x > 0], (X,), "captured graph"),
        (lambda x: torch.linalg.inv(x), (X,), "eager refuses"),
        (lambda x: x if x.untyped_storage().data_ptr() else x, (X,), "refused"),
    ],
)
def test_ways(function, arguments, expected):
    assert compare(function, staxlab.compile(function), arguments) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x * 2 + 1e-3,
        lambda x: (x * 2).double(),
        lambda x: (x * 2).t().contiguous().t(),
        lambda x: (x * 2)[:2],
        lambda x: [x * 2],
        lambda x: torch.where(x > 1, torch.nan, x * 2),
    ],
    ids=["value", "dtype", "strides", "shape", "structure", "nan"],
)
def test_what_is_wrong_is_found(wrong):
    with pytest.raises(AssertionError):
        compare(lambda x: x * 2, Compiled(wrong), (X,))


def test_a_crash_passes_through_but_a_refusal_is_counted():
    def crash(x):
        raise ZeroDivisionError

    def refuse(x):
        raise staxlab.CaptureError("no")

    with pytest.raises(ZeroDivisionError):
        compare(torch.exp, Compiled(crash), (X,))
    assert compare(torch.exp, Compiled(refuse), (X,)) == "refused"


def test_the_function_may_write_into_its_arguments():
    x = X.clone()
    assert compare(torch.Tensor.exp_, Compiled(torch.Tensor.exp_), (x,)) == "eager"
    assert torch.equal(x, X)


def test_half_precision_may_round_where_it_likes_but_not_lose_more():
    x = (torch.arange(200.0) / 7).bfloat16()

    def differences(x):
        for _ in range(6):
            x = x[1:] - x[:-1]
        return x

    def wide(x):
        return differences(x.float()).bfloat16()

    def late(x):  # exact until the last two differences: neither eager's rounding nor float32's
        for k in range(6):
            x = x[1:].float() - x[:-1].float()
            x = x.bfloat16() if k >= 3 else x
        return x

    for compiled in (differences, wide, late):
        compare(differences, Compiled(compiled), (x,), dtype=torch.bfloat16)
    with pytest.raises(AssertionError):
        compare(differences, Compiled(lambda x: wide(x) + 40), (x,), dtype=torch.bfloat16)
    with pytest.raises(AssertionError):
        compare(differences, Compiled(lambda x: wide(x) * torch.nan), (x,), dtype=torch.bfloat16)
    with pytest.raises(AssertionError):
        compare(differences, Compiled(lambda x: wide(x).float()), (x,), dtype=torch.bfloat16)


def test_single_precision_may_be_better_than_eagers_but_not_worse():
    x = torch.tensor([1.0, 2.0, 3.0])

    def eager(x):
        return x * (1 + (1e-4 if x.dtype == torch.float32 else 0))

    compare(eager, Compiled(lambda x: x.clone()), (x,), dtype=torch.float32)
    compare(eager, Compiled(lambda x: x * (1 - 5e-5)), (x,), dtype=torch.float32)
    for wrong in (lambda x: x * (1 - 2e-4), lambda x: torch.stack([x[0], x[1], x[2] * 1.001]), lambda x: x * torch.inf):
        with pytest.raises(AssertionError):
            compare(eager, Compiled(wrong), (x,), dtype=torch.float32)
    with pytest.raises(AssertionError):  # nothing is known of how far infinity is from it
        compare(lambda x: eager(x) / (0 if x.dtype == torch.float32 else 1), Compiled(lambda x: x + 1), (x,),
                dtype=torch.float32)  # fmt: skip
    with pytest.raises(AssertionError):  # positions have no tolerance
        compare(lambda x: x.argmax(), Compiled(lambda x: x.argmax() - 1), (x.bfloat16(),), dtype=torch.bfloat16)
    compare(lambda x: x.argmax() + (x.dtype == torch.bfloat16), Compiled(lambda x: x.argmax()), (x.bfloat16(),),
            dtype=torch.bfloat16)  # fmt: skip
    with pytest.raises(AssertionError):
        compare(lambda x: x.long() * 100, Compiled(lambda x: x.long() * 100 + 1), (x.half(),), dtype=torch.float16)


def test_strides_count_where_a_result_is_dense():
    assert is_dense(X) and is_dense(X.t()) and not is_dense(X[:, :2]) and not is_dense(X[:1].expand(3, 4))
    agree(X[:, :2].contiguous(), X[:, :2])
    with pytest.raises(AssertionError, match="strides"):
        agree(X.t().contiguous(), X.t())
    agree((X, [1, 2]), (X, [1, 2]))
    for wrong in ((X, [1, 3]), (X, (1, 2)), [X, [1, 2]], (X.double(), [1, 2]), (X[:2], [1, 2]), (X.tolist(), [1, 2])):
        with pytest.raises(AssertionError):
            alike(wrong, (X, [1, 2]))


def test_structures_are_copied_and_converted():
    given = [X, (X.int(), torch.float32), {"x": X}, torch.Size((3,)), "name"]
    copy = fresh(given)
    assert copy[0] is not X and torch.equal(copy[2]["x"], X) and copy[1][1] is torch.float32
    changed = converted(given, torch.float32, torch.float64)
    assert (
        changed[0].dtype == changed[2]["x"].dtype == torch.float64 == changed[1][1]
        and changed[1][0].dtype == torch.int32
    )


def operator(samples, function=torch.exp):
    return SimpleNamespace(
        full_name="made", op=function, supported_dtypes=lambda device: {torch.float32},
        sample_inputs=lambda device, dtype, requires_grad: iter(samples),
    )  # fmt: skip


def sample(x):
    return SimpleNamespace(input=x, args=(), kwargs={})


def test_samples_are_spread_over_all_of_them():
    op = operator([sample(k) for k in range(10)])
    taken = [s.input for s in survey.samples(op, torch.float32, 4)]
    assert taken == [0, 3, 6, 9] and len([*survey.samples(op, torch.float32)]) == 10
    assert [s.input for s in survey.samples(op, torch.float32, 1)] == [0]


def test_a_survey_counts_and_names_what_failed():
    op = operator([sample(X), sample(X + 1)])
    seen: list[str] = []
    found = survey.survey(op, torch.float32, staxlab.compile, progress=seen.append)
    assert (
        found.counts == {"native": 2}
        and not found.failures
        and seen == ["made float32 sample 0", "made float32 sample 1"]
    )
    wrong = survey.survey(op, torch.float32, lambda f: Compiled(lambda x: f(x) + (x[0, 0] > -1.5)))
    assert wrong.counts == {"eager": 1} and len(wrong.failures) == 1
    assert wrong.failures[0].startswith("made float32 sample 1: AssertionError")
    assert not survey.survey(op, torch.int64, staxlab.compile).counts
    found.add(wrong)
    text = str(found)
    assert "3 samples" in text and "1 that do not" in text and "made float32 sample 1" in text and "66.7%" in text
    assert "<table" in found._repr_mimebundle_()["text/html"]


def test_the_database_has_what_can_be_compared():
    pytest.importorskip("torch.testing._internal.common_methods_invocations")
    names = [op.full_name for op in survey.database()]
    assert len(names) == len(set(names)) > 500 and "add" in names and "empty" not in names
    compiled = staxlab.compile(torch.relu)
    compiled(X)
    assert way(compiled) == "native"
