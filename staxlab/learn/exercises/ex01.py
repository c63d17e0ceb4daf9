"""Exercise 1 (Section 1.1): how many bytes fusion saves in Example 1.1, and why no schedule can save more.

The function is ``(relu(x + w) * k).sum(-1)`` on inputs of n rows and C columns. Part 1 asks for the traffic and the
arithmetic intensity of running it operator by operator and in one fused kernel. Part 2 is a proof, taken apart into
claims that can be run: a schedule that attains the bound of Proposition 1.1 (judged on a machine that counts every
access), its traffic summed step by step (checked by algebra), and for every input element a pair of inputs that shows
it cannot be skipped (searched for counterexamples). Part 3 removes the sum.

All true values come from running the function and pricing its operators with the byte model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

import torch

from ...measure.bytes import TrafficModel
from .. import truth
from ..answers import Choice, FormulaIn, Function, Malformed, Prose, Quantity, Steps
from ..claims import integers
from ..exercise import Part
from ..feedback import Verdict, nearly
from ..formula import Value
from ..judges import Judge, Slip, derivation, one_of, read_by_a_person, same_quantity
from ..machine import Tensors, elements_of
from ..rubrics import Criterion, Rubric
from ..schedules import Instance, attains_bound, no_element_can_be_skipped
from ..variants import BaseVariant
from .ex01_answers import HARMLESS, reference, wrong_answers

__all__ = [
    "DIFFICULTY",
    "HARMLESS",
    "PARTS",
    "SECTION",
    "TITLE",
    "Variant",
    "check",
    "reference",
    "statement",
    "wrong_answers",
]

SECTION = 1
TITLE = "What fusion saves"
DIFFICULTY = 1

REGISTERS = 8

statement = r"""
Two inputs $x$ and $w$ have $n$ rows and $C$ columns; an element takes $b$ bytes. Consider

```python
def f(x, w):
    return (torch.relu(x + w) * k).sum(-1)
```

*Eager* execution runs add, relu, multiply and sum one after the other: each reads its tensor operands from main memory
and writes its result back. *Fused* execution is one kernel that keeps everything in between on the chip. Caches are
left out of the model: a tensor that is read costs its size, every time an operator reads it.

Count one floating-point operation per element for the addition, the relu and the multiplication, and one per element
that the sum reads. Formulas may use `n` and, for your values, the names `C` and `b`; write `*` for products and `**`
for powers.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """Columns, element type and multiplier. The defaults are those of Example 1.1."""

    columns: int = 128
    dtype: str = "float32"
    multiplier: int | float = 2

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        return cls(
            columns=rng.choice((48, 64, 80, 96, 100, 112, 160, 192, 200, 256, 320, 384)),
            dtype=rng.choice(("float16", "bfloat16", "float32", "float64")),
            multiplier=rng.choice((2, 3, 4, 5, 0.25, 0.5, 1.5)),
        )

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    def constants(self) -> dict[str, Fraction]:
        return {"C": Fraction(self.columns), "b": Fraction(self.torch_dtype.itemsize)}

    def describe(self) -> tuple[tuple[str, str], ...]:
        size = self.torch_dtype.itemsize
        return ("C", f"{self.columns}"), ("dtype", f"{self.dtype} (b = {size})"), ("k", f"{self.multiplier}")


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = """
As functions of $n$: how many bytes does each way of executing move between main memory and the chip, and how many
floating-point operations does it do per byte (Definition 1.1)? Be exact: the sum's output counts.
"""

PART_2 = f"""
Show that the fused kernel moves no more than Proposition 1.1 demands of everyone: in three claims that can be run, and
a proof in words.

1. **A schedule.** Write a function that lists what your kernel does, one instruction after the other, for a chip with
   {REGISTERS} registers: `("read", r, "x", i, j)` and `("write", r, "y", i)` move one element between main memory and
   register `r`; `("set", r, number)`, `("add", r, p, q)`, `("mul", r, p, q)` and `("relu", r, p)` compute, where `p`
   and `q` are registers or numbers. It is run on small inputs, and every access is counted.
2. **Its cost.** Starting from a `Sum` over the rows of what your schedule moves per row, derive the right-hand side of
   Proposition 1.1, $b(x) + b(w) + b(y)$, in steps that are equal to each other.
3. **No element can be skipped.** For any element of $x$ or $w$, give two inputs that differ in that element only and
   have different results. `witness(tensor, i, j)` returns `(x, w, changed)`: all of the first input is the number `x`,
   all of the second is `w`, and in the other run element `[i, j]` of the named tensor is `changed` instead. The result
   must change, whatever the size and the position.
"""

