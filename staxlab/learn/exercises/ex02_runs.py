"""What Exercise 2 runs: the dispatcher that does not know k, the student's rewrite, the passes on both kinds of k."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import torch

from ...api import trace
from ...transform import transform
from ...transform.rewrite import TransformLog
from ..answers import Callee, Malformed, as_number
from ..dispatching import ForgetfulCache, result_of, same_result, slicing_early, value_text
from ..feedback import Verdict, nearly, right, wrong
from ..judges import call_failed, direction, number_text, unexpected_result
from ..variants import generator


def scale(x: torch.Tensor, k: Any) -> torch.Tensor:
    return x * k


def threshold(x: torch.Tensor, k: Any) -> torch.Tensor:
    return torch.relu(x - k)


def clamp(x: torch.Tensor, k: Any) -> torch.Tensor:
    return x.clamp(max=k)


def power(x: torch.Tensor, k: Any) -> torch.Tensor:
    return x**k


# name: (function, as the student reads it, numbers k that it is tried with). All are exact in float32 on small inputs.
FORMS: dict[str, tuple[Callable[..., torch.Tensor], str, tuple[int | float, ...]]] = {
    "scale": (scale, "x * k", (0, 1, 2, 3, -1, -2, 0.5, 2.5)),
    "threshold": (threshold, "torch.relu(x - k)", (0, 1, 2, 3, -1, -2, 0.5, 2.5)),
    "clamp": (clamp, "x.clamp(max=k)", (0, 1, 2, 3, -1, -2, 0.5, 2.5)),
    "power": (power, "x ** k", (0, 1, 2, 3)),
}


RULES = ("multiply by one", "add zero")  # names of staxlab.transform.normalize
NEITHER = "neither"
NUMBERS = (0, 1, 2, 3, -1, -2, -3, 0.5, 1.5, 2.5, -0.5)
CALLS_OF_REWRITE = 5


# --- The truth --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def forgetful(form: str, k_first: int | float, exact_type: type) -> ForgetfulCache:
    """A dispatcher that does not know k, after its first call with ``k_first``."""
    cache = ForgetfulCache(FORMS[form][0], "k")
    cache(filled(1), k_first)
    return cache


def filled(value: int | float) -> torch.Tensor:
    return torch.full((2, 3), float(value))


def is_violated(form: str, k_first: int | float, x: int | float, k: int | float) -> tuple[bool, Any, Any]:
    """(whether the forgetful dispatcher's result is wrong, that result, the function's own)."""
    cache = forgetful(form, k_first, type(k_first))
    got, expected = cache(filled(x), k), FORMS[form][0](filled(x), k)
    assert cache.reused, "the rest of the key changed"
    return not same_result(got, expected), got, expected


def count_versions(form: str, ks: tuple[int | float, ...], as_tensor: bool) -> int:
    """How many versions the series of calls makes, by making them."""
    compiled = slicing_early(FORMS[form][0])
    x = filled(2)
    for k in ks:
        compiled(x, torch.tensor(k) if as_tensor else k)
    info = compiled.cache_info()
    assert not info.eager, "beyond the limit of versions calls run eagerly: the series is too long"
    return info.versions


@lru_cache(maxsize=2048)
def transformed(k: int, a: int, b: int, as_tensor: bool = False) -> TransformLog:
    """What the front-end passes make of the function of Part 3."""

    def h(x: torch.Tensor, k: Any) -> torch.Tensor:
        return torch.relu(x * (k - a) + (k - b))

    return transform(trace(h, torch.ones(4), torch.tensor(k) if as_tensor else k))


def operations_left(k: int, a: int, b: int, as_tensor: bool = False) -> int:
    return len(transformed(k, a, b, as_tensor).final.graph.calls)


def identity_applied(k: int, a: int, b: int, as_tensor: bool = False) -> str:
    """Which of the two identities the passes applied, or "neither"."""
    applied = {item.rule for run in transformed(k, a, b, as_tensor).runs for item in run.applied}
    found = [rule for rule in RULES if rule in applied]
    assert len(found) < 2, "both apply"
    return found[0] if found else NEITHER


# --- Judging ----------------------------------------------------------------------------------------------------------


def judge_calls(form: str, callee: Callee) -> Verdict:
    """Run the two calls through a dispatcher without k in its key."""
    outcome = callee.call()
    if outcome.failed:
        return call_failed(callee, (), outcome)
    try:
        (x1, k1), (x2, k2) = outcome.value
    except (TypeError, ValueError):
        return unexpected_result(callee, (), f"{outcome.value!r} is not ((x1, k1), (x2, k2))")
    for x, k in ((x1, k1), (x2, k2)):
        if isinstance(k, torch.Tensor):
            message = "This k is a tensor, hence an input of the program and no constant. Give numbers."
            return wrong(message, mistake="k-is-a-tensor")
        if not isinstance(x, torch.Tensor) or not isinstance(k, int | float):
            return unexpected_result(callee, (), f"({type(x).__name__}, {type(k).__name__}) is no tensor and a number")
    cache = ForgetfulCache(FORMS[form][0], "k")
    shown = (("first call", f"x = {value_text(x1)}, k = {k1!r}"), ("second call", f"x = {value_text(x2)}, k = {k2!r}"))
    for x, k in ((x1, k1), (x2, k2)):
        got, problem = result_of(cache, x, k)
        expected, own_problem = result_of(FORMS[form][0], x, k)
        if problem or own_problem:
            return wrong("A call cannot be run.", *shown, ("reason", own_problem or problem), mistake="cannot-run")
    facts = (*shown, ("dispatcher returned", value_text(got)), ("g returns", value_text(expected)))
    if not cache.reused:
        why = "; ".join(map(str, cache.refused))
        message = "The second call was compiled anew: the rest of the key differs, so nothing stale was used."
        return wrong(message, *shown, ("key", why), mistake="key-differs")
    if not same_result(got, expected):
        return right("Wrong indeed: the version holds the first k.", *facts)
    if type(k1) is type(k2) and k1 == k2:
        return wrong("Both calls have the same k, the one that was compiled.", *facts, mistake="same-k")
    message = "The version of the first call was reused, and its result happens to be right."
    return wrong(message, *facts, mistake="same-result")


def against_predicate(form: str, callee: Callee, k_first: Any, x: Any, k: Any) -> Verdict | None:
    outcome = callee.call(k_first, x, k)
    if outcome.failed:
        return call_failed(callee, (k_first, x, k), outcome)
    if type(outcome.value).__name__ not in ("bool", "bool_"):
        return unexpected_result(callee, (k_first, x, k), f"{outcome.value!r} is not True or False")
    truth, got, expected = is_violated(form, k_first, x, k)
    if bool(outcome.value) == truth:
        return None
    facts = (("yours", bool(outcome.value)), ("dispatcher returned", value_text(got)), ("g", value_text(expected)))
    if truth:
        return wrong("Here the result is wrong, and you say it is right.", *facts, mistake="missed-violation")
    message = "Here the version is not the right one, but its result is: nothing is violated."
    if k == k_first:
        message = "Here the version was made for this very k."
    return wrong(message, *facts, mistake="no-violation")


def against_operations(callee: Callee, k: int, a: int, b: int) -> Verdict | None:
    outcome = callee.call(k, a, b)
    if outcome.failed:
        return call_failed(callee, (k, a, b), outcome)
    try:
        value = as_number(int(outcome.value) if isinstance(outcome.value, bool) else outcome.value)
    except Malformed as problem:
        return unexpected_result(callee, (k, a, b), str(problem))
    truth = operations_left(k, a, b)
    if value == truth:
        return None
    facts = (("yours", number_text(value)), ("in the graph", direction(value, truth)))
    if k == a + 1 and value > truth:
        return wrong("The factor k - a is 1 here, and x * 1 is removed.", *facts, mistake="times-one-missed")
    if k == b and value > truth:
        return wrong("The summand k - b is 0 here, and x + 0 is removed.", *facts, mistake="plus-zero-missed")
    if k == a and value < truth:
        message = "The factor is 0 here, but x * 0 stays: it is NaN where x is NaN or infinite."
        return wrong(message, *facts, mistake="times-zero-removed")
    return wrong("Not this number.", *facts, mistake="wrong-count")


def judge_rewrite(form: str, callee: Callee, seed: int | None) -> Verdict:
    """Compile the student's rewrite, call it with several k, compare values and count versions."""
    made: list[Any] = []

    def counting_compile(function: Any = None, **options: Any) -> Any:
        if function is None:
            return counting_compile
        made.append(slicing_early(function))
        return made[-1]

    outcome = callee.call(FORMS[form][0], counting_compile)
    if outcome.failed:
        return call_failed(callee, ("g", "compile"), outcome)
    if not callable(outcome.value):
        return unexpected_result(callee, ("g", "compile"), f"{outcome.value!r} is not a function of x and k")
    rewritten = Callee(outcome.value, ("x", "k"), callee.seconds)
    rng = generator(seed, "rewrite")
    for k in rng.sample(sorted({float(abs(k)) + 0.0 for k in FORMS[form][2]} | {4.0, 5.0}), CALLS_OF_REWRITE):
        x = torch.tensor([[rng.choice(NUMBERS) for _ in range(3)] for _ in range(2)], dtype=torch.float32)
        called = rewritten.call(x, k)
        facts = (("x", value_text(x)), ("k", repr(k)))
        if called.failed:
            return wrong("Your function failed.", *facts, ("reason", called.reason()), mistake="failed-call")
        expected = FORMS[form][0](x, k)
        if not _close(called.value, expected):
            facts = (*facts, ("yours", value_text(called.value)), ("g", value_text(expected)))
            return wrong("The result is not that of g.", *facts, mistake="wrong-value")
    return _judge_versions(made)


