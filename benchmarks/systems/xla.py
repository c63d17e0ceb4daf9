"""JAX and XLA, watched: how often a function is traced, and what becomes of it (Sections 12.2 and 12.4).

A function under ``jax.jit`` is run by Python once for each signature of its arguments. A run that ends without an error
is one graph; counting them needs nothing of JAX's inner workings.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from typing import Any

from benchmarks.systems.programs import Program, function_of, shape_of
from benchmarks.systems.watching import first_line

name, title, library = "xla", "JAX and XLA", "jax"


def missing() -> str | None:
    return None if importlib.util.find_spec("jax") else "jax is not installed"


def make(argument: Any) -> Any:
    import jax.numpy as jnp

    if not isinstance(argument, str):
        return argument
    sign, shape, half = shape_of(argument)
    return jnp.full(shape, float(sign), dtype=jnp.float16 if half else jnp.float32)


def values(result: Any) -> Any:
    return result.tolist()


class Taken:
    def __init__(self, function: Callable[..., Any]):
        import jax

        self.traced = 0

        def counted(*args: Any) -> Any:
            result = function(*args)
            self.traced += 1
            return result

        self.call = jax.jit(counted)

    def graphs(self) -> int:
        return self.traced


def take(program: Program, log: list[str]) -> Taken:
    import jax
    from jax import lax
    from jax import numpy as jnp

    namespace = {"jax": jax, "jnp": jnp, "lax": lax, "log": log}
    return Taken(function_of(program.text("jax"), namespace, f"<{program.name}, jax>"))


def keys(program: Program) -> list[str]:
    """The signature of the first call: one abstract value for each argument."""
    import jax

    said = [jax.typeof(make(argument)) for argument in program.sequences[0][0]]
    return [f"{value}{', weak type' if value.weak_type else ''}" for value in said]


def failures() -> dict[str, dict[str, str]]:
    """An operation that XLA has no rule for: under ``jit``, and with ``jit`` switched off."""
    import jax
    from jax import numpy as jnp
    from jax.extend.core import Primitive

    twice = Primitive("twice")
    twice.def_impl(lambda x: x + x)
    twice.def_abstract_eval(lambda x: jax.core.ShapedArray(x.shape, x.dtype))

    def tried() -> dict[str, str]:
        try:
            result = jax.jit(lambda x: twice.bind(x) + 1)(jnp.ones(4))
        except Exception as error:
            return {"outcome": type(error).__name__, "said": first_line(error)}
        return {"outcome": "right" if result.tolist() == [3.0] * 4 else "wrong value", "said": ""}

    found = {"default": tried()}
    with jax.disable_jit():
        found["disable_jit()"] = tried()
    return found


def structure(rows: int, columns: int) -> dict[str, Any]:
    """The three functions as a jaxpr, as StableHLO, as HLO before and as HLO after XLA's optimisation."""
    import jax
    import torch
    from jax import numpy as jnp

    from benchmarks.systems.timing import compared_cases

    found = {}
    for case in compared_cases():
        function = case.jax(jax, jnp)
        function.__name__ = case.name
        inputs = [jnp.asarray(t.numpy()) for t in case.make_inputs((rows, columns), torch.float32, "cpu")]
        lowered = jax.jit(function).lower(*inputs)
        found[case.name] = {
            "jaxpr": str(jax.make_jaxpr(function)(*inputs)),
            "stablehlo": lowered.as_text(),
            "hlo": plain(lowered.as_text(dialect="hlo")),
            "optimized": plain(lowered.compile().as_text()),
        }
    return found


def plain(text: str) -> str:
    """HLO without what is about files, lines and names of the program that made it."""
    text = re.sub(r", metadata=\{[^}]*\}", "", text)
    text = re.sub(r"^(FileNames|FunctionNames|FileLocations|StackFrames)\n(?:\d.*\n)*\n*", "", text, flags=re.M)
    text = re.sub(r"^(HloModule \S+,).*$", r"\1", text, flags=re.M).replace(",\n", "\n", 1)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
