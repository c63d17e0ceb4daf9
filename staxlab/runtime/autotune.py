"""Searching for a launch configuration (Section 9.6): four ways to spend measurements, and the exhaustive one.

The time of a kernel as a function of its configuration has no formula, so it is measured, and the question is where.
All searches take the cost function as an argument: measured on a device, made up, or a student's. All of them return
one record, a :class:`Search`: every trial in order, what was accepted, and how often the cost was asked for.

* :func:`select` measures a small candidate set and takes the best (Algorithm 9.1, lines 2 to 6);
* :func:`coordinate_descent` walks from a configuration to better neighbours (Algorithm 9.2): a local optimum;
* :func:`random_search` draws at random (Proposition 9.3): one of the best ``q``, probably, whatever the shape;
* :func:`successive_halving` measures all a little, and the better half more (Jamieson and Talwalkar, 2016,
  "Non-stochastic best arm identification and hyperparameter optimization"; with half rounded up, as in Karnin, Koren
  and Somekh, 2013, "Almost optimal exploration in multi-armed bandits");
* :func:`exhaustive` measures everything, as the control, where that is possible.

Where costs are measured, a winner of many is partly the luckiest of many. So it is measured again, in turns with the
configuration one would have taken anyway, and takes its place only if the noise allows that conclusion
(:mod:`staxlab.runtime.autotune_noise`).

>>> space = ConfigurationSpace.of(a=(1, 2, 4, 8), b=(1, 2, 4, 8))
>>> found = coordinate_descent(space, (8, 8), lambda c: 1.0 + (c[0] - 2) ** 2 + (c[1] - 4) ** 2)
>>> found.chosen, found.acceptances, found.evaluations
((2, 4), 3, 8)
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..codegen.configurations import Configuration, ConfigurationSpace, spanning
from ..errors import OptionError
from ..options import Decision
from .autotune_bounds import (
    HalvingRound,
    acceptance_bound,
    check_shares,
    fewest_samples,
    halving_plan,
    samples_needed,
)
from .autotune_noise import ACCEPTED, REJECTED, UNDECIDED, Estimate, judge, meter_of

THRESHOLD = 1e-3  # the chapter's epsilon
LARGEST_EXHAUSTIVE = 4096  # configurations

#: What a trial came to: the three of a comparison, a configuration measured without one, and the two of a halving.
MEASURED, KEPT, DROPPED = "measured", "kept", "dropped"


@dataclass(frozen=True)
class Trial:
    """One configuration at one moment of a search: its ``cost`` in seconds, from how many ``readings`` and with which
    relative ``noise``; the ``verdict``; in a comparison ``against`` which incumbent, and the threshold ``required``."""

    configuration: Configuration
    cost: float
    verdict: str
    round: int = 0
    readings: int = 1
    noise: float = 0.0
    against: Configuration | None = None
    required: float = 0.0


@dataclass(frozen=True, repr=False)
class Search:
    """What a search did: ``trials`` in order, what was ``chosen`` at which ``cost`` (seconds; NaN if never measured).

    ``start`` is the configuration it began from or would have stayed with, ``evaluations`` how often the cost was asked
    for, ``compilations`` for how many configurations. ``bound`` is the most acceptances that Proposition 9.2 allows
    (coordinate descent), or the most measurements that a plan has. ``guarantee`` says what the method promises,
    ``reason`` why this configuration was chosen. ``complete`` is False where the search was interrupted. ``before`` is
    the search that found where this one began, if there was one.
    """

    method: str
    space: ConfigurationSpace
    trials: tuple[Trial, ...]
    start: Configuration | None
    chosen: Configuration
    cost: float
    evaluations: int
    compilations: int
    threshold: float = 0.0
    bound: int | None = None
    guarantee: str = ""
    reason: str = ""
    statistic: str = ""
    complete: bool = True
    subject: str = ""
    seed: int | None = None
    before: Search | None = None

    @property
    def acceptances(self) -> int:
        """How often a challenger took the incumbent's place."""
        return sum(trial.verdict == ACCEPTED for trial in self.trials)

    @property
    def undecided(self) -> tuple[Trial, ...]:
        """Comparisons that the noise did not allow to decide."""
        return tuple(trial for trial in self.trials if trial.verdict == UNDECIDED)

    @property
    def path(self) -> tuple[Configuration, ...]:
        """The incumbents, in order."""
        begun = () if self.start is None else (self.start,)
        return (*begun, *(trial.configuration for trial in self.trials if trial.verdict == ACCEPTED))

    @property
    def costs(self) -> dict[Configuration, float]:
        """The last measured cost of every configuration tried, in seconds."""
        return {trial.configuration: trial.cost for trial in self.trials}

    @property
    def best_so_far(self) -> tuple[float, ...]:
        """For every trial the smallest cost up to it, in seconds. O(trials)."""
        best, found = math.inf, []
        for trial in self.trials:
            best = min(best, trial.cost)
            found.append(best)
        return tuple(found)

    @property
    def decision(self) -> Decision:
        """The choice as the value that every heuristic returns."""
        tried = tuple(self.space.words(c) for c in dict.fromkeys(trial.configuration for trial in self.trials))
        inputs = (("evaluations", self.evaluations), ("compilations", self.compilations))
        words = self.space.words(self.chosen)
        return Decision("launch-configuration", self.subject, words, self.reason, tried, inputs)

    def format(self) -> str:
        """The table of all trials, as a terminal shows it."""
        return str(self)

    def __str__(self) -> str:
        from ..view.searches import text

        return text(self)

    __repr__ = __str__

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


