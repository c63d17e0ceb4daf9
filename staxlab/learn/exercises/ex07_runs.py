"""What Exercise 7 runs: tables of decomposition rules, taken apart for real, and the package's own check of depth."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...operators.depth import CyclicRulesError, depths, find_cycle
from ..answers import Callee
from ..claims import choices, falsify, lists
from ..feedback import Verdict, right, wrong
from ..judges import call_failed, unexpected_result
from .ex07_answers import EXISTS, LEFT, NEVER, NONE, STOPS

if TYPE_CHECKING:
    from .ex07 import Variant

Table = Mapping[Any, Collection[Any]]
MOST_STEPS = 1000


def unfolded(rules: Table, basis: Collection[Any], start: Any, steps: int) -> list[Any]:
    """What is left of ``start`` after ``steps`` rules were applied, each to the first operator that has one."""
    left = [start]
    for _ in range(steps):
        place = next((k for k, one in enumerate(left) if one in rules and one not in basis), None)
        if place is None:
            break
        left[place : place + 1] = rules[left[place]]
    return left


def the_table(p: int, q: int) -> dict[str, list[str]]:
    """The table of the exercise: o1 => o2 and p more, o2 => o1 and q more."""
    return {"o1": ["o2", *(f"a{k}" for k in range(p))], "o2": ["o1", *(f"c{k}" for k in range(q))]}


@lru_cache(maxsize=64)
def when_it_ends(p: int, q: int) -> str:
    """Take o1 apart and see whether it is ever done."""
    rules = the_table(p, q)
    left = unfolded(rules, (), "o1", MOST_STEPS)
    if all(one not in rules for one in left):
        return STOPS
    return LEFT if len(left) == 1 else NEVER


@lru_cache(maxsize=64)
def depth_exists(p: int, q: int) -> str:
    return EXISTS if find_cycle(the_table(p, q)) is None else NONE


@lru_cache(maxsize=512)
def operators_left(p: int, q: int, m: int) -> int:
    """The number of operators after m rounds, a round being both rules once."""
    return len(unfolded(the_table(p, q), (), "o1", 2 * m))


def depth_of(name: str, variant: Variant) -> int:
    """The depth in the table with o2 in the basis."""
    return depths(the_table(variant.p, variant.q), {"o2"})[name]


# --- A table of the student's own ------------------------------------------------------------------------------------

NAMES = "stuvwxyz"


def drawn_table(rng: random.Random) -> tuple[tuple[tuple[str, tuple[str, ...]], ...], str]:
    """An acyclic table over NAMES whose depths range from 0 to at least 3, and one operator that is in the basis in
    spite of its rule."""
    while True:
        names = list(NAMES)
        rng.shuffle(names)
        rules = {}
        for place, name in enumerate(names[:-3]):
            later = names[place + 1 :]
            rules[name] = tuple(rng.sample(later, min(len(later), rng.randint(1, 3))))
        base = rng.choice(names[1:-3])
        found = depths(rules, {base})
        if max(found.values()) >= 3 and found != depths(rules):
            return tuple(sorted(rules.items())), base


def depth_list(variant: Variant) -> list[int]:
    """The depths of the operators of the variant's table, in the order of the alphabet."""
    found = depths(dict(variant.rules), {variant.base})
    return [found.get(name, 0) for name in NAMES]


def judge_depths(variant: Variant, answer: tuple) -> Verdict:
    truth = depth_list(variant)
    yours = [int(value) if value == int(value) else value for value in answer]
    if yours == truth:
        return right("Every depth is what the package's check finds.")
    if yours == [depth + 1 for depth in truth]:
        message = "All of them are one too large: an operator without a rule, or in the basis, has depth 0."
        return wrong(message, mistake="leaves-count-as-one")
    without_basis = depths(dict(variant.rules))
    if yours == [without_basis.get(name, 0) for name in NAMES]:
        message = f"{variant.base} is in the basis: its rule is never applied."
        return wrong(message, mistake="ignores-the-basis")
    place = next(k for k, (mine, true) in enumerate(zip(yours, truth, strict=True)) if mine != true)
    side = "more than that" if truth[place] > yours[place] else "less than that"
    facts = (("first wrong", NAMES[place]), ("yours", yours[place]), ("its depth is", side))
    return wrong("Not all of these are right.", *facts, mistake="wrong-depth")


