"""Uses of a compiled function, observed under eager execution and compiled: what a caller can tell must be the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import staxlab

Compiler = Callable[..., Callable]


def tensor(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, grad: bool = True) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_(grad)


def attempt(action: Callable[[], Any]) -> Any:
    """What an action returns, or the name of the exception it raises."""
    try:
        return action()
    except Exception as error:
        return type(error).__name__


class Scenarios(dict):
    """The scenarios of a test module: functions that are given a compiler and return what they saw."""

    def __call__(self, scenario: Callable[[Compiler], Any]) -> Callable:
        self[scenario.__name__] = scenario
        return scenario

    def cases(self, every: int = 6) -> list:
        """Each scenario under both backends. Generating kernels takes longer: of those, most are slow tests."""
        slow = pytest.mark.slow
        generated = [
            pytest.param(name, "stax", marks=[slow] if place % every else [], id=f"{name}-stax")
            for place, name in enumerate(self)
        ]
        return [*(pytest.param(name, "aot_eager", id=f"{name}-aot_eager") for name in self), *generated]

    def check(self, name: str, backend: str, tolerance: float = 3e-5) -> None:
        """Run a scenario in eager execution and compiled, and compare everything it returns."""

        def compiled(function: Callable, **settings: Any) -> Callable:
            return staxlab.compile(function, backend=backend, **settings)

        if "autocast" in name:
            tolerance = 3e-2  # eager execution rounds to bfloat16 after every operator, a generated kernel at its end
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = self._observed(name, compiled)
            expected = self._observed(name, lambda function, **_: function)
        agree(found, expected, tolerance, name)

    def _observed(self, name: str, compiler: Compiler) -> Any:
        torch.manual_seed(0)
        return _snapshot(self[name](compiler))


def _snapshot(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach() if value.is_sparse else value.detach().clone()
    if isinstance(value, dict):
        return {key: _snapshot(part) for key, part in value.items()}
    return [*map(_snapshot, value)] if isinstance(value, (list, tuple)) else value


def agree(found: Any, expected: Any, tolerance: float, where: str) -> None:
    if isinstance(expected, torch.Tensor):
        assert isinstance(found, torch.Tensor), f"{where}: {found!r} in the place of a tensor"
        bound = 4e-2 if expected.dtype in (torch.bfloat16, torch.float16) else tolerance
        torch.testing.assert_close(
            found, expected, rtol=bound, atol=bound, equal_nan=True, msg=lambda text: f"{where}: {text}"
        )
    elif isinstance(expected, (list, dict)):
        assert isinstance(found, type(expected)) and len(found) == len(expected), f"{where}: {found!r}"
        keys = expected if isinstance(expected, dict) else range(len(expected))
        for key in keys:
            agree(found[key], expected[key], tolerance, f"{where}[{key!r}]")
    else:
        assert found == expected, f"{where}: {found!r} where eager execution has {expected!r}"
