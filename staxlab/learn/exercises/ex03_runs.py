"""What Exercise 3 runs: versions that are used because guards say so, and Corollary 2.1 on arbitrary guards."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import torch

from ...specialize.guards import failing_guards, guards
from ..answers import Callee
from ..claims import choices, falsify, integers, lists
from ..dispatching import Compiled, key_of, result_of, same_result, value_text
from ..feedback import Verdict, nearly, right, wrong
from ..judges import call_failed, unexpected_result

# name: (function of x, k and c, as the student reads it)
FORMS: dict[str, tuple[Callable[..., torch.Tensor], str]] = {
    "scaled mean": (lambda x, k, c: x * k / x.shape[-1] + c, "x * k / x.shape[-1] + {c}"),
    "shifted": (lambda x, k, c: x + c * k * x.shape[0], "x + {c} * k * x.shape[0]"),
    "centred mean": (lambda x, k, c: (x - k).sum(0) / len(x) + c, "(x - k).sum(0) / len(x) + {c}"),
    "counted": (lambda x, k, c: x * k - c * x.numel(), "x * k - {c} * x.numel()"),
}


@lru_cache(maxsize=64)
def function_of(form: str, c: int) -> Callable[[torch.Tensor, int], torch.Tensor]:
    """The function of a variant."""
    body = FORMS[form][0]

    def f(x: torch.Tensor, k: int) -> torch.Tensor:
        return body(x, k, c)

    return f


CONSEQUENCES = ("a wrong value", "a recompilation without a reason", "an error", "no harm")
USES, FREE = "uses the projection", "holds for any guards"
HALF = Fraction(1, 2)

Facts = tuple[tuple[str, str], ...]


# --- Part 1: guards and a key that disagree ---------------------------------------------------------------------------


@lru_cache(maxsize=64)
def consequence(form: str, c: int, by_guards: bool) -> str:
    """What a dispatcher does whose guards forget k: real keys, and real guards without those on k."""
    function = function_of(form, c)
    first, second = (torch.ones(2, 3), 2), (torch.ones(2, 3), 5)
    version_key, key = key_of(function, *first), key_of(function, *second)
    kept = [guard for guard in guards(version_key, key) if guard.path not in ("k", "type(k)")]
    failing = [guard for guard in kept if not guard.holds]
    reused = not failing if by_guards else key == version_key
    got, problem = result_of(Compiled.of(function, *(first if reused else second)), *second)
    if problem:
        return "an error"
    if not same_result(got, function(*second)):
        return "a wrong value"
    return "no harm" if reused or failing else "a recompilation without a reason"


def matrix(rows: int, columns: int, fill: float = 1.0) -> torch.Tensor:
    return torch.full((rows, columns), fill)


class _Refused(Exception):
    """A verdict found somewhere in the middle of judging."""

    def __init__(self, verdict: Verdict):
        self.verdict = verdict


def judge_separate(function: Callable, callee: Callee, seed: int | None) -> Verdict:
    """Build the student's key and guards, compile for the first call, and use the version for the second."""
    outcome = callee.call()
    if outcome.failed:
        return call_failed(callee, (), outcome)
    try:
        key, conditions, first, second = _read(callee, outcome.value)
        facts = _wrong_value(function, key, conditions, first, second)
        return _judge_quality(function, key, conditions, seed, facts)
    except _Refused as refused:
        return refused.verdict


def _read(callee: Callee, value: Any) -> tuple[Callee, list[Callee], tuple, tuple]:
    def refuse(problem: str) -> _Refused:
        return _Refused(unexpected_result(callee, (), problem))

    try:
        key, conditions, first, second = value
        conditions, (x1, k1), (x2, k2) = list(conditions), first, second
    except (TypeError, ValueError):
        raise refuse("that is not (key, guards, (x1, k1), (x2, k2))") from None
    if not callable(key) or not all(map(callable, conditions)):
        raise refuse("the key and every guard must be functions of x and k")
    for x, k in ((x1, k1), (x2, k2)):
        if not isinstance(x, torch.Tensor) or x.ndim != 2 or x.dtype != torch.float32 or type(k) is not int:
            raise refuse(f"x must be a float32 matrix and k an int; got {value_text(x)} and {k!r}")
    if not conditions:
        message = "There is no guard at all, so of course all of them hold."
        raise _Refused(wrong(message, mistake="no-guards"))
    functions = [Callee(each, ("x", "k"), callee.seconds) for each in (key, *conditions)]
    return functions[0], functions[1:], (x1, k1), (x2, k2)


def _ask(function: Callee, call: tuple, what: str) -> Any:
    outcome = function.call(*call)
    if outcome.failed:
        facts = (("call", call_text(call)), ("reason", outcome.reason()))
        mistake = "timed-out" if outcome.timed_out else "failed-call"
        raise _Refused(wrong(f"{what} failed.", *facts, mistake=mistake))
    return outcome.value


