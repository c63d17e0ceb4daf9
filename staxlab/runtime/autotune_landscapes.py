"""Made-up costs over launch configurations, realistic enough to search in without a GPU (Section 9.6).

:class:`RegisterCliff` is a model of a pointwise kernel on one multiprocessor, made of what Section 9.1 names: a fixed
cost per instance and its lanes past the end, a bandwidth that is reached only if enough bytes are in flight (Little's
law), a register file that limits how many warps are resident, and the *cliff*: where a thread needs more registers
than there are, values are spilled, which a real compiler reports and Algorithm 9.1 rules out. Its numbers are nobody's
measurements; they are chosen so that the landscape has what makes the search hard, an abrupt edge and two basins.

:class:`Noisy` adds the noise of Section 9.6 to any cost, within a bound and reproducibly; :func:`side_by_side` lets all
searches loose on one landscape.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ..codegen.configurations import Configuration, ConfigurationSpace, spanning
from ..errors import OptionError
from .autotune import Search, coordinate_descent, exhaustive, random_search, select, successive_halving
from .autotune_noise import Interleaved


@dataclass(frozen=True)
class RegisterCliff:
    """Seconds of a made-up kernel over ``(XBLOCK, num_warps)``; infinite where a thread needs more than 255 registers.

    ``elements`` are moved, ``registers_per_element`` and ``registers_fixed`` say how many 32-bit registers a thread
    takes, ``spill`` is the number beyond which values go to memory: between it and 255 the kernel runs, ``penalty``
    times slower. Call it with a configuration, a tuple. O(1).

    >>> cliff = RegisterCliff()
    >>> cliff((512, 4)) < cliff((64, 4)), cliff((65536, 1))
    (True, inf)
    """

    elements: int = 1 << 24
    multiprocessors: int = 132
    bandwidth: float = 3.35e12  # bytes per second
    latency: float = 600e-9  # seconds from a load to its data
    bytes_per_element: int = 12
    registers_fixed: int = 20
    registers_per_element: int = 3
    registers_per_multiprocessor: int = 65536
    spill: int = 168
    penalty: float = 2.6
    instance: float = 0.6e-6  # seconds to start an instance, on one multiprocessor
    overlap: float = 0.12  # share of the time saved where a thread has 32 elements: its loads overlap

    @property
    def space(self) -> ConfigurationSpace:
        """XBLOCK from 32 to 65536, 1 to 32 warps: 72 configurations."""
        return ConfigurationSpace.of(XBLOCK=[1 << k for k in range(5, 17)], num_warps=[1 << k for k in range(6)])

    def registers(self, configuration: Configuration) -> int:
        """32-bit registers a thread would need."""
        block, warps = configuration
        return self.registers_fixed + self.registers_per_element * -(-block // (32 * warps))

    def __call__(self, configuration: Configuration) -> float:
        block, warps = configuration
        registers = self.registers(configuration)
        if registers > 255:
            return math.inf
        instances = -(-self.elements // block)
        held = 32 * warps * registers
        resident = max(1, min(self.registers_per_multiprocessor // held, 2048 // (32 * warps), 32))
        lanes = max(block, 32 * warps)  # threads without an element of their own still take a place
        in_flight = resident * block * self.bytes_per_element
        wanted = self.latency * self.bandwidth / self.multiprocessors
        share = min(1.0, in_flight / wanted)
        moved = self.elements * self.bytes_per_element * lanes / block
        transfer = moved / (self.bandwidth * share)
        starts = instances * self.instance / (self.multiprocessors * resident)
        per_thread = block / (32 * warps)
        left = 1 - self.overlap * min(1.0, math.log2(max(per_thread, 1)) / 5)
        return (transfer + starts) * left * (self.penalty if registers > self.spill else 1.0)


@dataclass(frozen=True)
class Table:
    """A cost given as a table, for a landscape made by hand: configurations to seconds; what is missing costs
    infinity."""

    values: dict[Configuration, float]

    @property
    def space(self) -> ConfigurationSpace:
        """The smallest space that holds them. OptionError for an empty table."""
        given = list(self.values)
        return spanning(given, tuple(f"p{k + 1}" for k in range(len(given[0]) if given else 0)))

    def __call__(self, configuration: Configuration) -> float:
        return self.values.get(configuration, math.inf)


@dataclass
class Noisy:
    """A cost with the noise of Section 9.6: ``t * (1 + eta)``, ``eta`` uniform in ``[-noise, noise]`` and new at every
    call; reproducible by its seed."""

    cost: Callable[[Configuration], float]
    noise: float
    seed: int = 0
    generator: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.noise < 1:
            raise OptionError(f"the noise is a share from 0 to below 1, not {self.noise}", remedy="noise=0.01")
        self.generator = random.Random(self.seed)

    def __call__(self, configuration: Configuration) -> float:
        return self.cost(configuration) * (1 + self.noise * self.generator.uniform(-1, 1))


@dataclass(frozen=True, repr=False)
class SideBySide:
    """Several searches over one landscape: ``costs`` is the landscape where it is known (seconds), ``searches`` by
    method, ``best`` the smallest cost of all."""

    space: ConfigurationSpace
    costs: dict[Configuration, float]
    searches: tuple[Search, ...]

    @property
    def best(self) -> float:
        return min(self.costs.values(), default=math.nan)

    def __getitem__(self, method: str) -> Search:
        for search in self.searches:
            if search.method == method:
                return search
        raise KeyError(f"no search {method!r}; there are {', '.join(s.method for s in self.searches)}")

    def rank(self, configuration: Configuration) -> int:
        """How many configurations are faster than this one, plus 1. O(size)."""
        own = self.costs[configuration]
        return 1 + sum(cost < own for cost in self.costs.values())

    def format(self) -> str:
        return str(self)

    def __str__(self) -> str:
        from ..view.searches import text

        return text(self)

    __repr__ = __str__

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def side_by_side(
    cost: Callable[[Configuration], float],
    space: ConfigurationSpace | None = None,
    *,
    start: Configuration | None = None,
    candidates: Iterable[Configuration] = (),
    noise: float = 0.0,
    readings: int = 9,
    quantile: float = 0.05,
    failure: float = 0.05,
    seed: int = 0,
) -> SideBySide:
    """What if it were searched otherwise? All searches on one landscape, and the exhaustive one as the control.

    ``cost`` maps a configuration to seconds; ``space`` defaults to ``cost.space``. ``start`` (default: the first
    configuration of finite cost) is where the descent begins, the first candidate, and what random search falls back
    on; ``candidates`` default to it and its neighbours. Halving gets the start and as many drawn configurations as make
    sixteen. With ``noise`` the searches see readings (:class:`Noisy`), the map behind them stays exact.
    OptionError for a space of more than 4096 configurations.
    """
    space = space or getattr(cost, "space", None)
    if space is None:
        raise OptionError("no space to search in", remedy="side_by_side(cost, ConfigurationSpace.of(a=(1, 2, 4)))")
    control = exhaustive(space, cost)
    costs = control.costs
    begin = start if start is not None else next((c for c in space if math.isfinite(costs[c])), next(iter(space)))
    begin = space.require(begin)

    def seen(number: int) -> Any:
        return Interleaved(Noisy(cost, noise, seed + number), readings) if noise else cost

    chosen = [begin, *(c for c in (candidates or space.neighbours(begin)) if c != begin)]
    generator = random.Random(seed)
    arms = list(dict.fromkeys([begin, *(space.draw(generator) for _ in range(15))]))
    return SideBySide(
        space,
        costs,
        (
            select(chosen, seen(1), space=space),
            coordinate_descent(space, begin, seen(2), fastest=control.cost),
            random_search(space, seen(3), quantile=quantile, failure=failure, seed=seed, start=begin),
            successive_halving(arms, seen(4), space=space),
            control,
        ),
    )
