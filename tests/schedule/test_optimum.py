"""The exact fusion partition, held against two witnesses that share nothing with its search (Definition 7.3)."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.errors import ScheduleError
from staxlab.schedule import optimum as module
from staxlab.schedule.fusion_problem import Buffer, FusionProblem, bits
from staxlab.schedule.greedy import greedy
from staxlab.schedule.integer_program import by_integer_program
from staxlab.schedule.optimum import brute_force, optimum, set_partitions


@st.composite
def problems(draw, most: int = 7, parts: bool = False) -> FusionProblem:
    """Small programs: every node reads one to three buffers and writes one, some pairs are forbidden."""
    count = draw(st.integers(1, most))
    nodes, buffers = [], ["x", "y"]
    for k in range(count):
        reads = draw(st.lists(st.sampled_from(buffers), min_size=1, max_size=3, unique=True))
        nodes.append((f"n{k}", reads, [f"b{k}"]))
        buffers.append(f"b{k}")
    sizes = {buffer: draw(st.integers(0, 6)) for buffer in buffers}
    results = [b for b in buffers[2:] if draw(st.booleans())]
    pairs = list(itertools.combinations([name for name, _, _ in nodes], 2))
    forbidden = draw(st.lists(st.sampled_from(pairs), max_size=len(pairs) // 2, unique=True)) if pairs else []
    problem = FusionProblem.build(nodes, sizes, results=results, forbidden=forbidden)
    if not parts:
        return problem
    cut = []
    for buffer in problem.buffers:
        touched = {}
        for reader in buffer.readers:
            if buffer.nbytes and draw(st.booleans()):
                names = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=2, unique=True))
                touched[reader] = tuple((name, draw(st.just(ord(name) % 3 + 1))) for name in names)
        cut.append(Buffer(buffer.name, buffer.nbytes, buffer.writer, buffer.readers, buffer.escapes, touched))
    return FusionProblem(problem.names, tuple(cut), problem.edges, problem.forbidden)


@given(problems())
@settings(max_examples=150, deadline=None)
def test_three_ways_find_the_same_optimum(problem):
    least, _ = brute_force(problem)
    found, program = optimum(problem), by_integer_program(problem)
    assert found.nbytes == found.bound == least
    assert program.nbytes == program.bound == least
    for solution in (found, program):
        assert problem.violation(solution.partition) is None
        assert problem.cost(solution.partition) == solution.nbytes
        assert solution.is_proved
    assert greedy(problem).nbytes >= least


@given(problems(parts=True))
@settings(max_examples=100, deadline=None)
def test_readers_that_touch_parts(problem):
    assert optimum(problem).nbytes == brute_force(problem)[0]


@given(problems(most=9))
@settings(max_examples=60, deadline=None)
def test_the_search_from_the_worst_start_finds_the_same(problem):
    assert optimum(problem, start=alone(problem)).nbytes == optimum(problem).nbytes


class Triples:
    """Classes of at most two nodes, and the last node's class costs a byte more: more than pairs can say."""

    def may_grow(self, members):
        return members.bit_count() <= 2

    def extra(self, members):
        return members & 1 if self.may_grow(members) else None

    def reads(self, buffer, members):
        return buffer.bytes_read(members)


class Orders:
    """A class in which two readers of one buffer read it in different orders, if their places differ by an odd number,
    and so twice."""

    def may_grow(self, members):
        return True

    def extra(self, members):
        return sum(self.reads(b, members) - b.bytes_read(members) for b in self.buffers if self.counts(b, members))

    def counts(self, buffer, members):
        return buffer.writer is None or not members >> buffer.writer & 1

    def reads(self, buffer, members):
        inside = [reader for reader in buffer.readers if members >> reader & 1]
        return sum(buffer.bytes_read(sum(1 << r for r in inside if r % 2 == side)) for side in (0, 1))


@given(problems())
@settings(max_examples=80, deadline=None)
def test_a_buffer_that_is_read_in_two_orders(problem):
    orders = Orders()
    orders.buffers = problem.buffers
    asked = FusionProblem(problem.names, problem.buffers, problem.edges, problem.forbidden, orders)
    assert optimum(asked).nbytes == brute_force(asked)[0]


@given(problems())
@settings(max_examples=60, deadline=None)
def test_classes_that_know_more_than_their_pairs(problem):
    asked = FusionProblem(problem.names, problem.buffers, problem.edges, problem.forbidden, Triples())
    found = optimum(asked)
    assert asked.violation(found.partition) is None
    assert found.nbytes == brute_force(asked)[0]
    assert greedy(asked).nbytes >= found.nbytes


def chain(length: int, **more) -> FusionProblem:
    nodes = [(f"n{k}", [f"b{k}"], [f"b{k + 1}"]) for k in range(length)]
    sizes = {f"b{k}": 8 for k in range(length + 1)}
    return FusionProblem.build(nodes, sizes, results=[f"b{length}"], **more)


def test_a_chain_is_one_kernel_that_reads_once_and_writes_once():
    found = optimum(chain(25))
    assert len(found.partition) == 1
    assert found.nbytes == 16