PART_3 = r"""
Now `f` ends before `.sum(-1)`: the result has the shape of the inputs. What is the lower bound now, and which
proportion of the eager traffic does a fused kernel save, $1 - Q_\mathrm{fused}/Q_\mathrm{eager}$, with the sum and
without it?
"""

SCHEDULE_EXAMPLE = """\
def schedule(n, columns, k):   # moves one element and doubles it
    yield ("read", "a", "x", 0, 0)
    yield ("mul", "a", "a", 2)
    yield ("write", "a", "y", 0)"""

WITNESS_EXAMPLE = """\
def witness(tensor, i, j):
    return 0, 0, 0   # x, w, changed"""

PROOF = Rubric(
    (
        Criterion(
            "Traffic of the kernel",
            2,
            "Says that each element of both inputs is read exactly once and each output written exactly once, and that "
            "nothing else is moved because every intermediate is used where it is made.",
            "One direction only (reads or writes), or intermediates passed over in silence.",
            "Argues with running times, or only that fusion 'saves memory'.",
        ),
        Criterion(
            "On-chip storage",
            1,
            "Names the condition: a fixed number of registers, independent of n and C, holds all that is needed "
            "between a read and its last use.",
            none="Assumes unlimited storage without saying so.",
        ),
        Criterion(
            "Conclusion",
            1,
            "Compares the two totals and concludes equality; says where the assumptions of Proposition 1.1 enter "
            "(every input element matters, nothing is on the chip at the start).",
            none="Shows only one of the two inequalities.",
        ),
    ),
    "Why fusion attains the bound",
)

_BYTES, _RATE, _SHARE = '"3*n*C*b + 7"', '"n/(n + 5)"', '"C/(2*C + 5)"'

PARTS = (
    Part(
        "1",
        "Bytes and arithmetic intensity",
        PART_1,
        (
            FormulaIn("eager_bytes", "bytes moved by eager execution", 2, "bytes", _BYTES),
            FormulaIn("fused_bytes", "bytes moved by the fused kernel", 2, "bytes", _BYTES),
            FormulaIn("eager_intensity", "operations per byte, eager", 1, "operations per byte", _RATE),
            FormulaIn("fused_intensity", "operations per byte, fused", 1, "operations per byte", _RATE),
        ),
        (
            "Make a table: a row per operator, and two columns for elements read and elements written. Which operator "
            "reads two tensors?",
            "An intermediate tensor is in the table twice: where it is written, and where the next operator reads it. "
            "The sum writes one element per row of its input.",
            "Add up the table in elements, then multiply by b. For the intensity, divide the operations (four per "
            "element of x) by these bytes, and not the other way round.",
        ),
    ),
    Part(
        "2",
        "One kernel attains the lower bound",
        PART_2,
        (
            Function(
                "schedule",
                "the fused kernel, instruction by instruction",
                3,
                example=SCHEDULE_EXAMPLE,
                parameters=("n", "columns", "k"),
                returns="or yields instructions",
            ),
            Steps("steps", "from its traffic to the bound", 2, "bytes", '["Sum(3*b, (i, 1, n))", "= 3*b*n"]'),
            Function(
                "witness",
                "two inputs that only this element tells apart",
                2,
                example=WITNESS_EXAMPLE,
                parameters=("tensor", "i", "j"),
                returns="three numbers",
            ),
            Prose("proof", "why the fused kernel attains the bound, in your own words", PROOF.points, rubric=PROOF),
        ),
        (
            "Work on one row at a time, and in it on one column at a time. What must survive from one column to the "
            "next? Only that needs a register of its own.",
            "Per column: read one element of each input, add, relu, multiply, add to the running sum. When is the "
            "running sum set to zero, and when is it written?",
            "Per row the schedule moves C elements of each input and one output: the inner part of the Sum is "
            "b*(2*C + 1), or a Sum of its own over the columns. For the witness: what does relu do to a change that "
            "happens below zero?",
        ),
    ),
    Part(
        "3",
        "Without the sum",
        PART_3,
        (
            FormulaIn("bound_without_sum", "lower bound without the sum", 1, "bytes", _BYTES),
            FormulaIn("saved_with_sum", "proportion saved with the sum, between 0 and 1", 1, "", _SHARE),
            FormulaIn("saved_without_sum", "proportion saved without the sum, between 0 and 1", 1, "", _SHARE),
            Choice(
                "change",
                "removing the sum makes the proportion saved",
                1,
                example='"larger"',
                options=("larger", "smaller", "no different"),
            ),
        ),
        (
            "The output is no longer one element per row. Which line of your table disappears, and which one now "
            "writes the output?",
            "Fusion removes the round trips of the intermediate tensors. How many of them are there now, and what is "
            "their share of the whole?",
        ),
    ),
)


