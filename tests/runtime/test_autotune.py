"""The searches of Section 9.6 on given costs: what they promise, for any cost that hypothesis comes up with."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.codegen.configurations import ConfigurationSpace, Parameter
from staxlab.errors import OptionError
from staxlab.runtime.autotune import (
    ACCEPTED,
    acceptance_bound,
    coordinate_descent,
    exhaustive,
    fewest_samples,
    halving_plan,
    random_search,
    samples_needed,
    select,
    successive_halving,
)
from staxlab.runtime.autotune_landscapes import Noisy, RegisterCliff, Table, side_by_side
from staxlab.runtime.autotune_noise import Estimate, Exact, Interleaved, judge, noise_threshold
from staxlab.runtime.autotune_record import from_json, to_json

SQUARE = ConfigurationSpace.of(a=(1, 2, 4, 8), b=(1, 2, 4, 8))


@st.composite
def landscapes(draw, infinite: bool = True):
    """A space of up to three parameters, and a cost for each of its configurations; the first one is finite."""
    sets = [
        sorted(draw(st.sets(st.sampled_from([1, 2, 3, 4, 6, 8, 16, 32]), min_size=1, max_size=4)))
        for _ in range(draw(st.integers(1, 3)))
    ]
    space = ConfigurationSpace.of({f"p{k}": values for k, values in enumerate(sets)})
    cost = st.integers(1, 60).map(float)
    if infinite:
        cost = st.one_of(cost, st.just(math.inf))
    costs = {configuration: draw(cost) for configuration in space}
    first = next(iter(space))
    costs[first] = draw(st.integers(1, 60).map(float))
    return space, costs


# --- Definition 9.2 ---------------------------------------------------------------------------------------------------


@given(landscapes())
def test_neighbours_differ_by_a_factor_of_two_in_one_place(case):
    space, costs = case
    assert len(list(space)) == space.size == len(costs)
    for configuration in space:
        near = list(space.neighbours(configuration))
        truth = [
            other
            for other in space
            if sum(a != b for a, b in zip(configuration, other, strict=True)) == 1
            and any(a == 2 * b or b == 2 * a for a, b in zip(configuration, other, strict=True))
        ]
        assert sorted(near) == sorted(truth)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: ConfigurationSpace(()), "at least one parameter"),
        (lambda: ConfigurationSpace.of(a=()), "at least one of them"),
        (lambda: ConfigurationSpace.of(a=(0, 1)), "whole numbers of 1 or more"),
        (lambda: ConfigurationSpace.of(a=(1.5,)), "whole numbers"),
        (lambda: ConfigurationSpace.of(a=3), "a set of whole numbers"),
        (lambda: ConfigurationSpace((Parameter("a", (1,)), Parameter("a", (2,)))), "same name"),
        (lambda: SQUARE.require((3, 1)), "not in the configuration space"),
        (lambda: SQUARE.require("ab"), "not in the configuration space"),
        (lambda: select([], lambda c: 1.0), "at least one configuration"),
        (lambda: successive_halving([], lambda c: 1.0), "at least one configuration"),
        (lambda: select([(3, 3)], lambda c: 1.0, space=SQUARE), "not in the configuration space"),
        (lambda: select([4, 8], lambda c: 1.0), "one value for each parameter"),
        (lambda: successive_halving([(4, 8), (4,)], lambda c: 1.0), "one value for each parameter"),
        (lambda: select([(1, 1), (2, 2)], 5), "a cost is a function"),
        (lambda: select([(1, 1), (2, 2)], lambda c: -1.0), "above 0, or infinity"),
        (lambda: select([(1, 1), (2, 2)], lambda c: math.nan), "above 0, or infinity"),
        (lambda: select([(1, 1), (2, 2)], lambda c: "fast"), "above 0, or infinity"),
        (lambda: select([(1, 1), (2, 2)], lambda c: True), "above 0, or infinity"),
        (lambda: select([(1, 1), (2, 2)], lambda c: torch.ones(2)), "above 0, or infinity"),
        (lambda: coordinate_descent(SQUARE, (1, 1), lambda c: 1.0, threshold=0), "must be above 0"),
        (lambda: coordinate_descent(SQUARE, (1, 1), lambda c: 1.0, threshold=1), "threshold must lie"),
        (lambda: coordinate_descent(SQUARE, (1, 3), lambda c: 1.0), "not in the configuration space"),
        (lambda: random_search(SQUARE, lambda c: 1.0, samples=0), "at least one sample"),
        (lambda: random_search(SQUARE, lambda c: 1.0, samples=1.5), "at least one sample"),
        (lambda: random_search(SQUARE, lambda c: 1.0, quantile=0), "must be shares"),
        (lambda: samples_needed(0.5, 1.0), "must be shares"),
        (lambda: exhaustive(ConfigurationSpace.of(a=range(1, 5000)), lambda c: 1.0), "too many"),
        (lambda: halving_plan(8, 23), "too few"),
        (lambda: halving_plan(8, 100, 1), "reduction of 2 or more"),
        (lambda: Interleaved(lambda c: 1.0, 0), "at least one reading"),
        (lambda: Interleaved(lambda c: 1.0, 2.5), "at least one reading"),
        (lambda: Interleaved(lambda c: 1.0, noise=1.0), "between 0 and 1"),
        (lambda: Noisy(lambda c: 1.0, 1.0), "from 0 to below 1"),
        (lambda: side_by_side(lambda c: 1.0), "no space to search in"),
    ],
)
def test_what_is_no_search_is_refused_in_one_sentence(made, words):
    with pytest.raises(OptionError, match=words):
        made()


# --- Algorithm 9.1 ----------------------------------------------------------------------------------------------------


@given(landscapes())
def test_selection_takes_the_fastest_candidate_and_asks_for_each_once(case):
    space, costs = case
    found = select(list(space), costs.__getitem__, space=space)
    assert costs[found.chosen] == min(costs.values())
    assert found.evaluations == found.compilations == (space.size if space.size > 1 else 0)


def test_a_single_candidate_is_not_measured():
    found = select([(8, 4)], lambda c: pytest.fail("measured"))
    assert found.chosen == (8, 4) and found.evaluations == 0 and found.reason == "the only candidate"


def test_where_all_candidates_spill_the_first_stays_and_it_is_said():
    found = select([(8, 4), (4, 4)], lambda c: math.inf)
    assert found.chosen == (8, 4) and "spilling" in found.reason


def test_the_order_of_equal_costs_decides():
    assert select([(2, 1), (1, 1), (4, 4)], lambda c: 1.0).chosen == (2, 1)


# --- Algorithm 9.2 and Proposition 9.2 --------------------------------------------------------------------------------


@given(landscapes(), st.sampled_from([1e-3, 0.05, 0.3, 0.9]))
def test_descent_ends_at_a_local_optimum_within_the_bound(case, threshold):
    space, costs = case
    start = next(iter(space))
    fastest = min(costs.values())
    found = coordinate_descent(space, start, costs.__getitem__, threshold=threshold, fastest=fastest)
    assert found.complete and found.acceptances <= found.bound <= space.size
    assert found.bound == acceptance_bound(space.size, costs[start], fastest, threshold)
    assert len(set(found.path)) == len(found.path), "accepted configurations are pairwise distinct"
    for neighbour in space.neighbours(found.chosen):
        assert costs[neighbour] >= (1 - threshold) * costs[found.chosen]
    assert found.evaluations <= space.size


@given(landscapes())
def test_descent_takes_the_steps_of_the_algorithm(case):
    """Written down again, as the chapter has it: the two neighbours of a turn are those it begins with."""
    space, costs = case
    c, improved = next(iter(space)), True
    while improved:
        improved = False
        for i in range(len(space.parameters)):
            for other in [(*c[:i], value, *c[i + 1 :]) for value in (2 * c[i], c[i] / 2)]:
                if other in costs and costs[other] < (1 - 1e-3) * costs[c]:
                    c, improved = other, True
    assert coordinate_descent(space, next(iter(space)), costs.__getitem__).chosen == c


def test_descent_may_stop_far_from_the_best():
    """Exercise 24's kind of cost: a wall around the best."""
    wall = dict.fromkeys(SQUARE, 10.0) | {(8, 8): 1.0, (1, 1): 5.0}
    found = coordinate_descent(SQUARE, (1, 1), wall.__getitem__)
    assert found.chosen == (1, 1) and found.acceptances == 0 and exhaustive(SQUARE, wall.__getitem__).cost == 1.0