def _close(got: Any, expected: torch.Tensor) -> bool:
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    return torch.allclose(got, expected, rtol=1e-5, equal_nan=True)


def _judge_versions(made: list[Any]) -> Verdict:
    versions = [version for compiled in made for version in compiled.versions]
    facts = (("calls", f"{CALLS_OF_REWRITE}, each with another float k"), ("versions", len(versions)))
    if not versions:
        message = "Nothing was compiled. Use the compile that is handed in, and call what it returns."
        return wrong(message, *facts, mistake="nothing-compiled")
    reasons = [("compiled again because", reason) for compiled in made for reason in compiled.recompiles[:1]]
    if len(versions) > 1:
        if len(made) > 1:
            message = "You compile at every call. Compile once, and keep what compile returns."
            return wrong(message, *facts, mistake="compiled-at-every-call")
        if any(version.region.capture.gates for version in versions):
            message = "k comes in as a tensor, and is read back into a number inside: its value is in the key again."
            return wrong(message, *facts, *reasons, mistake="value-read-back")
        message = "The values are right, but each k has a version of its own: the compiled function is given a number."
        return wrong(message, *facts, *reasons, mistake="one-version-per-value")
    capture = versions[0].region.capture
    if len(capture.inputs) < 2:
        message = "One version, but k is no input of it: g is computed outside the compiled part."
        return wrong(message, *facts, ("its graph", capture.graph), mistake="k-not-an-input")
    if min(given.meta.numel for given in capture.inputs) > 1:
        message = "One version, and k is an input; but as large as x. It needs no dimensions at all."
        return nearly(message, *facts, credit=Fraction(2, 3), mistake="k-as-large-as-x")
    return right("One version for all values of k, and the results are those of g.", *facts)