# --- The truth --------------------------------------------------------------------------------------------------------


def example(multiplier: int | float, with_sum: bool = True) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The function of the exercise."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x + w) * multiplier
        return y.sum(-1) if with_sum else y

    return f


@lru_cache(maxsize=4096)
def model(variant: Variant, n: int, with_sum: bool = True) -> TrafficModel:
    """The byte model of the function on ``n`` rows, from one eager run and one schedule."""
    x = torch.zeros(n, variant.columns, dtype=variant.torch_dtype)
    return truth.byte_model(example(variant.multiplier, with_sum), x, x.clone())


def eager_bytes(m: TrafficModel) -> Fraction:
    return Fraction(m.eager.nbytes)


def fused_bytes(m: TrafficModel) -> Fraction:
    assert m.compiled is not None and len(m.compiled.rows) == 1, "the compiler no longer fuses this into one kernel"
    return Fraction(m.compiled.nbytes)


def input_bytes(m: TrafficModel) -> Fraction:
    return Fraction(sum(row.nbytes for row in m.bound.of("input")))


def output_bytes(m: TrafficModel) -> Fraction:
    return Fraction(sum(row.nbytes for row in m.bound.of("output")))


def kept(m: TrafficModel) -> Fraction:
    """The proportion of the eager traffic that remains after fusion."""
    return fused_bytes(m) / eager_bytes(m)


# --- Judging ----------------------------------------------------------------------------------------------------------

ROWS = {"n": integers(1, 500)}
FEW_ROWS = {"n": integers(1, 12)}
TRIALS = 24
SIZES = ((1, 1), (1, 2), (2, 1), (2, 3), (3, 4), (5, 9))
HALF = Fraction(1, 2)


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    summed, pointwise = partial(model, variant), partial(model, variant, with_sum=False)
    equals = partial(same_quantity, domain=ROWS, seed=seed, trials=TRIALS, counted="byte model")
    return {
        "eager_bytes": equals(
            lambda n: eager_bytes(summed(n)),
            slips=[
                *_wrong_unit(variant, lambda n: summed(n).eager.elements),
                Slip(
                    "intermediates-counted-once",
                    lambda n: input_bytes(summed(n)) + summed(n).eager.bytes_written,
                    "You counted every intermediate tensor once. It makes the trip twice: its operator writes it and "
                    "the next one reads it.",
                ),
                _output_forgotten(lambda n: eager_bytes(summed(n)) - output_bytes(summed(n))),
                Slip("writes-forgotten", lambda n: Fraction(summed(n).eager.bytes_read), "You counted only the reads."),
                Slip("reads-forgotten", lambda n: Fraction(summed(n).eager.bytes_written), "You counted only writes."),
                Slip("fused-for-eager", lambda n: fused_bytes(summed(n)), "This is what the fused kernel moves."),
            ],
            praise="Right: every intermediate tensor is written once and read once.",
        ),
        "fused_bytes": equals(
            lambda n: fused_bytes(summed(n)),
            slips=[
                *_wrong_unit(variant, lambda n: summed(n).bound.elements),
                _output_forgotten(lambda n: input_bytes(summed(n))),
                Slip(
                    "input-read-twice",
                    lambda n: fused_bytes(summed(n)) + input_bytes(summed(n)) / 2,
                    "This reads one of the inputs twice. A fused kernel uses an element when it has it, and never "
                    "needs it again.",
                ),
                Slip(
                    "output-full-size",
                    lambda n: fused_bytes(pointwise(n)),
                    "You let the kernel write an output of the inputs' shape. The sum leaves one element per row.",
                ),
                Slip("eager-for-fused", lambda n: eager_bytes(summed(n)), "This is what eager execution moves."),
            ],
            praise="Right: the inputs once and the output once.",
        ),
        "eager_intensity": _intensity(equals, summed, eager_bytes, answers.get("eager_bytes")),
        "fused_intensity": _intensity(equals, summed, fused_bytes, answers.get("fused_bytes")),
        "schedule": attains_bound(
            [Instance((n, columns), {"n": n, "columns": columns, "k": variant.multiplier}) for n, columns in SIZES],
            lambda instance, rng: _small_inputs(instance.size, rng),
            lambda inputs, instance: _output(inputs, instance.size, variant.multiplier),
            registers=REGISTERS,
            seed=seed,
        ),
        "steps": _steps(variant, seed, summed),
        "witness": no_element_can_be_skipped(
            example(variant.multiplier), ("x", "w"), variant.torch_dtype, seed=seed, explain=_hidden_by_relu
        ),
        "proof": read_by_a_person(PROOF),
        **_without_sum(variant, equals, summed, pointwise),
    }


