"""Checks that were made before, and inputs that may be overwritten since nothing can fail any more."""

from __future__ import annotations

import pytest
import torch

import staxlab
from staxlab.loops.body import LoopBody, Statement
from staxlab.loops.expressions import Expr, Symbol
from staxlab.schedule.checks import Check, _checks, answered
from tests.schedule.test_memory_plan import check_plan

I = Symbol("i0", 0, 7)
J = Symbol("i1", 0, 3)
QUESTION = (Expr.of(64), ("load", "positions"))


def check(index, question=QUESTION, always=True):
    return Check(question, Expr.of(index), frozenset(), always)


@pytest.mark.parametrize(
    ("later", "earlier", "holds"),
    [
        (check(I), check(I), True),
        (check(J), check(I), True),  # fewer elements
        (check(I), check(J), False),
        (check(3), check(J), True),
        (check(4), check(J), False),
        (check(Expr.of(I) + 1), check(I), False),
        (check(I), check(I, always=False), False),
        (check(I, always=False), check(I), True),
        (check(I), check(I, (Expr.of(63), ("load", "positions"))), False),
        (check(I), check(I, (Expr.of(64), ("load", "others"))), False),
        (Check(None, None, frozenset(), False), check(I), False),
        (Check(None, None, frozenset(), False), Check(None, None, frozenset(), False), False),
    ],
)
def test_which_check_answers_which(later, earlier, holds):
    assert answered(later, [earlier]) == holds and not answered(later, [])


def body(index, *, condition=None, loops=(I, J)):
    """A body that checks ``positions[index]`` against 64, inside a condition (operation, loop, number)."""
    inner = (
        Statement(10, "load", ("positions", Expr.of(index)), torch.int64, frozenset()),
        Statement(11, "indirect", (10, Expr.of(64), True, Symbol("indirect0", 0, 63)), torch.int64, frozenset({5})),
    )
    if condition is None:
        return LoopBody(loops, (), inner, 11)
    operation, loop, number = condition
    outer = (
        Statement(0, "index_value", (Expr.of(loop), torch.int64), torch.int64, frozenset()),
        Statement(1, "constant", (number, torch.int64), torch.int64, frozenset()),
        Statement(2, operation, (0, 1), torch.bool, frozenset()),
        Statement(3, "masked", (2, LoopBody((), (), inner, 11), 0), torch.int64, frozenset()),
    )
    return LoopBody(loops, (), outer, 3)


@pytest.mark.parametrize(
    ("made", "always"),
    [
        (body(I), True),
        (body(Expr.of(I) + 2), True),
        (body(2 * Expr.of(I)), False),  # every other element
        (body(Expr.of(I) + J), False),  # two loops: taken for gaps
        (body(Symbol("indirect7", 0, 7)), False),  # a value that is data is no loop
        (body(I, condition=("lt", J, 2)), True),  # half of another loop
        (body(I, condition=("ge", J, 3)), True),
        (body(I, condition=("ge", J, 4)), False),  # never
        (body(I, condition=("lt", I, 2)), False),  # a part of the subscript's own loop
        (body(I, condition=("ne", J, 2)), False),  # no bound
    ],
)
def test_a_check_is_made_for_every_element_or_not(made, always):
    (found,) = _checks(made)
    assert found.always == always and found.origins == {5} and found.buffer == "positions"


# -- regions -----------------------------------------------------------------------------------------------------------


def layer(cache, positions, k, table):
    """What a decoder does: look positions up for the query and for the key, write at them, read everything."""
    query = (k * table[positions]) @ table.T
    cache.index_copy_(0, positions, k * table[positions])
    return query @ cache


def apart(function):
    """Compiled with a kernel for every node: which nodes would be fused is another matter."""
    return staxlab.compile(function, options={"fuse": False}, strict_native=True)


def inputs(*positions):
    torch.manual_seed(0)
    count = len(positions)
    return torch.randn(8, 4), torch.tensor(positions), torch.randn(count, 4), torch.randn(8, 4)


