"""Perturbed answers: all different from the original, in value as well as in writing."""

from __future__ import annotations

from fractions import Fraction

from staxlab.learn import answers as a
from staxlab.learn.mutation import formula_mutants, mutants

C = {"C": Fraction(8)}


def test_formulas_change_in_constants_operators_operands_and_names():
    changed = set(formula_mutants("3*C*n + n", ("n", "C"), C))
    assert {
        "4 * C * n + n",
        "2 * C * n + n",
        "3 * C * n - n",
        "n",
        "3 * C * n",
        "3 * n * n + n",
        "3 * C * n + C",
    } <= changed


def test_changes_without_effect_are_left_out():
    assert "n + C" not in set(formula_mutants("C + n", ("n", "C"), C))
    changed = set(formula_mutants("n*1", ("n",), {}))
    assert "n" not in changed and "n / 1" not in changed and "n * 2" in changed
    for text in formula_mutants("C*n", ("n", "C"), C):
        assert text not in ("8*n", "n*C")


def test_bound_names_of_a_sum_are_mutated_too():
    assert "Sum(n, (i, 1, n))" in set(formula_mutants("Sum(i, (i, 1, n))", ("n",), {}))


def sample(n, k):
    total = 0
    for i in range(n):
        total = total + k * i
    return total


def test_functions_change_in_one_place_and_still_run():
    field = a.Function("f", "a sum", parameters=("n", "k"), example="f = max")
    found = list(mutants(field, sample, {}))
    assert len(found) > 10
    results = []
    for mutant in found:
        assert "->" in mutant.change
        try:
            results.append(mutant.answer(4, 5))
        except Exception as error:
            results.append(type(error))
    assert sample(4, 5) == 30 and sum(result == 30 for result in results) <= 2
    assert any(mutant.change == "total = 0 -> total = 1" for mutant in found)
    assert any("pass" in mutant.change for mutant in found)


def test_other_fields():
    choice = a.Choice("c", "", options=("x", "y", "z"))
    assert [m.answer for m in mutants(choice, "y", {})] == ["x", "z"]
    assert all(m.answer != 3 for m in mutants(a.Number("v", ""), 3, {}))
    assert {m.answer for m in mutants(a.Number("v", ""), 0, {})} == {1, -1}
    grid = a.Numbers("g", "", shape=(2, 2))
    assert [m.answer for m in mutants(grid, [[1, 2], [3, 4]], {})][0] == [[2, 2], [3, 4]]
    assert len(list(mutants(grid, [[1, 2], [3, 4]], {}))) == 4
    steps = a.Steps("s", "", variables=("n",))
    changed = [m.answer for m in mutants(steps, ["n + n", "= 2*n"], {})]
    assert ["n + n", "= 3 * n"] in changed and ["n - n", "= 2*n"] in changed
    assert not list(mutants(a.Prose("p", ""), "words", {}))