def judge_table(lengths: tuple[int, ...], callee: Callee) -> Verdict:
    """The package's check must refuse the student's table, with a cycle of the length asked for."""
    last = ""
    for length in lengths:
        outcome = callee.call(length)
        if outcome.failed:
            return call_failed(callee, (length,), outcome)
        try:
            rules, basis = outcome.value
            rules = {operator: tuple(parts) for operator, parts in dict(rules).items()}
            basis = set(basis)
        except (TypeError, ValueError):
            problem = "that is not (rules, basis): a dict from operators to lists of operators, and a set"
            return unexpected_result(callee, (length,), problem)
        asked = ("asked for", f"a cycle through {length} operators")
        try:
            found = depths(rules, basis)
        except CyclicRulesError as error:
            last = error.what
            around = len(error.cycle) - 1
            if around != length:
                message = "It is refused, but the cycle has another length."
                facts = (asked, ("the check says", error.what))
                return wrong(message, *facts, mistake="cycle-of-another-length")
            continue
        if find_cycle(rules) is not None:
            message = "The rules go round, but an operator of the cycle is in the basis, and so they are never applied."
            facts = (asked, ("depths", found))
            return wrong(message, *facts, mistake="basis-breaks-the-cycle")
        return wrong("Every operator of this table has a depth.", asked, ("depths", found), mistake="no-cycle")
    return right("The package refuses each of them and names the cycle.", ("the last one", last))


# --- A check of the student's own ------------------------------------------------------------------------------------

LETTERS = ("a", "b", "c", "d")
PARTS = lists(choices(LETTERS), 0, 3)
DOMAIN = {"a": PARTS, "b": PARTS, "c": PARTS, "basis": lists(choices(LETTERS), 0, 2)}


def judge_terminates(callee: Callee, seed: int | None) -> Verdict:
    """The student's check against the package's on small tables, cyclic ones and others."""

    def against(a: list[str], b: list[str], c: list[str], basis: list[str]) -> Verdict | None:
        rules = {"a": a, "b": b, "c": c}
        outcome = callee.call({name: list(parts) for name, parts in rules.items()}, set(basis))
        shown = (("rules", table_text(rules)), ("basis", ", ".join(sorted(set(basis))) or "empty"))
        if outcome.failed:
            return call_failed(callee, (rules, set(basis)), outcome)
        if type(outcome.value) is not bool:
            problem = f"{outcome.value!r} is not True or False"
            return unexpected_result(callee, (rules, set(basis)), problem)
        cycle = find_cycle(rules, basis)
        if outcome.value == (cycle is None):
            return None
        if outcome.value:
            assert cycle is not None
            shown = (*shown, ("but", " => ".join(cycle)))
            return wrong("You say it ends, and it goes round.", *shown, mistake="misses-a-cycle")
        if find_cycle(rules) is not None:
            message = "You say it goes round, but an operator of every cycle is in the basis."
            return wrong(message, *shown, mistake="ignores-the-basis")
        message = "You say it goes round, but every operator has a depth."
        return wrong(message, *shown, mistake="refuses-a-good-table")

    search = falsify(
        against, DOMAIN, seed=seed, trials=300, purpose="tables",
        worth_shrinking=lambda verdict: verdict.mistake != "timed-out",
    )  # fmt: skip
    if search.counterexample is not None:
        return search.reason
    return right("It agrees with the package's check.", ("tried", f"{search.trials} tables"))


def table_text(rules: Table) -> str:
    return ";  ".join(f"{one} => {', '.join(map(str, parts)) or 'nothing'}" for one, parts in rules.items())
