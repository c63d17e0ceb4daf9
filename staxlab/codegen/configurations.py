"""The configuration space of a kernel (Definition 9.2): a finite set of values for each tunable parameter.

A launch configuration is one value for each: the block sizes, the number of warps, the number of pipeline stages. The
space is their product, so it grows exponentially with the number of parameters, and a configuration has at most two
neighbours along each: twice the value and half of it, where the set has them (Section 9.6). Whether a configuration
can be compiled at all is not the space's business: it costs infinity if it cannot.

>>> space = ConfigurationSpace.of(XBLOCK=(256, 512, 1024), num_warps=(2, 4))
>>> space.size, (512, 4) in space, (2048, 4) in space
(6, True, False)
>>> list(space.neighbours((512, 4)))
[(1024, 4), (256, 4), (512, 2)]
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import OptionError

Configuration = tuple[int, ...]  # one value for each parameter of the space, in its order

EXAMPLE = "ConfigurationSpace.of(XBLOCK=(256, 512), num_warps=(2, 4))"


@dataclass(frozen=True)
class Parameter:
    """A tunable parameter: its name and the values it may take, increasing whole numbers of 1 or more."""

    name: str
    values: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} in {{{', '.join(map(str, self.values))}}}"


@dataclass(frozen=True)
class ConfigurationSpace:
    """The product of the parameters' sets (Definition 9.2). Configurations are tuples of values, in this order.

    OptionError for a space without parameters, a parameter without values, or a value that is no whole number of 1 or
    more.
    """

    parameters: tuple[Parameter, ...]

    def __post_init__(self) -> None:
        if not self.parameters:
            raise OptionError("a configuration space needs at least one parameter", remedy=EXAMPLE)
        for parameter in self.parameters:
            whole = all(isinstance(v, int) and not isinstance(v, bool) and v >= 1 for v in parameter.values)
            if not parameter.values or not whole:
                raise OptionError(
                    f"the values of {parameter.name} must be whole numbers of 1 or more, at least one of them; got "
                    f"{parameter.values!r}",
                    remedy=EXAMPLE,
                )
        if len({parameter.name for parameter in self.parameters}) < len(self.parameters):
            raise OptionError("two parameters of a configuration space have the same name", remedy=EXAMPLE)

    @staticmethod
    def of(values: Mapping[str, Iterable[int]] | None = None, /, **named: Iterable[int]) -> ConfigurationSpace:
        """The space of these sets, by name. Values are sorted, repeated ones dropped. Raises OptionError as above."""
        sets = {**(values or {}), **named}
        try:
            ordered = {name: tuple(sorted(set(given))) for name, given in sets.items()}
        except TypeError:
            raise OptionError("a parameter's values must be a set of whole numbers", remedy=EXAMPLE) from None
        return ConfigurationSpace(tuple(Parameter(name, given) for name, given in ordered.items()))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)

    @property
    def size(self) -> int:
        """The number of configurations, |Pi|."""
        return math.prod(len(parameter.values) for parameter in self.parameters)

    def __len__(self) -> int:
        return self.size

    def __contains__(self, configuration: Any) -> bool:
        if not isinstance(configuration, tuple) or len(configuration) != len(self.parameters):
            return False
        return all(value in p.values for value, p in zip(configuration, self.parameters, strict=True))

    def __iter__(self) -> Iterator[Configuration]:
        """Every configuration, the last parameter running fastest."""
        return itertools.product(*(parameter.values for parameter in self.parameters))

    def along(self, configuration: Configuration, position: int) -> Iterator[Configuration]:
        """The neighbours along one parameter that are in the space: the value times 2, then divided by 2."""
        value = configuration[position]
        for other in (2 * value, value // 2 if value % 2 == 0 else 0):
            neighbour = (*configuration[:position], other, *configuration[position + 1 :])
            if neighbour in self:
                yield neighbour

    def neighbours(self, configuration: Configuration) -> Iterator[Configuration]:
        """Every neighbour in the space, parameter by parameter."""
        for position in range(len(self.parameters)):
            yield from self.along(configuration, position)

    def draw(self, generator: random.Random) -> Configuration:
        """One configuration, every one of them as likely."""
        return tuple(generator.choice(parameter.values) for parameter in self.parameters)

    def require(self, configuration: Any) -> Configuration:
        """The configuration, if it is one of the space. OptionError otherwise, naming what is wrong."""
        made = tuple(configuration) if isinstance(configuration, (list, tuple)) else configuration
        if made not in self:
            raise OptionError(f"{made!r} is not in the configuration space: {self}")
        return made

    def words(self, configuration: Configuration) -> str:
        """A configuration as text: ``XBLOCK=512, num_warps=4``."""
        return ", ".join(f"{name}={value}" for name, value in zip(self.names, configuration, strict=True))

    def __str__(self) -> str:
        return " x ".join(map(str, self.parameters)) + f" ({self.size} configurations)"


def spanning(candidates: Iterable[Configuration], names: tuple[str, ...]) -> ConfigurationSpace:
    """The smallest space that contains these configurations. OptionError if there are none."""
    given = list(candidates)
    if not given:
        raise OptionError("no candidates: give at least one configuration")
    return ConfigurationSpace.of(dict(zip(names, zip(*given, strict=True), strict=True)))