def test_a_cache_is_written_where_it_stands():
    compiled = apart(layer)
    mine, eager = inputs(3, 5), inputs(3, 5)
    torch.testing.assert_close(compiled(*mine), layer(*eager))
    torch.testing.assert_close(mine[0], eager[0])
    compilation = compiled.versions[0].compilation
    memory = compilation.schedule.memory
    check_plan(compilation.schedule)
    assert len(memory.written_back) == len(memory.skipped) == 1
    (skipped,) = (node for node in compilation.schedule.nodes if node.name in memory.skipped)
    assert compilation.schedule.bytes_read(skipped) == compilation.schedule.bytes_written(skipped) == 0
    kernel = next(kernel.name for kernel in compilation.kernels if skipped.name in kernel.nodes)
    assert f"{kernel}(" not in compilation.wrapper.source
    assert f"# {kernel} is left out: it would copy cache onto itself" in compilation.wrapper.source
    again = inputs(0, 7)
    torch.testing.assert_close(compiled(*again), layer(*inputs(0, 7)))
    assert len(compiled.versions) == 1
    for wrong in ((3, 9), (-9, 2)):
        bad = inputs(*wrong)
        with pytest.raises(IndexError):
            compiled(*bad)
        assert torch.equal(bad[0], inputs(*wrong)[0])  # the lookup comes first: nothing is written