def test_exercise_17_merging_the_ends_makes_a_cycle():
    problem = FusionProblem.build(
        [("a", ["x"], ["y"]), ("c", ["y"], ["z"]), ("b", ["y", "z"], ["w"])], dict.fromkeys("xyzw", 4), results=["w"]
    )
    assert problem.violation([["a", "b"], ["c"]]) == "the kernels a+b and c wait for each other"
    forbidden = FusionProblem.build(
        [("a", ["x"], ["y"]), ("c", ["y"], ["z"]), ("b", ["y", "z"], ["w"])], dict.fromkeys("xyzw", 4),
        results=["w"], forbidden=[("a", "c")],
    )  # fmt: skip
    assert set(bits(forbidden.apart[0])) == {1, 2}  # b as well, for c would have to be with them
    assert greedy(forbidden).nbytes == optimum(forbidden).nbytes == 16  # x is read, y written and read, w written


def test_the_greedy_is_not_always_optimal():
    # Two merges that exclude each other, and the better one leaves more behind.
    problem = FusionProblem.build(
        [("a", ["x"], ["s", "t"]), ("b", ["s"], ["m"]), ("c", ["t"], ["n"]), ("d", ["m", "n"], ["o"])],
        {"x": 1, "s": 5, "t": 4, "m": 4, "n": 1, "o": 1}, results=["o"], forbidden=[("a", "d"), ("b", "c")],
    )  # fmt: skip
    assert greedy(problem).nbytes > optimum(problem).nbytes


@given(problems(), st.integers(0, 6))
@settings(max_examples=60, deadline=None)
def test_a_search_that_is_cut_short_has_an_honest_bound(problem, states):
    found = optimum(problem, start=alone(problem), states=states)
    least, _ = brute_force(problem)
    assert found.bound <= least <= found.nbytes
    assert problem.violation(found.partition) is None
    assert found.proof in (module.PROVED, module.OUT_OF_STATES)
    if found.proof == module.PROVED:
        assert found.is_proved


def tangled(count: int, seed: int, share: float = 0.2) -> FusionProblem:
    """A random program whose nodes read what was written shortly before; that share of all pairs is forbidden."""
    draw = random.Random(seed)
    nodes, buffers = [], ["x", "y"]
    for k in range(count):
        nodes.append((f"n{k}", draw.sample(buffers[-8:], min(len(buffers), draw.choice((1, 2, 2)))), [f"b{k}"]))
        buffers.append(f"b{k}")
    sizes = {buffer: draw.choice((1, 64, 64, 64, 8)) for buffer in buffers}
    forbidden = [(f"n{i}", f"n{j}") for i in range(count) for j in range(i) if draw.random() < share]
    results = [b for b in buffers[2:] if draw.random() < 0.2]
    return FusionProblem.build(nodes, sizes, results=results, forbidden=forbidden)


def alone(problem: FusionProblem) -> list[list[str]]:
    return [[name] for name in problem.names]


def test_the_clock_ends_a_search():
    problem = tangled(25, 1)
    found = optimum(problem, start=alone(problem), seconds=0.0)
    assert found.proof == module.OUT_OF_TIME
    assert found.bound <= found.nbytes


def test_ctrl_c_ends_a_search_with_the_best_so_far():
    heard = []

    def stop(share, words):
        heard.append((share, words))
        if len(heard) == 1:
            raise KeyboardInterrupt

    problem = tangled(25, 1)
    found = optimum(problem, start=alone(problem), progress=stop)
    assert found.proof == module.INTERRUPTED
    assert found.bound <= found.nbytes < problem.cost(alone(problem))
    assert 0 <= heard[0][0] <= 1
    assert "at least" in heard[0][1]


@pytest.mark.parametrize("seed", range(4))
def test_larger_instances_agree_with_the_integer_program(seed):
    problem = tangled(12, seed)
    assert optimum(problem).nbytes == by_integer_program(problem).nbytes


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_instances_of_25_nodes_are_solved(seed):
    problem = tangled(25, seed, 0.5)
    found = optimum(problem, seconds=300)
    assert found.is_proved
    assert found.nbytes < greedy(problem).nbytes


def test_what_is_no_partition_is_refused():
    problem = chain(3)
    for partition, words in (
        ([["n0", "n1"]], "n2 is in no class"),
        ([["n0", "n1", "n2"], ["n0"]], "n0 is in two classes"),
        ([["n0", "n1", "n2", "n9"]], "no node 'n9'"),
    ):
        with pytest.raises(ScheduleError, match=words):
            problem.cost(partition)
    with pytest.raises(ScheduleError, match="not legal"):
        optimum(chain(3, forbidden=[("n0", "n1")]), start=[["n0", "n1"], ["n2"]])


def test_what_is_no_problem_is_refused():
    for nodes, sizes, words in (
        ([("a", ["y"], ["x"]), ("b", ["x"], ["y"])], {"x": 1, "y": 1}, "reads y before"),
        ([("a", [], ["x"]), ("b", [], ["x"])], {"x": 1}, "two nodes write x"),
        ([("a", [], ["x"]), ("a", [], ["y"])], {"x": 1, "y": 1}, "same name"),
        ([("a", ["x"], ["y"])], {"x": 1}, "y needs a number of bytes"),
    ):
        with pytest.raises(ScheduleError, match=words):
            FusionProblem.build(nodes, sizes)
    with pytest.raises(ScheduleError, match="no pair"):
        chain(3, forbidden=[("n0", "n0")])


def test_there_are_bell_many_partitions():
    assert [sum(1 for _ in set_partitions(range(n))) for n in range(7)] == [1, 1, 2, 5, 15, 52, 203]
