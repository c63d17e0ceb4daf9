"""The identities that Table 4.1 decides, and which of them each rewrite of Section 4 rests on.

:data:`CANDIDATES` holds what a mathematician might write down: identities that compilers use, identities they must not
use, and the claims of our own rules. :data:`STEPS` says for each rewrite that is not a ``Rule`` which laws it applies;
:data:`WITHOUT_IDENTITY` names the rewrites that replace no value by another formula, with the reason. A test holds
every rewrite the passes make against these tables.
"""

from __future__ import annotations

from ..transform.decompose import EXPANSIONS
from ..transform.normalize import IDENTITIES
from ..transform.operations import COMMUTATIVE
from ..transform.patterns import Expr, Rule, Var, apply
from .identities import Identity

x, y, z = Var("x"), Var("y"), Var("z")


def _f(name: str):
    """The named operation as a function of expressions."""
    return lambda *args: apply(name, *args)


(neg, absolute, relu, sqrt, rsqrt, exp, log, maximum, minimum, where, reciprocal, square) = map(
    _f, "neg abs relu sqrt rsqrt exp log maximum minimum where reciprocal square".split()
)
equal, unequal, less, at_least, log_not = map(_f, "eq ne lt ge logical_not".split())


def _family(name: str, *pairs: tuple[Expr, object]) -> tuple[Identity, ...]:
    return tuple(Identity(left, right, name) for left, right in pairs)


NEUTRAL = _family(
    "neutral elements",
    (x + 0, x),
    (x + 0.0, x),
    (x + -0.0, x),
    (0 + x, x),
    (x - 0, x),
    (0 - x, neg(x)),
    (x * 1, x),
    (1 * x, x),
    (x / 1, x),
    (x**1, x),
    (maximum(x, x), x),
    (where(x > 0, x, x), x),
)
ABSORBING = _family(
    "absorbing elements",
    (x * 0, 0),
    (0 / x, 0),
    (x - x, 0),
    (x / x, 1),
    (x**0, 1),
    (1**x, 1),
    (x * reciprocal(x), 1),
)
SIGNS = _family(
    "signs",
    (neg(neg(x)), x),
    (x * -1, neg(x)),
    (x / -1, neg(x)),
    (x + neg(y), x - y),
    (x - neg(y), x + y),
    (neg(x) + y, y - x),
    (neg(x - y), y - x),
    (neg(x + y), neg(x) - y),
    (neg(x) * y, neg(x * y)),
    (neg(x) * neg(y), x * y),
    (absolute(neg(x)), absolute(x)),
    (absolute(absolute(x)), absolute(x)),
    (absolute(x * y), absolute(x) * absolute(y)),
)
DOUBLING = _family(
    "powers of two and other constants",
    (x * 2, x + x),
    (x + x, x * 2),
    (x / 2, x * 0.5),
    (x / 1024, x * 2.0**-10),
    (x / 3, x * (apply("div", 1, 3))),
    (x / 10, x * (apply("div", 1, 10))),
    (x * 3, x + x + x),
    ((x * 2) * 2, x * 4),
    ((x / 2) / 2, x / 4),
    ((x * 2) / 2, x),
    ((x / 2) * 2, x),
    ((x * 2) * 3, x * 6),
    ((x + 1) + 2, x + 3),
    ((x + 1) - 1, x),
)
POWERS = _family(
    "powers and roots",
    (x**2, x * x),
    (square(x), x * x),
    (x**3, x * x * x),
    (x**-1, 1 / x),
    (x**0.5, sqrt(x)),
    (sqrt(x * x), absolute(x)),
    (sqrt(x) ** 2, x),
    (1 / (1 / x), x),
    (reciprocal(x), 1 / x),
    (rsqrt(x), 1 / sqrt(x)),
    (1 / sqrt(x), rsqrt(x)),
)
FUNCTIONS = _family(
    "functions",
    (relu(relu(x)), relu(x)),
    (relu(x), where(x > 0, x, 0)),
    (relu(x), apply("clamp", x, 0)),
    (relu(x), (x + absolute(x)) / 2),
    (relu(absolute(x)), absolute(x)),
    (relu(x * 2), relu(x) * 2),
    (log(exp(x)), x),
    (exp(log(x)), x),
    (exp(neg(x)), 1 / exp(x)),
    (exp(x) - 1, apply("expm1", x)),
    (log(x + 1), apply("log1p", x)),
    (apply("sigmoid", x), 1 / (exp(neg(x)) + 1)),
    (x * apply("sigmoid", x), apply("silu", x)),
    (apply("tanh", neg(x)), neg(apply("tanh", x))),
)
ORDERS = _family(
    "order and equality",
    (maximum(x, y), maximum(y, x)),
    (minimum(x, y), minimum(y, x)),
    (maximum(x, y), where(x > y, x, y)),
    (neg(maximum(x, y)), minimum(neg(x), neg(y))),
    (equal(x, x), True),
    (unequal(x, x), apply("isnan", x)),
    (x > y, less(y, x)),
    (log_not(less(x, y)), at_least(x, y)),
    (x > y, (x - y) > 0),
)
REGROUPING = _family(
    "regrouping",
    (x + y, y + x),
    (x * y, y * x),
    ((x + y) + z, x + (y + z)),
    ((x * y) * z, x * (y * z)),
    (x * (y + z), x * y + x * z),
    ((x + y) - y, x),
    ((x * y) / y, x),
    (x / y, x * reciprocal(y)),
    ((x / y) / z, x / (y * z)),
    (x * x - y * y, (x - y) * (x + y)),
)
BITS = _family(
    "integers and truth values",
    (x & x, x),
    (x | x, x),
    (x ^ x, 0),
    (x & 0, 0),
    (x | 0, x),
    (apply("bitwise_not", apply("bitwise_not", x)), x),
    (x * 2, apply("bitwise_left_shift", x, 1)),
)

