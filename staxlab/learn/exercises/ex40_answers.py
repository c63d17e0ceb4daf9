"""Answers to Exercise 40: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex40 import Variant


def most_stages(B_M, B_N, B_K, b, shared, epilogue, instances):
    stage = (B_M + B_N) * B_K * b
    return (shared // instances - epilogue) // stage


MORE_STAGES = """A stage more lets loads begin earlier, so it helps as long as a step waits for its slices: until
latency + transfer + computation, divided by the number of stages, is no more than the longer of transfer and
computation. After that nothing waits for memory and a stage more hides nothing. It still takes shared memory, so fewer
instances fit on a multiprocessor, and other instances are another way to hide latency. Filling the pipeline at the
beginning takes a step for each stage, which counts when k is small. That is why the number is tried and not taken as
large as possible."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from ...measure.pipeline_stages import stage_bytes
    from ...measure.tensor_cores import least_order

    one = stage_bytes(variant.tile, variant.itemsize)
    return {
        "order_formula": "3*b*P/(2*B)",
        "least_order_40": least_order(variant.itemsize, variant.rate, variant.bandwidth),
        "against_16_bits": "the same",
        "stage_40": one,
        "stages_40": variant.shared // one,
        "most_stages": most_stages,
        "waiting": "max(c, x, (L + x + c)/s)",
        "more_stages": MORE_STAGES,
    }


HARMLESS: dict[str, tuple[str, ...]] = {}


def no_epilogue(B_M, B_N, B_K, b, shared, epilogue, instances):
    return shared // instances // ((B_M + B_N) * B_K * b)


def epilogue_per_stage(B_M, B_N, B_K, b, shared, epilogue, instances):
    return shared // instances // ((B_M + B_N) * B_K * b + epilogue)


def rounded_up(B_M, B_N, B_K, b, shared, epilogue, instances):
    return -(-(shared // instances - epilogue) // ((B_M + B_N) * B_K * b))


def one_slice(B_M, B_N, B_K, b, shared, epilogue, instances):
    return (shared // instances - epilogue) // (B_M * B_K * b)


def not_divided(B_M, B_N, B_K, b, shared, epilogue, instances):
    return (shared - epilogue) // ((B_M + B_N) * B_K * b)


def _a_fraction(B_M, B_N, B_K, b, shared, epilogue, instances):
    return (shared / instances - epilogue) / ((B_M + B_N) * B_K * b)


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex40_runs import order_slips, stage_slips, stages_slips

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    return (
        slip("ridge-for-order", order_formula="P/B"),
        slip("result-forgotten", order_formula="b*P/B"),
        slip("one-operation", order_formula="3*b*P/B"),
        slip("upside-down", order_formula="3*b*B/(2*P)"),
        *(slip(s.name, least_order_40=s.answer) for s in order_slips(variant)),
        slip("chose-twice-as-large", against_16_bits="twice as large"),
        slip("chose-half-as-large", against_16_bits="half as large"),
        *(slip(s.name, stage_40=s.answer) for s in stage_slips(variant)),
        *(slip(s.name, stages_40=s.answer) for s in stages_slips(variant)),
        slip("epilogue-forgotten", most_stages=no_epilogue),
        slip("per-stage-epilogue", most_stages=epilogue_per_stage),
        slip("rounded-up", most_stages=rounded_up),
        slip("one-slice", most_stages=one_slice),
        slip("not-divided", most_stages=not_divided),
        slip("wrong-form", most_stages=_a_fraction),
        slip("serial", waiting="L + x + c"),
        slip("latency-only", waiting="(L + x + c)/s"),
        slip("hidden-at-once", waiting="max(c, x)"),
        slip("one-resource", waiting="max(c, (L + x + c)/s)"),
    )