def _wrong_unit(variant: Variant, elements: Callable[[int], int]) -> list[Slip]:
    """b left out, or the 4 bytes of float32 taken for another type."""
    message = "You counted elements. The traffic in bytes is b times that."
    slips = [Slip("elements-not-bytes", lambda n: Fraction(elements(n)), message, HALF)]
    if variant.torch_dtype.itemsize != 4:
        message = f"You took 4 bytes per element. Yours are {variant.dtype}."
        slips.append(Slip("wrong-element-size", lambda n: Fraction(4 * elements(n)), message, HALF))
    return slips


def _output_forgotten(answer: Callable[[int], Value]) -> Slip:
    return Slip(
        "output-forgotten", answer, "The large terms are right. The sum's output, n elements, is missing.", HALF
    )


def _intensity(
    equals: Callable[..., Judge],
    summed: Callable[[int], TrafficModel],
    nbytes: Callable[[TrafficModel], Fraction],
    own_bytes: Quantity | None,
) -> Judge:
    """Operations over ``nbytes``; ``own_bytes`` is the student's answer for them, if there is one."""

    def intensity(n: int) -> Fraction:
        return summed(n).eager.operations / nbytes(summed(n))

    def without_output(n: int) -> Fraction:
        return summed(n).eager.operations / (nbytes(summed(n)) - output_bytes(summed(n)))

    def from_own_bytes(n: int) -> Value:
        given = own_bytes.at(n=n) if own_bytes is not None else 0
        if not given:
            raise Malformed("there are no bytes to divide by")
        return summed(n).eager.operations / given

    def per_element(n: int) -> Fraction:
        return intensity(n) * Fraction(summed(n).eager.nbytes, summed(n).eager.elements)

    return equals(
        intensity,
        slips=[
            Slip(
                "intensity-inverted",
                lambda n: 1 / intensity(n),
                "This is bytes per operation. Intensity is operations per byte (Definition 1.1).",
            ),
            Slip("per-element", per_element, "You divided by elements. Intensity is per byte.", HALF),
            Slip(
                "output-forgotten",
                without_output,
                "This is what the intensity tends to for many columns. The sum's output makes it a little smaller.",
                HALF,
            ),
            Slip(
                "follows-from-wrong-bytes",
                from_own_bytes,
                "You divided the operations by the bytes you gave, as you should; but those bytes are not right.",
                HALF,
            ),
        ],
        praise="Right, and n cancels: more rows change nothing.",
    )


def _small_inputs(shape: tuple[int, ...], rng: random.Random) -> Tensors:
    """Two inputs of small whole numbers. Half of the time none of them is negative: relu then cuts nothing off."""
    low = rng.choice((0, -4))
    return {name: {at: Fraction(rng.randint(low, 4)) for at in elements_of(shape)} for name in ("x", "w")}


