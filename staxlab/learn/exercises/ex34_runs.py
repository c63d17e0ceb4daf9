"""What Exercise 34 runs: students' experiments on machines whose truth was planted, and on two real kernels.

A simulated machine answers a reading with ``t0 + delay`` (Definition 13.1). Each delay is never negative and is a sum
of what Section 13.1 names: noise of its own for each reading, now and then an interruption, a load that changes from
one period to the next and hits whoever runs then, and a steady slowing down. Which of two kernels is slower is known,
so an experiment can be run many times over and its errors counted. No clock is involved, and the machines are the same
for everybody.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy
import torch

from ...errors import BuildError
from .. import limits, truth
from ..answers import Callee
from ..feedback import Verdict, nearly, right, unchecked, wrong
from ..judges import Slip, call_failed, result_text, unexpected_result
from .ex25_runs import different

if TYPE_CHECKING:
    from .ex34 import Variant

Run = Callable[[], float]

MOST_READINGS = 240
REPETITIONS = 120
# An error rate of 2.5% gives more than 10 errors in 120 experiments with a probability below 1 in 3000.
MOST_ERRORS = 10
FEWEST_FOUND = 108  # nine of ten
T0 = 1.36e-3  # seconds: the fastest median of a row sum in Section 13.1
SECONDS = 5.0  # for all repetitions on one machine

HIDDEN = "traffic that the count leaves out; the kernels are of nearly the same quality"
QUALITY = "the quality of the fused kernel, which moves its bytes that much faster"
IMPOSSIBLE = "an error of measurement, since S cannot exceed the counted ratio"
SMALLER = "nothing any more: with write allocate the ratio is smaller than counted"


class TooManyReadings(RuntimeError):
    """The experiment asked for more readings than it may take."""


# --- The simulated machine --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scenario:
    """A machine, and what it means if an experiment fails on it. Durations in parts of the undisturbed one.

    ``extra`` is how much longer the second kernel takes undisturbed; ``noise`` the mean delay of a reading; ``load``
    the largest load, which is drawn anew every 40 readings on average; ``ramp`` what every reading takes longer than
    the one before it (less than 0: it becomes faster, down to the undisturbed duration). ``mistake`` and ``message``
    are for who is wrong too often, with that ``credit``.
    """

    machine: str
    mistake: str
    message: str
    extra: float = 0.0
    noise: float = 0.03
    load: float = 0.0
    ramp: float = 0.0
    credit: Fraction = Fraction(0)


class Machine:
    """One experiment's machine, with two kernels to run. Deterministic by ``seed``."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.random = random.Random(f"{scenario.machine}/{seed}")
        self.load = scenario.load * self.random.random()
        self.slowed = max(0.0, -scenario.ramp * MOST_READINGS)  # no delay is ever negative
        self.left = MOST_READINGS

    def reading(self, extra: float) -> float:
        """Seconds that one run takes."""
        if self.left == 0:
            raise TooManyReadings(f"more than {MOST_READINGS} readings")
        self.left -= 1
        scenario, draw = self.scenario, self.random.random
        if draw() < 1 / 40:
            self.load = scenario.load * draw()
        self.slowed += scenario.ramp
        delay = self.load + self.slowed + self.random.expovariate(1 / scenario.noise)
        if draw() < 0.05:  # an interruption
            delay += draw()
        return T0 * (1 + extra + delay)

    def first(self) -> float:
        return self.reading(0.0)

    def second(self) -> float:
        return self.reading(self.scenario.extra)


def scenarios(effect: float) -> tuple[Scenario, ...]:
    """The machines an experiment is tried on; on one of them the second kernel is slower by ``effect``."""
    return (
        Scenario(
            "quiet, two equal kernels",
            "chance",
            "Two equal kernels never give equal readings: how far apart they are by chance has to be part of the rule.",
        ),
        Scenario(
            "with a load that comes and goes, two equal kernels",
            "not-alternated",
            "One side was read in another period than the other. Readings that belong together have to be taken "
            "together.",
            load=0.8,
        ),
        Scenario(
            "very noisy, two equal kernels",
            "fixed-threshold",
            "Here the readings scatter more, and what you take for an effect is chance. The rule has to follow the "
            "readings' own scatter.",
            noise=0.6,
        ),
        Scenario(
            "quiet, the second kernel is faster",
            "wrong-way",
            "Here the second kernel is different, but not slower.",
            extra=-0.2,
        ),
        Scenario(
            f"with a load that comes and goes, the second kernel is slower by {effect:.0%}",
            "missed",
            "The difference that is there was missed too often. What do the readings have in common that could be "
            "taken out, and are they enough?",
            extra=effect,
            load=0.8,
        ),
        Scenario(
            "getting steadily slower, two equal kernels",
            "fixed-order",
            "Whoever is always second of a pair is read a little later, when the machine is slower. Let the sides "
            "take turns in being first.",
            noise=0.01,
            ramp=0.01,
            credit=Fraction(2, 3),
        ),
        Scenario(
            "getting steadily faster, two equal kernels",
            "fixed-order",
            "Whoever is always first of a pair is read a little earlier, when the machine is slower. Let the sides "
            "take turns in being first.",
            noise=0.01,
            ramp=-0.01,
            credit=Fraction(2, 3),
        ),
    )


