"""Exercise 2: its truth against the chapter and the compiler, and the feedback on particular answers."""

from __future__ import annotations

import pytest
import torch

import staxlab
from staxlab import learn
from staxlab.learn.dispatching import Compiled, ForgetfulCache, key_of, same_result, without
from staxlab.learn.exercises import ex02, ex02_runs
from staxlab.learn.variants import variant_for

CHAPTER = ex02.Variant()


def check(part, seed=None, **answers):
    return learn.check(f"ex02.{part}", answers, seed=seed, record=False)


def g(x, k):
    return x * k


def test_the_truth_is_example_2_1():
    """k = 3 and k = 4 make two versions; as tensors, one."""
    assert CHAPTER.ks == (3, 4)
    assert ex02_runs.count_versions("scale", (3, 4), False) == 2
    assert ex02_runs.count_versions("scale", (3, 4), True) == 1
    assert ex02_runs.count_versions("scale", (2, 2.0, 2), False) == 2
    assert ex02_runs.count_versions("scale", (2, 3.0, 4), True) == 2


@pytest.mark.parametrize("backend", ["aot_eager", "stax"])
def test_the_count_of_versions_does_not_depend_on_the_backend(backend):
    """The exercise counts with a backend that needs no C++ compiler; kernels are dispatched to in the same way."""
    compiled = staxlab.compile(g, backend=backend)
    for k in (3, 4, 3.0, 3):
        assert compiled(torch.ones(4), k).tolist() == [float(k)] * 4
    assert len(compiled.versions) == 3 == ex02_runs.count_versions("scale", (3, 4, 3.0, 3), False)


def test_the_key_loses_the_argument_and_nothing_else():
    key = key_of(g, torch.ones(2, 3), 4)
    lost = set(key.components()) - set(without(key, "k").components())
    assert lost == {"k", "type(k)"}
    assert without(key, "k") == without(key_of(g, torch.zeros(2, 3), 5.0), "k")
    assert without(key, "k") != without(key_of(g, torch.ones(2, 4), 4), "k")


def test_only_the_missing_component_breaks_the_dispatcher():
    cache = ForgetfulCache(g, "k")
    assert same_result(cache(torch.ones(3), 2), torch.full((3,), 2.0)) and not cache.reused
    assert same_result(cache(torch.ones(3), 5), torch.full((3,), 2.0)) and cache.reused
    assert same_result(cache(torch.ones(4), 5), torch.full((4,), 5.0)) and not cache.reused
    assert [guard.path for guard in cache.refused] == ["x.shape[0]"]


def test_the_version_is_the_function_with_its_constants():
    version = Compiled.of(g, torch.ones(2), 3)
    assert version(torch.ones(2), 7).tolist() == [3.0, 3.0]
    assert version(torch.ones(5), 7).tolist() == [3.0] * 5


@pytest.mark.parametrize("form", ex02_runs.FORMS)
def test_every_form_can_be_violated_and_has_an_exception(form):
    ks = ex02_runs.FORMS[form][2]
    found = {
        ex02_runs.is_violated(form, first, x, k)[0] for first in ks for k in ks if first != k for x in ex02_runs.NUMBERS
    }
    assert found == {True, False}


@pytest.mark.parametrize(
    ("k", "operations", "rule"),
    [(3, 2, "multiply by one"), (5, 2, "add zero"), (2, 3, "neither"), (9, 3, "neither")],
)
def test_what_the_passes_leave(k, operations, rule):
    assert ex02_runs.operations_left(k, 2, 5) == operations
    assert ex02_runs.identity_applied(k, 2, 5) == rule
    assert ex02_runs.operations_left(k, 2, 5, as_tensor=True) == 5
    assert ex02_runs.identity_applied(k, 2, 5, as_tensor=True) == "neither"


def with_a_buffer(g, compile):
    """Another right rewrite: k lives in a tensor that the compiled function closes over."""
    k_now = torch.zeros(())
    compiled = compile(lambda x: g(x, k_now))

    def call(x, k):
        k_now.fill_(k)
        return compiled(x)

    return call


def with_new_tensor(g, compile):
    compiled = compile(g)
    return lambda x, k: compiled(x, x.new_tensor(k))


def with_float64(g, compile):
    compiled = compile(g)
    return lambda x, k: compiled(x, torch.tensor([k], dtype=torch.float64))


@pytest.mark.parametrize(
    ("rewrite", "mistake"),
    [
        (with_a_buffer, None),
        (with_new_tensor, None),
        (with_float64, "wrong-value"),  # one dimension: the result becomes float64
        (lambda g, compile: None, "wrong-form"),
        (lambda g, compile: 1 / 0, "failed-call"),
        (lambda g, compile: compile(g), "one-version-per-value"),
        (lambda g, compile: lambda x, k: compile(g)(x, k, k), "failed-call"),
        (lambda g, compile: lambda x, k: staxlab.compile(g, backend="eager")(x, torch.tensor(k)), "nothing-compiled"),
    ],
)
def test_rewrites(rewrite, mistake):
    verdict = check(2, rewrite=rewrite)["rewrite"]
    assert verdict.mistake == mistake, verdict


@pytest.mark.parametrize("form", ex02_runs.FORMS)
@pytest.mark.parametrize("rewrite", [with_a_buffer, with_new_tensor])
def test_rewrites_of_every_form(form, rewrite):
    seed = next(seed for seed in range(100) if variant_for(ex02.Variant, seed).form == form)
    assert check(2, seed=seed, rewrite=rewrite)["rewrite"].credit == 1


@pytest.mark.parametrize(
    ("calls", "mistake"),
    [
        (lambda: ((torch.tensor([1, 2]), 2), (torch.tensor([3, 4]), 7)), None),
        (lambda: ((torch.zeros(3), 2), (torch.ones(3), 2.5)), None),
        (lambda: ((torch.ones(3), 2), (torch.ones(3), 2.0)), "same-result"),
        (lambda: ((torch.ones(3), 2), (torch.ones(3, dtype=torch.float64), 3)), "key-differs"),
        (lambda: ((torch.ones(2, 3), 2), (torch.ones(3, 2).t(), 3)), "key-differs"),
        (lambda: ((torch.ones(3), "a"), (torch.ones(3), "b")), "wrong-form"),
        (lambda: 1 / 0, "failed-call"),
    ],
)
def test_calls(calls, mistake):
    verdict = check(1, calls=calls)["calls"]
    assert verdict.mistake == mistake, verdict


def test_a_different_type_of_k_is_a_different_dtype():
    """An integer tensor times 2 and times 2.0: the values are alike and the dtypes are not."""
    verdict = check(1, calls=lambda: ((torch.ones(3, dtype=torch.int64), 2), (torch.ones(3, dtype=torch.int64), 2.0)))
    assert verdict["calls"].credit == 1


def test_the_smallest_exception_is_shown():
    verdict = check(1, violated=lambda k_first, x, k: k != k_first)["violated"]
    assert dict(verdict.facts)["for"] == "k_first = 0, x = 0, k = 1"
    assert "nothing is violated" in verdict.message


def test_a_wrong_count_is_told_its_direction_and_not_the_count():
    verdict = check(3, operations=lambda k, a, b: 3 - (k == b))["operations"]
    assert "x * 1" in verdict.message and dict(verdict.facts)["in the graph"] == "less than that"