def test_a_cost_that_cannot_run_at_the_start_is_left_at_once():
    found = coordinate_descent(SQUARE, (1, 1), lambda c: math.inf if c == (1, 1) else 2.0)
    assert found.path[:2] == ((1, 1), (2, 1)) and found.bound == SQUARE.size


def test_the_bound_counts_improvements_by_the_threshold():
    assert acceptance_bound(1000, 8.0, 1.0, 0.5) == 3
    assert acceptance_bound(2, 8.0, 1.0, 0.5) == 2
    assert acceptance_bound(1000, 1.0, 1.0, 0.5) == 0
    assert acceptance_bound(7, math.inf, 1.0, 0.5) == acceptance_bound(7, 1.0, 0.0, 0.5) == 7


# --- Proposition 9.3 --------------------------------------------------------------------------------------------------


def test_the_chapters_number_of_samples():
    assert samples_needed(0.05, 0.05) == 60 and fewest_samples(0.05, 0.05) == 59
    assert samples_needed(0.01, 0.01) == 461 and fewest_samples(0.01, 0.01) == 459


@given(st.integers(1, 99), st.integers(1, 99))
def test_so_many_samples_suffice_and_no_fewer(q, d):
    quantile, failure = q / 100, d / 100
    fewest = fewest_samples(quantile, failure)
    assert fewest <= samples_needed(quantile, failure)
    assert (1 - Fraction(q, 100)) ** fewest <= Fraction(d, 100) + Fraction(1, 10**12)
    assert fewest == 1 or (1 - Fraction(q, 100)) ** (fewest - 1) > Fraction(d, 100) - Fraction(1, 10**12)