class _Course:
    """A search under way: its incumbent, its trials, and how it ends."""

    def __init__(self, method: str, space: ConfigurationSpace, cost: Any, threshold: float, subject: str):
        self.method, self.space, self.threshold, self.subject = method, space, threshold, subject
        self.meter = meter_of(cost)
        self.trials: list[Trial] = []
        self.start: Configuration | None = None
        self.incumbent: Estimate | None = None
        self.left: set[Configuration] = set()
        self.reason = ""

    def begin(self, start: Configuration) -> None:
        """Make ``start`` the incumbent, not yet measured."""
        self.start, self.incumbent = start, Estimate(start, math.nan)

    def note(self, estimate: Estimate, verdict: str, **more: Any) -> None:
        readings = max(len(estimate.readings), 1)
        trial = Trial(estimate.configuration, estimate.value, verdict, readings=readings, noise=estimate.noise)
        self.trials.append(replace(trial, **more))

    def announce(self, configurations: Sequence[Configuration]) -> None:
        """Tell the meter what will be asked for next, if it wants to know: several may be compiled at once."""
        prepare = getattr(self.meter, "prepare", None)
        if prepare is not None:
            prepare(configurations)

    def contest(self, challenger: Configuration, round_: int) -> bool:
        """Measure the incumbent and a challenger side by side; whether the challenger took the incumbent's place."""
        assert self.incumbent is not None
        held = self.incumbent.configuration
        self.incumbent, other = self.meter.together((held, challenger))
        verdict, required = judge(self.incumbent, other, self.threshold)
        if verdict == ACCEPTED and challenger in self.left:
            # It was measured to be slower before: one of the two measurements misled, and circles help nobody.
            verdict = UNDECIDED
        self.note(other, verdict, round=round_, against=held, required=required)
        if verdict == ACCEPTED:
            self.left.add(held)
            self.incumbent = other
        return verdict == ACCEPTED

    def settle(self, winner: Estimate, round_: int) -> None:
        """Take the winner of many if it stands up to the configuration one would have taken anyway."""
        if self.incumbent is None:
            self.incumbent, self.reason = winner, "the fastest measured"
        elif winner.configuration == self.incumbent.configuration:
            self.incumbent, self.reason = winner, "the fastest measured is the one it began with"
        elif self.contest(winner.configuration, round_):
            self.reason = "the fastest measured, and faster than the first when measured beside it again"
        else:
            words = self.space.words(winner.configuration)
            undecided = self.trials[-1].verdict == UNDECIDED
            why = "the noise does not allow to say that it is faster" if undecided else "it is not faster"
            self.reason = f"the fastest measured was {words}; measured again beside the first, {why}"

    def run(self, steps: Callable[[], None], **more: Any) -> Search:
        """Take the steps; Ctrl-C ends them early, with the incumbent of that moment."""
        complete = False
        try:
            steps()
            complete = True
        except KeyboardInterrupt:
            self.reason = "interrupted: what was held at that moment"
        if self.incumbent is None:
            raise KeyboardInterrupt  # nothing to fall back on
        return Search(
            self.method, self.space, tuple(self.trials), self.start, self.incumbent.configuration, self.incumbent.value,
            self.meter.evaluations, self.meter.configurations, self.threshold, reason=self.reason,
            statistic=self.meter.statistic, complete=complete, subject=self.subject, **more,
        )  # fmt: skip

    def best_of(self, candidates: Sequence[Configuration]) -> None:
        """Measure all candidates in turns, and settle for the fastest."""
        estimates = self.meter.together(candidates)
        for estimate in estimates:
            self.note(estimate, MEASURED)
        winner = min(estimates, key=lambda estimate: estimate.value)
        if math.isinf(winner.value):
            held = self.incumbent.configuration if self.incumbent else candidates[0]
            self.incumbent = Estimate(held, math.inf)
            self.reason = "no configuration can run without spilling or at all; the first is kept"
            return
        self.settle(winner, 1)