def _holding(conditions: list[Callee], call: tuple) -> list[bool]:
    return [bool(_ask(each, call, f"Guard {number}")) for number, each in enumerate(conditions, 1)]


def _key(key: Callee, call: tuple) -> Any:
    """The student's key of a call, which must be comparable and the same for an equal call."""
    value, again = _ask(key, call, "The key"), _ask(key, (call[0].clone(), call[1]), "The key")
    try:
        hash(value)
        stable = bool(value == again)
    except (TypeError, RuntimeError) as error:
        facts = (("key", repr(value)), ("reason", str(error).splitlines()[0]))
        raise _Refused(wrong("A key must be hashable: it is looked up.", *facts, mistake="key-not-hashable")) from None
    if not stable:
        message = "Two equal calls get different keys: such a key never finds anything."
        raise _Refused(wrong(message, ("keys", f"{value!r} and {again!r}"), mistake="key-not-repeatable"))
    return value


def call_text(call: tuple) -> str:
    return f"x = {value_text(call[0])}, k = {call[1]!r}"


def _wrong_value(function: Callable, key: Callee, conditions: list[Callee], first: tuple, second: tuple) -> Facts:
    """What came out, if the second call is answered wrongly and no guard objects. Raises _Refused otherwise."""
    keys = _key(key, first), _key(key, second)
    shown = (("first", call_text(first)), ("second", call_text(second)), ("keys", f"{keys[0]!r} and {keys[1]!r}"))
    at_home, there = _holding(conditions, first), _holding(conditions, second)
    if not all(at_home):
        message = f"Guard {at_home.index(False) + 1} fails for the very call its version was compiled for."
        raise _Refused(wrong(message, *shown, mistake="guard-fails-at-home"))
    if keys[0] == keys[1]:
        message = "The two keys are equal: key and guards agree that the version may be used."
        raise _Refused(wrong(message, *shown, mistake="keys-equal"))
    if not all(there):
        message = f"Guard {there.index(False) + 1} fails for the second call: these guards notice the difference."
        raise _Refused(wrong(message, *shown, mistake="guard-fails"))
    problems = [result_of(function, *call)[1] for call in (first, second)]
    if any(problems):
        raise _Refused(wrong("f cannot be run.", *shown, ("reason", " ".join(problems).strip()), mistake="cannot-run"))
    got, problem = result_of(Compiled.of(function, *first), *second)
    expected = function(*second)
    facts = (*shown, ("version returned", problem or value_text(got)), ("f returns", value_text(expected)))
    if not problem and same_result(got, expected):
        message = (
            "The keys differ and all guards hold, but the version's result is right: for these calls the key is finer "
            "than it had to be, and nothing happens. Find a pair for which it does."
        )
        raise _Refused(nearly(message, *facts, credit=HALF, mistake="right-value"))
    return facts


def _judge_quality(
    function: Callable, key: Callee, conditions: list[Callee], seed: int | None, facts: Facts
) -> Verdict:
    """The example works. Are the guards guards, and is the key sound?"""
    probes = [(matrix(rows, columns), k) for rows in (1, 2, 3) for columns in (1, 2, 3) for k in (-1, 0, 1, 2, 3, 97)]
    probes += [(matrix(2, 3).double(), 2), (matrix(3, 2).t(), 2), (-matrix(2, 3), 2)]
    # A guard that cannot be evaluated on another shape turns it away.
    if all(outcome.value and not outcome.failed for call in probes for outcome in (c.call(*call) for c in conditions)):
        message = "It works, but these guards turn nothing away that was tried: they guard nothing."
        return nearly(message, *facts, ("tried", f"{len(probes)} calls"), credit=HALF, mistake="vacuous-guards")

    def against(rows: int, columns: int, k: int, rows2: int, columns2: int, k2: int) -> tuple | None:
        one, other = (matrix(rows, columns), k), (matrix(rows2, columns2, 3.0), k2)
        if _key(key, one) != _key(key, other):
            return None
        got, problem = result_of(_version(function, rows, columns, k), *other)
        return None if not problem and same_result(got, function(*other)) else (one, other, _key(key, one))

    sizes, ks = integers(1, 3), integers(-1, 2)
    domain = {"rows": sizes, "columns": sizes, "k": ks, "rows2": sizes, "columns2": sizes, "k2": ks}
    search = falsify(against, domain, seed=seed, trials=300, purpose="key")
    if search.counterexample is not None:
        one, other, value = search.reason
        message = "It works, but your key is not sound either: these two calls share it and need different programs."
        facts = (("one", call_text(one)), ("other", call_text(other)), ("key of both", repr(value)))
        return nearly(message, *facts, credit=HALF, mistake="unsound-key")
    return right("The guards hold, the version is used, and its result is wrong.", *facts)