@given(landscapes(), st.integers(1, 6), st.integers(0, 2**30))
def test_random_search_returns_the_fastest_that_it_drew(case, samples, seed):
    space, costs = case
    found = random_search(space, costs.__getitem__, samples=samples, seed=seed)
    again = random_search(space, costs.__getitem__, samples=samples, seed=seed)
    assert found == again and found.evaluations <= samples
    assert costs[found.chosen] == min(costs[t.configuration] for t in found.trials)


def test_the_quantile_guarantee_by_counting_every_draw():
    """All 16**2 pairs of draws from 16 configurations, exactly: the share that misses the best quarter is (3/4)**2."""
    costs = {c: float(k) for k, c in enumerate(SQUARE, 1)}
    members = list(SQUARE)
    good = set(sorted(members, key=costs.get)[:4])
    missed = sum(min((a, b), key=costs.get) not in good for a in members for b in members)
    assert Fraction(missed, 16**2) == Fraction(3, 4) ** 2


def test_the_quantile_guarantee_by_an_exact_binomial_count():
    """Of 400 seeded searches, as many may miss the best quarter as a binomial distribution allows at 1 in a million."""
    costs = {c: float(k) for k, c in enumerate(SQUARE, 1)}
    good = set(sorted(SQUARE, key=costs.get)[:4])
    samples, runs = 5, 400
    missed = sum(
        random_search(SQUARE, costs.__getitem__, samples=samples, seed=seed).chosen not in good for seed in range(runs)
    )
    p = (3 / 4) ** samples
    tail = [math.comb(runs, k) * p**k * (1 - p) ** (runs - k) for k in range(runs + 1)]
    assert sum(tail[missed:]) > 1e-6 and sum(tail[: missed + 1]) > 1e-6


def test_the_start_is_kept_where_nothing_drawn_is_faster():
    found = random_search(SQUARE, lambda c: 1.0 if c == (1, 1) else 2.0, samples=3, seed=1, start=(1, 1))
    assert found.chosen == (1, 1) and found.seed == 1


# --- Successive halving -----------------------------------------------------------------------------------------------