def count_slower(experiment: Callable[[Run, Run], Any], scenario: Scenario) -> tuple[int, int, Any]:
    """(experiments that found the second kernel slower, experiments made, a result that is no truth value or None).

    Stops where the outcome is certain: after more errors than are allowed.
    """
    found = 0
    for repetition in range(REPETITIONS):
        machine = Machine(scenario, repetition)
        said = experiment(machine.first, machine.second)
        if not isinstance(said, bool | numpy.bool_):
            return found, repetition + 1, _NoTruth(said)
        found += bool(said)
        errors = repetition + 1 - found if scenario.extra > 0 else found
        if errors > (REPETITIONS - FEWEST_FOUND if scenario.extra > 0 else MOST_ERRORS):
            return found, repetition + 1, None
    return found, REPETITIONS, None


@dataclass(frozen=True)
class _NoTruth:
    value: Any


class _Name(str):
    __repr__ = str.__str__


ARGUMENTS = (_Name("run_a"), _Name("run_b"))


def judge_experiment(callee: Callee, effect: float) -> Verdict:
    """Every machine in turn, then the real kernels; the first that an experiment fails on decides."""
    tried = []
    for scenario in scenarios(effect):
        outcome = limits.call(count_slower, callee.function, scenario, seconds=SECONDS)
        if isinstance(outcome.error, TooManyReadings):
            return wrong(
                f"An experiment may take {MOST_READINGS} readings, both sides together.", mistake="over-budget"
            )
        if outcome.failed:
            return call_failed(callee, ARGUMENTS, outcome)
        found, made, problem = outcome.value
        if problem is not None:
            return unexpected_result(callee, ARGUMENTS, f"{result_text(problem.value)} is not True or False")
        slower = scenario.extra > 0
        if found < FEWEST_FOUND if slower else found > MOST_ERRORS:
            facts = (
                ("machine", scenario.machine),
                ("said that it is slower", f"{found} of {made} experiments"),
                ("allowed", f"{f'at least {FEWEST_FOUND}' if slower else f'at most {MOST_ERRORS}'} of {REPETITIONS}"),
            )
            if scenario.credit:
                return nearly(scenario.message, *facts, credit=scenario.credit, mistake=scenario.mistake)
            return wrong(scenario.message, *facts, mistake=scenario.mistake)
        tried.append(("slower? " + scenario.machine, f"{found} of {made}"))
    verdict = on_real_kernels(callee)
    return verdict or right("It decides right on every machine, and on real kernels.", *tried)


# --- Real kernels -----------------------------------------------------------------------------------------------------

ATTEMPTS = 3
CALLS = 10  # in one reading, so that it lasts some ten microseconds


def _row_sums(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1)