#: A number on the left of a commutative operation, which normalization moves to the right. The numbers are examples.
SWAPS = _family(
    "constants to the right",
    *((apply(name, number, x), apply(name, x, number)) for name in sorted(COMMUTATIVE)
      for number in ((2, 0.1) if name in ("add", "mul") else (3,))),
)  # fmt: skip
#: Two ways of writing one operation: the function and the operator.
SPELLINGS = _family(
    "spelling",
    *((apply("true_divide", x, y), x / y), (apply("subtract", x, y), x - y), (apply("multiply", x, y), x * y)),
)
#: Composite operators written out (Table 4.2), with default parameters; not always exact, see ``EXPANSION_ULPS``.
WRITTEN_OUT = _family(
    "composite operators written out", *((apply(name, x), make()) for name, make in EXPANSIONS.items())
)

#: The most a written-out operator may differ from the operator, in units in the last place of float32 and float64.
EXPANSION_ULPS = 4.0

_all = (*NEUTRAL, *ABSORBING, *SIGNS, *DOUBLING, *POWERS, *FUNCTIONS, *ORDERS, *REGROUPING, *BITS, *SWAPS, *SPELLINGS,
        *(Identity.of(rule) for rule in IDENTITIES), *WRITTEN_OUT)  # fmt: skip
_first: dict[str, Identity] = {}
for _identity in _all:
    _first.setdefault(_identity.law, _identity)
CANDIDATES: tuple[Identity, ...] = tuple(_first.values())

#: What the chapter's own table lists, the first thing to look at.
TABLE_4_1 = tuple(
    f"{left} -> {right}"
    for left, right in (
        (x + 0, x), (x - 0, x), (x * 1, x), (x / 1, x), (neg(neg(x)), x), (x / 2, x * 0.5), (x * 0, 0), (x - x, 0),
        (x / x, 1), ((x + y) + z, x + (y + z)),
    )
)  # fmt: skip

#: Rewrites written as functions: the laws of the table they apply.
STEPS: dict[str, tuple[str, ...]] = {
    "constant to the right": tuple(identity.law for identity in SWAPS),
    "spell as operator": tuple(identity.law for identity in SPELLINGS),
    **{f"expand {name}": (identity.law,) for name, identity in zip(EXPANSIONS, WRITTEN_OUT, strict=True)},
}

#: Rewrites that state no identity between formulas, and why.
WITHOUT_IDENTITY: dict[str, str] = {
    "out of place": "the same operation, on memory that nobody else sees",
    "fold": "the same operation on the same numbers, carried out by Python now instead of later",
    "merge": "the same operation on the same values, once instead of twice",
    "remove": "no value is replaced: it is not used",
    "mark region": "nothing but a note on the nodes",
    "assume aliasing": "nothing but a note on the nodes",
    "recognise attention": "an identity of sums over a row, not of one element: exact over real numbers; rounding has "
    "a bound of its own (tests/transform/test_attention_compiled.py)",
}

#: The one rule that is not exact and is applied all the same: only the sign of a zero can change (Section 4.2).
ACCEPTED = frozenset({f"{x + 0} -> {x}"})


def laws_of(rewrite: Rule | str) -> tuple[str, ...]:
    """The laws a rewrite rests on: of a rule its own, of a named step those of :data:`STEPS`; none for the rewrites
    without an identity. KeyError for one that is registered nowhere."""
    if isinstance(rewrite, Rule):
        law = Identity.of(rewrite).law
        if law not in {identity.law for identity in CANDIDATES}:
            raise KeyError(law)
        return (law,)
    if rewrite in WITHOUT_IDENTITY:
        return ()
    for rule in IDENTITIES:
        if rule.name == rewrite:
            return laws_of(rule)
    return STEPS[rewrite]