@given(st.integers(1, 200), st.integers(2, 4), st.integers(0, 5000))
def test_a_plan_ends_with_one_and_stays_within_its_budget(count, reduction, more):
    rounds = 0
    while reduction**rounds < count:
        rounds += 1
    budget = count * rounds + more
    plan = halving_plan(count, budget, reduction)
    assert len(plan) == rounds and sum(stage.total for stage in plan) <= budget
    assert all(stage.readings >= 1 for stage in plan)
    assert [stage.configurations for stage in plan] == [-(-count // reduction**k) for k in range(rounds)]


@given(landscapes())
def test_halving_finds_the_fastest_of_an_exact_cost(case):
    space, costs = case
    found = successive_halving(list(space), costs.__getitem__, space=space)
    assert costs[found.chosen] == min(costs.values())
    assert found.bound == sum(stage.total for stage in halving_plan(space.size))


def test_the_readings_of_halving_are_those_of_the_plan():
    meter = Interleaved(Noisy(lambda c: float(sum(c)), 0.01), 9)
    found = successive_halving([(8, 8), (4, 4), (2, 2), (1, 1)], meter, budget=24)
    per_round = {}
    for trial in found.trials:
        if trial.verdict in ("kept", "dropped"):
            per_round.setdefault(trial.round, []).append(trial.readings)
    assert per_round == {1: [3, 3, 3, 3], 2: [6, 6]}
    assert found.chosen == (1, 1) and meter.evaluations == 24 + 2 * 9  # measured again beside the first


# --- Noise ------------------------------------------------------------------------------------------------------------


@given(
    st.fractions(Fraction(1, 100), Fraction(100)),
    st.fractions(Fraction(1, 100), Fraction(100)),
    st.fractions(0, Fraction(3, 5)),
    st.fractions(-1, 1),
    st.fractions(-1, 1),
)
def test_the_noise_rule_accepts_only_real_improvements(t, t_other, h, first, second):
    """Exactly, in fractions: measured within the bound, accepted at the threshold 2h/(1+h), so really faster."""
    threshold = 2 * h / (1 + h)
    measured, other = t * (1 + first * h), t_other * (1 + second * h)
    if other < (1 - threshold) * measured:
        assert t_other < t


@given(landscapes(infinite=False), st.sampled_from([0.0, 0.01, 0.1, 0.3]), st.integers(0, 2**30))
def test_descent_under_noise_terminates_and_only_improves(case, noise, seed):
    space, costs = case
    meter = Interleaved(Noisy(costs.__getitem__, noise, seed), readings=3, noise=noise)
    found = coordinate_descent(space, next(iter(space)), meter)
    true = [costs[configuration] for configuration in found.path]
    assert all(later < earlier for earlier, later in zip(true, true[1:], strict=False))
    # Locally optimal up to the gap that the chapter names, about epsilon + 2*h.
    gap = (1 - max(found.threshold, noise_threshold(noise))) * (1 - noise) / (1 + noise)
    for neighbour in space.neighbours(found.chosen):
        assert costs[neighbour] >= gap * costs[found.chosen] * (1 - 1e-9)


@given(landscapes(infinite=False), st.integers(0, 2**30))
@settings(max_examples=50)
def test_selection_under_noise_never_replaces_the_first_by_something_slower(case, seed):
    space, costs = case
    meter = Interleaved(Noisy(costs.__getitem__, 0.2, seed), readings=3, noise=0.2)
    for found in (
        select(list(space), meter, space=space),
        random_search(space, meter, samples=5, seed=seed, start=next(iter(space))),
        successive_halving(list(space), meter, space=space),
    ):
        assert costs[found.chosen] <= costs[next(iter(space))]


def test_without_the_rule_noise_does_mislead():
    """The mistake, planted: a threshold that ignores the noise accepts a slower configuration."""
    costs = {(1,): 1.0, (2,): 1.05}
    wrong = 0
    for seed in range(50):
        readings = Noisy(costs.__getitem__, 0.1, seed)
        one, other = Estimate((1,), readings((1,))), Estimate((2,), readings((2,)))
        wrong += judge(one, other, 1e-3)[0] == ACCEPTED
    assert wrong > 0


def test_what_the_noise_does_not_allow_to_say_is_undecided_and_changes_nothing():
    incumbent, challenger = Estimate((1,), 1.0, noise=0.05), Estimate((2,), 0.93, noise=0.01)
    assert judge(incumbent, challenger, 1e-3) == ("undecided", noise_threshold(0.05))
    assert judge(incumbent, Estimate((2,), 0.90, noise=0.01), 1e-3)[0] == "accepted"
    assert judge(incumbent, Estimate((2,), 0.9995), 1e-3)[0] == "rejected"
    meter = Interleaved(lambda c: 1.0 - 0.05 * c[0], readings=3, noise=0.2)
    found = select([(1,), (2,)], meter)
    assert found.chosen == (1,) and len(found.undecided) == 1 and "noise does not allow" in found.reason


def test_noise_is_read_off_the_interval_of_the_median():
    assert Estimate.of((1,), [1.0] * 9).noise == 0.0
    spread = Estimate.of((1,), [0.9, 0.95, 1.0, 1.0, 1.0, 1.0, 1.0, 1.05, 1.1])
    assert spread.value == 1.0 and spread.noise == pytest.approx(1 / 0.95 - 1)
    assert Estimate.of((1,), [1.0]).noise == 1.0 and noise_threshold(1.0) == 1.0, "one reading proves nothing"


def test_configurations_take_turns_and_each_round_begins_with_another():
    order = []

    def sample(configuration):
        order.append(configuration[0])
        return math.inf if configuration == (4,) else 1.0

    meter = Interleaved(sample, readings=3)
    meter.together([(1,), (2,), (4,)])
    assert order == [1, 2, 4, 2, 1, 1, 2], "rotated, and what cannot run is asked once"


def test_a_configuration_that_was_left_is_not_taken_again():
    """A clock that lies in turns would make the walk go in circles."""
    calls = []

    def lying(configuration):
        calls.append(configuration)
        return 1.0 / len(calls)

    found = coordinate_descent(ConfigurationSpace.of(a=(1, 2)), (1,), Interleaved(lying, readings=1, noise=0.0))
    assert found.acceptances == 1 and found.chosen == (2,)


def test_an_interrupted_search_keeps_its_incumbent():
    def sample(configuration):
        if configuration == (4, 1):
            raise KeyboardInterrupt
        return 1.0 / configuration[0]

    for cost in (sample, Interleaved(sample, 3)):
        found = select([(1, 1), (2, 1), (4, 1)], cost)
        assert not found.complete and found.chosen == (1, 1) and "interrupted" in found.reason
        walked = coordinate_descent(SQUARE, (1, 1), cost)
        assert not walked.complete and walked.chosen == (2, 1)
    with pytest.raises(KeyboardInterrupt):
        random_search(SQUARE, Interleaved(sample, 3), samples=60)


# --- Landscapes -------------------------------------------------------------------------------------------------------


def test_the_register_cliff_is_an_edge_with_a_local_optimum_before_it():
    cliff = RegisterCliff()
    assert cliff((2048, 1)) > 2 * cliff((1024, 1)) and math.isinf(cliff((4096, 1)))
    assert cliff.registers((2048, 1)) > cliff.spill > cliff.registers((1024, 1))
    compared = side_by_side(cliff, start=(512, 4))
    assert compared.rank(compared["descent"].chosen) > 1, "the walk stops before the edge"
    assert compared.rank(compared["exhaustive"].chosen) == 1 and compared.best == compared["exhaustive"].cost
    assert compared["random"].cost <= compared["descent"].cost
    with pytest.raises(KeyError, match="there are"):
        compared["annealing"]


def test_the_searches_side_by_side_under_noise_are_reproducible():
    one, other = (side_by_side(RegisterCliff(), start=(512, 4), noise=0.02, seed=3) for _ in range(2))
    assert one == other
    for search in one.searches:
        assert one.costs[search.chosen] <= one.costs[(512, 4)]


def test_a_table_costs_infinity_where_it_is_silent():
    table = Table({(1, 2): 1.0, (2, 4): 2.0})
    assert table.space.size == 4 and table((2, 2)) == math.inf


def test_an_exact_cost_is_asked_once_for_each():
    meter = Exact(lambda c: 2.0)
    meter.together([(1,), (1,), (2,)])
    assert meter.evaluations == meter.configurations == 2


@given(landscapes(), st.integers(0, 2**30))
def test_every_search_survives_its_file(case, seed):
    space, costs = case
    start = next(iter(space))
    noisy = Interleaved(Noisy(costs.__getitem__, 0.1, seed), readings=3)
    for found in (
        select(list(space), costs.__getitem__, space=space),
        coordinate_descent(space, start, noisy),
        random_search(space, costs.__getitem__, samples=3, seed=seed),
        successive_halving(list(space), noisy, space=space),
        exhaustive(space, costs.__getitem__, start=start),
    ):
        assert from_json(json.loads(json.dumps(to_json(found), allow_nan=False))) == found


def test_a_noise_that_is_no_number_survives_its_file():
    """Readings near the largest float: half the sum of two of them is infinite, and so is what is made of it."""
    space = ConfigurationSpace.of(a=(1, 2, 4), b=(1, 2))
    found = successive_halving(list(space), Interleaved(lambda c: 1.7e308 / c[0], readings=3), space=space)
    read = from_json(json.loads(json.dumps(to_json(found), allow_nan=False)))
    assert read.chosen == found.chosen and str(read) == str(found)
