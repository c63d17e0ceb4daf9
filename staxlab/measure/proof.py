"""Proofs about float32: an identity as a formula in the theory of floating-point numbers, decided by Z3 (Section 4.2).

Trying numbers can refute an identity and, for 16-bit formats, settle it. For the four billion float32 numbers, let
alone pairs of them, there are solvers: IEEE 754 is a theory of SMT-LIB (Brain, Tinelli, Ruemmer and Wahl, "An
automatable formal semantics for IEEE-754 floating-point arithmetic", 2015), in which equality of terms is what is
meant here: NaN equals NaN, and ``+0`` does not equal ``-0``. Z3 (de Moura and Bjorner, "Z3: an efficient SMT solver",
2008) is asked for arguments at which the sides differ; that there are none is a proof.

What can be said there is addition, subtraction, multiplication, division, square root, sign, absolute value, ``where``
and comparisons, rounded to nearest, even. Anything else is "not expressible". Needs the extra ``proof``.
"""

from __future__ import annotations

import importlib.util
import math
import struct
from dataclasses import dataclass
from typing import Any

from ..errors import MissingDependencyError
from ..transform.operations import is_number
from ..transform.patterns import Apply, Rule, Var
from .identities import Identity

SECONDS = 5.0


@dataclass(frozen=True)
class Proof:
    """What Z3 said of a law.

    ``outcome`` is "proved", "refuted", "undecided" (time ran out) or "not expressible"; ``arguments`` refute.
    """

    law: str
    outcome: str
    arguments: tuple[tuple[str, float], ...] = ()

    @property
    def text(self) -> str:
        at = ", ".join(f"{name} = {value:.9g}" for name, value in self.arguments)
        return self.outcome + (f": {at}" if at else "")

    def __str__(self) -> str:
        return self.text


class _NotExpressible(Exception):
    pass


def prove(identity: Identity | Rule, seconds: float = SECONDS) -> Proof:
    """Ask Z3 whether ``left`` and ``right`` are the same float32 number for all float32 arguments.

    MissingDependencyError without Z3. Takes up to ``seconds``; products of two variables are the hard ones.
    """
    try:
        import z3
    except ImportError as error:
        raise MissingDependencyError("proving identities needs Z3", remedy='pip install "staxlab[proof]"') from error
    identity = Identity.of(identity)
    variables = {name: z3.FP(name, z3.Float32()) for name in identity.variables}
    try:
        left, right = (_term(z3, side, variables) for side in (identity.left, identity.right))
        if is_number(right):
            right = z3.BoolVal(right) if z3.is_bool(left) else _as_float(z3, right)
    except _NotExpressible:
        return Proof(identity.law, "not expressible")
    solver = z3.Solver()
    solver.set("timeout", int(1000 * seconds))
    solver.add(left != right)
    answer = solver.check()
    if answer == z3.unsat:
        return Proof(identity.law, "proved")
    if answer != z3.sat:
        return Proof(identity.law, "undecided")
    model = solver.model()
    found = ((name, _number(z3, model.eval(term, model_completion=True))) for name, term in variables.items())
    return Proof(identity.law, "refuted", tuple(found))


def is_installed() -> bool:
    return importlib.util.find_spec("z3") is not None


def _as_float(z3: Any, value: Any) -> Any:
    if isinstance(value, bool):
        raise _NotExpressible
    return z3.FPVal(float(value), z3.Float32())


def _number(z3: Any, term: Any) -> float:
    if z3.is_true(z3.simplify(z3.fpIsNaN(term))):
        return math.nan
    bits = z3.simplify(z3.fpToIEEEBV(term)).as_long()
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def _term(z3: Any, part: Any, variables: dict[str, Any]) -> Any:
    """An expression as a Z3 term, a Python number where it holds numbers only."""
    if isinstance(part, Var):
        return variables[part.name]
    if not isinstance(part, Apply):
        if is_number(part):
            return part
        raise _NotExpressible
    if part.kwargs:
        raise _NotExpressible
    terms = [_term(z3, argument, variables) for argument in part.args]
    numbers_only = all(map(is_number, terms))
    nearest = z3.RNE()
    arithmetic = {"add": z3.fpAdd, "sub": z3.fpSub, "mul": z3.fpMul, "div": z3.fpDiv, "subtract": z3.fpSub,
                  "multiply": z3.fpMul, "true_divide": z3.fpDiv}  # fmt: skip
    plain = {"neg": z3.fpNeg, "abs": z3.fpAbs, "gt": z3.fpGT, "lt": z3.fpLT, "ge": z3.fpGEQ, "eq": z3.fpEQ,
             "ne": z3.fpNEQ, "isnan": z3.fpIsNaN, "where": z3.If, "logical_not": z3.Not}  # fmt: skip
    name = part.operation
    if numbers_only and name == "div":
        return terms[0] / terms[1]  # Python's, in double precision, as in PyTorch
    terms = [_as_float(z3, term) if is_number(term) else term for term in terms]
    if name in arithmetic:
        return arithmetic[name](nearest, *terms)
    if name == "sqrt":
        return z3.fpSqrt(nearest, *terms)
    if name in plain:
        return plain[name](*terms)
    raise _NotExpressible