WRITES = {
    "index_copy_": lambda x, i, k: x.index_copy_(0, i, k),
    "index_put_": lambda x, i, k: x.index_put_((i,), k),
    "index_put_ added": lambda x, i, k: x.index_put_((i,), k, accumulate=True),
    "index_add_": lambda x, i, k: x.index_add_(0, i, k),
    "index_fill_": lambda x, i, k: x.index_fill_(0, i, 1.0),
    "scatter_": lambda x, i, k: x.scatter_(0, i[:, None].expand(-1, 4), k),
    "scatter_add_": lambda x, i, k: x.scatter_add_(0, i[:, None].expand(-1, 4), k),
    "x[i] = 1": lambda x, i, k: x.__setitem__(i, 1.0),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
@pytest.mark.parametrize("fuse", [True, False])
def test_a_write_that_fails_itself_writes_nothing(write, fuse):
    """Eager execution leaves a part of it written; which part is up to its threads."""

    def f(cache, positions, k):
        write(cache, positions, k)
        return cache * 2

    compiled = staxlab.compile(f, options={"fuse": fuse}, strict_native=True)
    mine, eager = inputs(3, 5)[:3], inputs(3, 5)[:3]
    torch.testing.assert_close(compiled(*mine), f(*eager))
    torch.testing.assert_close(mine[0], eager[0])
    for wrong in ((3, 9), (9, 3), (3, -9)):
        bad = inputs(*wrong)[:3]
        with pytest.raises((IndexError, RuntimeError)):
            compiled(*bad)
        assert torch.equal(bad[0], inputs(*wrong)[0])
    assert len(compiled.versions) == 1
    assert compiled.versions[0].compilation.schedule.memory.skipped or fuse


def unasked(cache, positions, k, table):
    cache.index_copy_(0, positions, k * table[positions])
    return cache * 2


def asked_of_fewer(cache, positions, k, table):
    query = (k * table[positions[:1]]) @ table.T
    cache.index_copy_(0, positions, k * table[positions])
    return query @ cache


def another_table(cache, positions, k, table):
    query = (k * torch.cat((table, table))[positions]) @ table.T
    cache.index_copy_(0, positions, k * table[positions])
    return query @ cache


def checked_afterwards(cache, positions, k, table):
    cache.index_copy_(0, positions, k)
    return table[positions + 1]


def old_contents(cache, positions, k, table):
    old = cache.cumsum(0)
    cache.index_copy_(0, positions, k)
    return old + cache, cache[:2] * 2


def filled_before(cache, positions, k, table):
    cache.mul_(0.5)
    cache.index_copy_(0, positions, k)
    return cache * 2


def written_twice(cache, positions, k, table):
    cache.index_copy_(0, positions[:1], k[:1])
    cache.index_copy_(0, positions[1:], k[1:])
    return cache * 2


def more_often_than_it_has_elements(cache, positions, k, table):
    many = positions.repeat(40)
    cache.view(-1).index_put_((many,), k.new_ones(()), accumulate=True)
    return cache * 2


BEFOREHAND = [unasked, asked_of_fewer, another_table]
KEPT = [checked_afterwards, filled_before, written_twice, more_often_than_it_has_elements]


@pytest.mark.parametrize("function", BEFOREHAND + KEPT)
def test_an_input_is_not_written_before_a_check_that_nobody_made(function):
    mine, eager = inputs(3, 5), inputs(3, 5)
    compiled = apart(function)
    torch.testing.assert_close(compiled(*mine), function(*eager))
    torch.testing.assert_close(mine[0], eager[0])
    memory = compiled.versions[0].compilation.schedule.memory
    assert bool(memory.checked_first) == bool(memory.skipped) == (function in BEFOREHAND)
    for wrong in ((3, 90), (-90, 3)):
        bad = inputs(*wrong)
        with pytest.raises(IndexError):
            compiled(*bad)
        assert torch.equal(bad[0], inputs(*wrong)[0])


@pytest.mark.parametrize(("shift", "in_place"), [(0, 2), (1, 1)])
@pytest.mark.parametrize("fuse", [True, False])
def test_of_two_caches_neither_is_written_if_a_write_fails(shift, in_place, fuse):
    """At the same positions the second write cannot fail once the first has been checked; at others it may."""

    def f(keys, values, positions, k):
        keys.index_copy_(0, positions, k)
        values.index_copy_(0, positions + shift if shift else positions, k * 2)
        return keys @ values.T

    def given(*positions):
        cache, at, k, table = inputs(*positions)
        return cache, table, at, k

    compiled = staxlab.compile(f, options={"fuse": fuse}, strict_native=True)
    mine, eager = given(3, 5), given(3, 5)
    torch.testing.assert_close(compiled(*mine), f(*eager))
    assert torch.equal(mine[0], eager[0]) and torch.equal(mine[1], eager[1])
    assert len(compiled.versions[0].compilation.schedule.memory.skipped) == in_place
    for wrong in ((3, 8), (8, 3), (3, -9), *([(3, 7)] if shift else [])):
        bad, before = given(*wrong), given(*wrong)
        with pytest.raises(IndexError):
            compiled(*bad)
        assert torch.equal(bad[0], before[0]) and torch.equal(bad[1], before[1])


def test_what_is_checked_beforehand_is_read_twice_and_nothing_else():
    compilation = staxlab.explain(unasked, *inputs(3, 5), options={"fuse": False, "instruction_set": "avx2"})
    (name,) = compilation.schedule.memory.checked_first
    (kernel,) = (kernel for kernel in compilation.kernels if name in kernel.nodes)
    before, after = kernel.source.split("if (failure) return failure;")
    assert before.count("load(in_positions") == 1 and "in_k" not in before.split("{", 1)[1]
    assert "store" not in before and "store" in after


def test_a_copy_that_need_not_run_shares_no_kernel():
    """Of ``layer``, whose first copy could run in one kernel with the lookup before the product."""
    mine, eager = inputs(3, 5), inputs(3, 5)
    compiled = staxlab.compile(layer, strict_native=True)
    torch.testing.assert_close(compiled(*mine), layer(*eager))
    torch.testing.assert_close(mine[0], eager[0])
    compilation = compiled.versions[0].compilation
    check_plan(compilation.schedule)
    assert len(compilation.schedule.memory.skipped) == 1
    reasons = [decision.reason for decision in compilation.schedule.decisions if decision.topic == "fuse"]
    assert any("need not run" in reason for reason in reasons)


def filled(cache, positions, k, table):
    """The scatter's base is made by a kernel that does more than copy the input."""
    found = (k * table[positions]) @ table.T  # checks the positions
    cache.mul_(0.5)
    cache[positions] = k
    return cache.sum(0), cache * 2, found


@pytest.mark.parametrize("fuse", [True, False])
def test_a_base_that_is_computed_may_stand_in_the_input_too(fuse):
    mine, eager = inputs(3, 5), inputs(3, 5)
    compiled = staxlab.compile(filled, options={"fuse": fuse}, strict_native=True)
    for one, other in zip(compiled(*mine), filled(*eager), strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(mine[0], eager[0])
    memory = compiled.versions[0].compilation.schedule.memory
    assert not memory.skipped and (fuse or memory.written_back)


def test_old_contents_that_are_read_later_are_kept():
    mine, eager = inputs(3, 5), inputs(3, 5)
    for one, other in zip(apart(old_contents)(*mine), old_contents(*eager), strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(mine[0], eager[0])


def test_on_a_gpu_a_failed_check_leaves_nothing_to_be_seen():
    memory = staxlab.explain(unasked, *inputs(3, 5), target="sm_90", options={"fuse": False}).schedule.memory
    assert memory.written_back and memory.skipped