@lru_cache(maxsize=512)
def _version(function: Callable, rows: int, columns: int, k: int) -> Compiled:
    return Compiled.of(function, matrix(rows, columns), k)


# --- Part 2: the proof ------------------------------------------------------------------------------------------------

# One component: its value now, its value at compile time, and whether its guard holds.
COMPONENTS = choices(tuple((a, b, held) for a in range(3) for b in range(3) for held in (True, False)))
GUARDED = {"components": lists(COMPONENTS, 1, 4)}


def _differ(components: list[tuple]) -> bool:
    return tuple(a for a, _, _ in components) != tuple(b for _, b, _ in components)


def _missed(components: list[tuple]) -> bool:
    """Whether a cache that holds the version under its key finds nothing under the call's."""
    cache = {tuple(b for _, b, _ in components): "version"}
    return tuple(a for a, _, _ in components) not in cache


# The steps of the proof as the exercise numbers them, each as "premise implies conclusion".
STEPS: dict[int, Callable[[list[tuple]], bool]] = {
    1: lambda components: not _missed(components) or _differ(components),
    2: lambda components: not _differ(components) or any(a != b for a, b, _ in components),
    3: lambda components: all(not held for a, b, held in components if a != b),
    4: lambda components: all(a != b for a, b, held in components if not held),
}


def conclusion(components: list[tuple]) -> bool:
    """The failing guards are exactly those of the differing components."""
    return {i for i, (_, _, held) in enumerate(components) if not held} == {
        i for i, (a, b, _) in enumerate(components) if a != b
    }


def refutation_of(number: int, seed: int | None) -> str | None:
    """Arbitrary guards for which a step of the proof is wrong, as text; None if none were found."""
    step = STEPS[number]
    search = falsify(
        lambda components: None if step(components) else components, GUARDED, seed=seed, purpose=f"step {number}"
    )
    return _components_text(search.reason) if search.counterexample is not None else None


def _components_text(components: list[tuple]) -> str:
    now, then, held = zip(*components, strict=True)
    return f"key {now}, version's key {then}, guards hold: {held}"


@lru_cache(maxsize=1)
def real_components() -> tuple[tuple[tuple, ...], ...]:
    """Keys and guards of the package for pairs of calls of one function, component by component."""
    function = function_of("scaled mean", 1)
    calls = [(matrix(rows, columns), k) for rows, columns in ((2, 3), (2, 4), (3, 3)) for k in (2, 5)]
    found = []
    for one in calls:
        for other in calls:
            expected, actual = key_of(function, *one), key_of(function, *other)
            projected = guards(expected, actual)
            assert [g for g in projected if not g.holds] == list(failing_guards(expected, actual))
            found.append(tuple((guard.actual, guard.expected, guard.holds) for guard in projected))
    return tuple(found)


def judge_exactly(callee: Callee, seed: int | None) -> Verdict:
    """The predicate on real keys, where it is always true, and on invented ones."""
    try:
        for components in real_components():
            if not _predicate(callee, components):
                changed = [(a, b, held) for a, b, held in components if a != b or not held]
                facts = (("differing components", changed or "none"),)
                message = "On real keys and guards the conclusion always holds, and you say it does not."
                return wrong(message, *facts, mistake="too-strict")
        search = falsify(lambda components: _against(callee, components), GUARDED, seed=seed, trials=300)
    except _Refused as refused:
        return refused.verdict
    if search.counterexample is not None:
        return search.reason
    tried = f"{len(real_components())} pairs of real keys, {search.trials} of invented ones"
    return right("It is the conclusion of Corollary 2.1.", ("tried", tried))


def _predicate(callee: Callee, components: Any) -> bool:
    now, then, held = (tuple(column) for column in zip(*components, strict=True))
    outcome = callee.call(now, then, held)
    if outcome.failed:
        raise _Refused(call_failed(callee, (now, then, held), outcome))
    if type(outcome.value) is not bool:
        raise _Refused(unexpected_result(callee, (now, then, held), f"{outcome.value!r} is not True or False"))
    return outcome.value


def _against(callee: Callee, components: list[tuple]) -> Verdict | None:
    yours, truth = _predicate(callee, components), conclusion(components)
    if yours == truth:
        return None
    facts = (("for", _components_text(components)), ("yours", yours))
    if truth:
        return wrong("Here failing guards and differing components are the same.", *facts, mistake="too-strict")
    if not any(not held and a == b for a, b, held in components):
        message = "Here a component differs, and its guard holds: the difference goes unnoticed."
        return wrong(message, *facts, mistake="unnoticed-difference")
    message = "Here a guard fails although its component is the same: it points at the wrong place."
    return wrong(message, *facts, mistake="false-alarm")