def _checked_threshold(threshold: float, least: float) -> float:
    if not isinstance(threshold, (int, float)) or not least <= threshold < 1:
        raise OptionError(f"the threshold must lie between {least:g} and 1, not at {threshold!r}", remedy="1e-3")
    return float(threshold)


def _checked_candidates(
    candidates: Iterable[Configuration], space: ConfigurationSpace | None
) -> tuple[list[Configuration], ConfigurationSpace]:
    """The candidates, each once, and the space they lie in. OptionError where there are none or one does not."""
    given = list(candidates)
    if not given:
        raise OptionError("no candidates: give at least one configuration")
    if not all(isinstance(one, (tuple, list)) and len(one) == len(given[0]) for one in given):
        raise OptionError(
            "a candidate is a tuple with one value for each parameter, as many in each of them",
            remedy="[(512, 4), (1024, 8)]",
        )
    space = space or spanning(given, tuple(f"p{k + 1}" for k in range(len(given[0]))))
    return list(dict.fromkeys(space.require(one) for one in given)), space


def select(
    candidates: Iterable[Configuration],
    cost: Any,
    *,
    space: ConfigurationSpace | None = None,
    threshold: float = 0.0,
    subject: str = "",
) -> Search:
    """The fastest of a few candidates (Algorithm 9.1, lines 2 to 6).

    A single candidate is taken unmeasured. Candidates of infinite cost are out (line 4); if all are, the first is
    kept. Where costs are measured, the fastest replaces the first only if that can be said in spite of the noise. A
    function is asked once for each candidate; a meter takes its readings of all of them, and of two of them again.
    OptionError without candidates, or for one outside ``space`` (default: the smallest that holds them).
    """
    given, space = _checked_candidates(candidates, space)
    course = _Course("candidates", space, cost, _checked_threshold(threshold, 0.0), subject)
    course.begin(given[0])
    course.reason = "the only candidate"
    promise = f"the fastest of {len(given)} candidates; nothing is said about the others of the space"
    return course.run(lambda: course.best_of(given) if len(given) > 1 else None, guarantee=promise)


def exhaustive(
    space: ConfigurationSpace, cost: Any, *, start: Configuration | None = None, subject: str = ""
) -> Search:
    """Every configuration of a small space: the control that the others are held against. ``space.size`` evaluations.

    OptionError for a space of more than 4096 configurations.
    """
    if space.size > LARGEST_EXHAUSTIVE:
        raise OptionError(
            f"{space.size} configurations are too many to try them all (at most {LARGEST_EXHAUSTIVE})",
            remedy="random_search or coordinate_descent",
        )
    course = _Course("exhaustive", space, cost, 0.0, subject)
    if start is not None:
        course.begin(space.require(start))
    promise = "the fastest of all configurations"
    return course.run(lambda: course.best_of(list(space)), guarantee=promise, bound=space.size)


# --- Algorithm 9.2 ----------------------------------------------------------------------------------------------------


def coordinate_descent(
    space: ConfigurationSpace,
    start: Configuration,
    cost: Any,
    *,
    threshold: float = THRESHOLD,
    fastest: float = 0.0,
    subject: str = "",
) -> Search:
    """Algorithm 9.2: parameter by parameter, the value times 2 and divided by 2; whatever is faster by more than the
    threshold is accepted at once; until a whole round accepts nothing.

    The two neighbours along a parameter are those of the configuration that the parameter's turn begins with. At the
    end of a deterministic cost no neighbour is faster by more than the threshold, and the acceptances are at most
    ``bound`` (Proposition 9.2; ``fastest`` is a lower bound of all costs, in seconds). With measured costs the
    threshold is raised to what the noise demands, and a configuration once left is not taken again.

    OptionError for a start outside the space or a threshold that does not lie in (0, 1). Evaluations of a function: at
    most one for each configuration.
    """
    course = _Course("descent", space, cost, _checked_threshold(threshold, 0.0), subject)
    if not threshold:
        raise OptionError("the threshold of coordinate descent must be above 0 (Algorithm 9.2)", remedy="1e-3")
    course.begin(space.require(start))

    def steps() -> None:
        (course.incumbent,) = course.meter.together([course.start])
        course.note(course.incumbent, MEASURED)
        improved, round_ = True, 0
        while improved:
            improved, round_ = False, round_ + 1
            for position in range(len(space.parameters)):
                challengers = list(space.along(course.incumbent.configuration, position))
                course.announce((course.incumbent.configuration, *challengers))
                for challenger in challengers:
                    improved = course.contest(challenger, round_) or improved
        course.reason = f"no neighbour is faster by more than the threshold, as round {round_} found"

    found = course.run(steps, guarantee="no neighbour is faster by more than the threshold (Proposition 9.2)")
    begun = found.trials[0].cost if found.trials else math.inf
    return replace(found, bound=acceptance_bound(space.size, begun, fastest, threshold))