def _output(inputs: Tensors, shape: tuple[int, ...], multiplier: int | float) -> Tensors:
    """What the function computes, by running it (float64 is exact for these numbers)."""
    x, w = (
        torch.tensor([float(inputs[name][at]) for at in elements_of(shape)], dtype=torch.float64).reshape(shape)
        for name in ("x", "w")
    )
    return {"y": {(i,): Fraction(value) for i, value in enumerate(example(multiplier)(x, w).tolist())}}


def _steps(variant: Variant, seed: int | None, summed: Callable[[int], TrafficModel]) -> Judge:
    follows = derivation(
        lambda n: fused_bytes(summed(n)),
        "b*(n*C) + b*(n*C) + b*n",
        FEW_ROWS,
        constants=variant.constants(),
        seed=seed,
        start_is="the traffic of a fused kernel",
        end_is="b(x) + b(w) + b(y)",
    )

    def judge(steps: Any) -> Verdict:
        verdict = follows(steps)
        if verdict.credit == 1 and "Sum(" not in steps[0].formula.text:
            message = "Every step holds, but the first is not a count: begin with a Sum over the rows of your schedule."
            return nearly(message, mistake="no-count")
        return verdict

    return judge


def _hidden_by_relu(tensor: str, x: float, w: float, changed: float) -> Slip | None:
    """Why a change had no effect, when relu is the reason."""
    if max(x + w, changed + (w if tensor == "x" else x)) > 0:
        return None
    message = "The result does not change: both sums are at or below zero, and relu makes both of them 0."
    return Slip("hidden-by-relu", None, message)


def _without_sum(
    variant: Variant,
    equals: Callable[..., Judge],
    summed: Callable[[int], TrafficModel],
    pointwise: Callable[[int], TrafficModel],
) -> dict[str, Judge]:
    def instead_of_saved(of: Callable[[int], TrafficModel]) -> list[Slip]:
        remains = "This is the proportion that is still moved. What is saved is 1 minus that."
        ratio = "This is how many times less is moved. The proportion saved is 1 - fused/eager."
        return [
            Slip("kept-not-saved", lambda n: kept(of(n)), remains, HALF),
            Slip("ratio-not-saved", lambda n: 1 / kept(of(n)), ratio, HALF),
        ]

    def change(answer: str) -> Verdict:
        lost = kept(pointwise(1)) - kept(summed(1))
        reasons = {
            "larger": "The fused kernel now has to write an output as large as an input, and the eager side loses only "
            "the sum: compare your two proportions.",
            "smaller": "Compare your two proportions.",
            "no different": "The output that must be written has grown, so the two proportions cannot be equal.",
        }
        praise = "Right: two round trips are left to remove instead of three, and the floor has risen."
        truth = "smaller" if lost > 0 else "larger" if lost < 0 else "no different"
        return one_of(truth, reasons, praise=praise)(answer)

    return {
        "bound_without_sum": equals(
            lambda n: Fraction(pointwise(n).bound.nbytes),
            slips=[
                *_wrong_unit(variant, lambda n: pointwise(n).bound.elements),
                Slip(
                    "output-still-summed",
                    lambda n: fused_bytes(summed(n)),
                    "This is the bound with the sum. The output now has n rows of C elements.",
                ),
                Slip("output-forgotten", lambda n: input_bytes(pointwise(n)), "The output must be written as well."),
                Slip("eager-for-bound", lambda n: eager_bytes(pointwise(n)), "This is what eager execution moves now."),
            ],
        ),
        "saved_with_sum": equals(
            lambda n: 1 - kept(summed(n)),
            slips=[
                *instead_of_saved(summed),
                Slip(
                    "output-forgotten",
                    lambda n: 1 - input_bytes(summed(n)) / (eager_bytes(summed(n)) - output_bytes(summed(n))),
                    "This is the limit for many columns: the sum's output, n elements, is missing.",
                    HALF,
                ),
            ],
        ),
        "saved_without_sum": equals(
            lambda n: 1 - kept(pointwise(n)),
            slips=[
                *instead_of_saved(pointwise),
                Slip(
                    "eager-still-sums",
                    lambda n: 1 - fused_bytes(pointwise(n)) / eager_bytes(summed(n)),
                    "The eager side has lost an operator too: without the sum it moves less.",
                ),
                Slip("unchanged", lambda n: 1 - kept(summed(n)), "This is the proportion with the sum."),
            ],
        ),
        "change": change,
    }