def _more_work(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(torch.tanh(x)).sum(-1)


@lru_cache(maxsize=1)
def real_kernels() -> tuple[Run, Run]:
    """Readings of a compiled row sum, and of one that also computes a hyperbolic tangent and an exponential of every
    element. BuildError without a C++ compiler."""
    from ...api import compile as compile_function

    x = torch.linspace(-1, 1, 16 * 512).reshape(16, 512)

    def run_of(function: Callable[[torch.Tensor], torch.Tensor]) -> Run:
        kernel = compile_function(function, strict_native=True)
        kernel(x)

        def run() -> float:
            start = time.perf_counter()
            for _ in range(CALLS):
                kernel(x)
            return (time.perf_counter() - start) / CALLS

        return run

    return run_of(_row_sums), run_of(_more_work)


def on_real_kernels(callee: Callee) -> Verdict | None:
    """The experiment on one kernel twice, and on two of which the second does more work; None if it is right on both.

    A right experiment errs now and then, and a machine may be busy: it has to err three times in a row to be wrong.
    """
    try:
        quick, slow = real_kernels()
    except BuildError as error:
        return unchecked(
            f"Right on every simulated machine; real kernels need a compiler. {error.what}: {error.remedy}"
        )
    for second, truly in ((quick, False), (slow, True)):
        for _ in range(ATTEMPTS):
            outcome = limits.call(callee.function, _limited(quick), _limited(second), seconds=SECONDS)
            if outcome.failed:
                return call_failed(callee, ARGUMENTS, outcome)
            if bool(outcome.value) == truly:
                break
        else:
            what = "the second computes more for every element" if truly else "the same kernel twice"
            facts = (("real kernels", what), ("said that it is slower", f"{0 if truly else ATTEMPTS} of {ATTEMPTS}"))
            message = "Right on simulated machines, and wrong on real kernels. Does it rely on their durations?"
            return wrong(message, *facts, mistake="real-kernels")
    return None


def _limited(run: Run) -> Run:
    left = iter(range(MOST_READINGS))

    def limited() -> float:
        if next(left, None) is None:
            raise TooManyReadings(f"more than {MOST_READINGS} readings of one side")
        return run()

    return limited


# --- Signs of differences ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def false_alarms(n: int, j: int) -> Fraction:
    """How often the j-th smallest of n differences is above zero if each is so with probability 1/2: all 2^n sign
    patterns counted."""
    hits = sum(n - pattern.bit_count() < j for pattern in range(1 << n))
    return Fraction(hits, 1 << n)


def fewest_pairs(level: Fraction) -> int:
    """The fewest pairs whose differences are all positive with at most this probability."""
    n = 1
    while false_alarms(n, 1) > level:
        n += 1
    return n


# --- Bytes with write allocate ----------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def counted_bytes(columns: int) -> tuple[int, int, int, int]:
    """Bytes of Example 1.1 in rows of ``columns``: eager (read, written), compiled (read, written)."""
    x = torch.ones(64, columns)
    model = truth.byte_model(lambda x, w: (torch.relu(x + w) * 2).sum(-1), x, x + 1)
    eager, compiled = model.eager, model.compiled
    return eager.bytes_read, eager.bytes_written, compiled.bytes_read, compiled.bytes_written


@lru_cache(maxsize=256)
def byte_ratio(columns: int, factor: Fraction) -> Fraction:
    """The model byte ratio of Example 1.1 when a written byte causes ``factor`` bytes of traffic."""
    eager_read, eager_written, read, written = counted_bytes(columns)
    return (eager_read + factor * eager_written) / (read + factor * written)


@lru_cache(maxsize=64)
def ratio_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other ratios one may arrive at."""
    eager_read, eager_written, read, written = counted_bytes(variant.columns)
    factor = variant.factor
    return different(
        byte_ratio(variant.columns, factor),
        (
            Slip("sum-forgotten", (5 + 3 * factor) / 2, "The results of the sum are written as well, on both sides: a "
                 "small part, but this is not exact.", Fraction(3, 4)),
            Slip("as-counted", byte_ratio(variant.columns, Fraction(1)), "That is without write allocate."),
            Slip("only-eager", (eager_read + factor * eager_written) / (read + written), "The fused kernel writes, "
                 "too."),
            Slip("all-traffic", factor * byte_ratio(variant.columns, Fraction(1)), "Reads cost what was counted."),
            Slip("inverse", 1 / byte_ratio(variant.columns, factor), "Eager over compiled."),
        ),
    )  # fmt: skip


@lru_cache(maxsize=64)
def left_over_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other factors one may arrive at."""
    truth_here = variant.measured / byte_ratio(variant.columns, variant.factor)
    return different(
        truth_here,
        (
            Slip("as-counted", variant.measured / byte_ratio(variant.columns, Fraction(1)), "That is with the ratio as "
                 "counted, without write allocate."),
            Slip("inverse", 1 / truth_here, "The other way round: S = rho * (beta_c / beta_e)."),
        ),
    )  # fmt: skip


def delay_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other delays one may arrive at, in milliseconds."""
    t, s = variant.eager_ms, variant.observed
    return different(
        t / s - t,
        (
            Slip("whole-reading", t / s, "That is the whole reading."),
            Slip("share-of-eager", t - t * s, "S is T_e / T_c, so the compiled reading is T_e / S."),
        ),
    )


def pair_slips(variant: Variant) -> tuple[Slip, ...]:
    truth_here = fewest_pairs(variant.level)
    return (
        Slip("both-ends", Fraction(truth_here + 1), "That is for the interval from the smallest to the largest "
             "difference. Here all differences on one side count.", Fraction(1, 2)),
        Slip("one-less", Fraction(truth_here - 1), "With so few, chance does it more often."),
    )  # fmt: skip


def draw_measured(rng: random.Random, columns: int, factor: Fraction) -> Fraction:
    """A speedup, with two decimals, a little above the corrected ratio."""
    return Fraction(round(100 * byte_ratio(columns, factor) * Fraction(rng.randint(102, 108), 100)), 100)