# --- Proposition 9.3 --------------------------------------------------------------------------------------------------


def random_search(
    space: ConfigurationSpace,
    cost: Any,
    *,
    samples: int | None = None,
    quantile: float = 0.05,
    failure: float = 0.05,
    seed: int = 0,
    start: Configuration | None = None,
    subject: str = "",
) -> Search:
    """The fastest of ``samples`` configurations drawn with replacement, each as likely (Proposition 9.3; Bergstra and
    Bengio, 2012, "Random search for hyper-parameter optimization").

    By default as many are drawn as the quantile guarantee takes. ``start``, where given, is measured too and kept
    unless the winner is faster beyond the noise: that can only help. A configuration drawn twice is measured once.
    OptionError for shares outside (0, 1) or less than one sample.
    """
    count = samples_needed(quantile, failure) if samples is None else samples
    check_shares(quantile, failure)
    if not isinstance(count, int) or count < 1:
        raise OptionError(f"at least one sample is needed, not {count!r}", remedy="samples=60")
    course = _Course("random", space, cost, 0.0, subject)
    if start is not None:
        course.begin(space.require(start))
    generator = random.Random(seed)
    drawn = [space.draw(generator) for _ in range(count)]
    tried = list(dict.fromkeys([*([course.start] if course.start is not None else []), *drawn]))
    reached = 1 - (1 - quantile) ** count
    promise = (
        f"one of the fastest {quantile:.3g} of the space with probability {reached:.4g} or more, for any shape of the "
        f"cost ({count} draws, {len(set(drawn))} different)"
    )
    return course.run(lambda: course.best_of(tried), guarantee=promise, bound=count, seed=seed)


# --- Successive halving -----------------------------------------------------------------------------------------------


def successive_halving(
    candidates: Iterable[Configuration],
    cost: Any,
    *,
    space: ConfigurationSpace | None = None,
    budget: int | None = None,
    reduction: int = 2,
    subject: str = "",
) -> Search:
    """Measure all a little, drop the slower half, measure the others more, until one is left (Exercise 52).

    The readings of a configuration accumulate over the rounds. The first candidate is the one to stay with: the last
    survivor is measured beside it again, unless it is the same. ``bound`` is the total of the plan, without that.
    OptionError as :func:`select` and :func:`halving_plan` raise it.
    """
    given, space = _checked_candidates(candidates, space)
    plan = halving_plan(len(given), budget, reduction)
    course = _Course("halving", space, cost, 0.0, subject)
    course.begin(given[0])
    course.reason = "the only candidate"

    def steps() -> None:
        left, known = given, {candidate: Estimate(candidate, math.inf) for candidate in given}
        for number, stage in enumerate(plan, 1):
            for estimate in course.meter.together(left, stage.readings):
                known[estimate.configuration] = _joined(known[estimate.configuration], estimate, course.meter)
            ranked = sorted(left, key=lambda candidate: known[candidate].value)
            going = ranked[: -(-len(left) // reduction)]
            for candidate in left:
                verdict = KEPT if candidate in going else DROPPED
                course.note(known[candidate], verdict, round=number, readings=stage.readings)
            left = going
        if plan and all(math.isinf(estimate.value) for estimate in known.values()):
            course.incumbent = Estimate(given[0], math.inf)
            course.reason = "no configuration can run without spilling or at all; the first is kept"
        elif plan:
            course.settle(known[left[0]], len(plan) + 1)

    total = sum(stage.total for stage in plan)
    shown = ", ".join(f"{stage.configurations} x {stage.readings}" for stage in plan)
    promise = f"configurations x readings by round: {shown or 'none'}; {total} readings in all"
    found = course.run(steps, guarantee=promise, bound=total)
    return replace(found, statistic="the median of its readings so far") if course.meter.noisy else found


def _joined(before: Estimate, now: Estimate, meter: Any) -> Estimate:
    """One estimate from the readings of all rounds so far."""
    if not before.readings or not now.readings:
        return now
    return Estimate.of(now.configuration, (*before.readings, *now.readings), getattr(meter, "noise", None))


__all__ = [
    "ACCEPTED", "DROPPED", "KEPT", "MEASURED", "REJECTED", "UNDECIDED", "HalvingRound", "Search", "Trial",
    "acceptance_bound", "coordinate_descent", "exhaustive", "fewest_samples", "halving_plan", "random_search",
    "samples_needed", "select", "successive_halving",
]  # fmt: skip
