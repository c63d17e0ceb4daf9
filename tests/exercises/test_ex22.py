"""Exercise 22: reads in flight by the package, by the reference and by hand; the way down to a block."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab import learn
from staxlab.learn.exercises import ex22, ex22_answers, ex22_runs
from staxlab.learn.variants import variant_for
from staxlab.measure.little import littles_law

pytest.importorskip("sympy")


def check(part, seed=None, **answers):
    return learn.check(f"ex22.{part}", answers, seed=seed, record=False)


def test_the_chapters_values():
    """600 ns x 3350 GB/s = 2,010,000 bytes; 15,227 on each of 132; 14.87 bytes of a thread: one read of 16."""
    answers = ex22_answers.reference(ex22.Variant())
    assert answers["in_flight"] == 2_010_000 and Fraction(answers["per_multiprocessor"]) == Fraction(2_010_000, 132)
    assert answers["reads_now"] == 1
    # 96 registers: 3,072 for a warp, five in a quarter of 16,384, twenty in all: two blocks of eight warps.
    assert answers["resident"] == 16
    # 29.7 bytes of a thread: two reads; 256 threads x 2 x 4 elements.
    assert answers["reads_then"] == 2 and answers["block"] == 2048


@given(
    st.integers(1, 2000),
    st.integers(1, 9000),
    st.integers(1, 200),
    st.integers(1, 64),
    st.sampled_from([1, 2, 4, 8, 16]),
)
def test_the_reference_is_the_packages_law(latency, bandwidth, multiprocessors, warps, read_bytes):
    law = littles_law(
        "sm_90", latency=latency * 1e-9, bandwidth=bandwidth * 1e9, multiprocessors=multiprocessors, warps=warps,
        read_bytes=read_bytes,
    )  # fmt: skip
    found = ex22_answers.reads_needed(latency, bandwidth, multiprocessors, warps, read_bytes)
    assert found == law.reads_per_thread
    lanes = 32 * multiprocessors * warps * read_bytes
    assert (found - 1) * lanes < latency * bandwidth <= found * lanes


@pytest.mark.parametrize("seed", [None, *range(20)])
def test_variants_ask_for_something(seed):
    variant = variant_for(ex22.Variant, seed)
    resident = ex22_runs.resident_warps(variant)
    assert resident >= variant.block_warps and resident % variant.block_warps == 0
    block = ex22_runs.least_block(variant)
    assert block & (block - 1) == 0 and block >= ex22_runs.elements(variant, ex22_runs.reads(variant, resident))
    for slips, truth in (
        (ex22_runs.resident_slips(variant), resident),
        (ex22_runs.reads_then_slips(variant), ex22_runs.reads(variant, resident)),
        (ex22_runs.block_slips(variant), block),
    ):
        assert slips and truth not in {slip.answer for slip in slips}


@pytest.mark.parametrize("name", ex22_runs.MISTAKES)
@pytest.mark.parametrize("seed", [None, 3])
def test_every_mistake_shows_on_some_device_and_is_named(name, seed):
    algorithm, _ = ex22_runs.MISTAKES[name]
    verdict = check("2", seed, reads_needed=lambda *given: algorithm(*given))["reads_needed"]
    assert verdict.mistake == name and dict(verdict.facts)["your reads"] is not None


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda *given: None, "wrong-form"),
        (lambda *given: 1.5, "wrong-form"),
        (lambda *given: True, "wrong-form"),
        (lambda *given: given[7], "failed-call"),
        (lambda *given: 1, None),
    ],
)
def test_what_is_no_number_of_reads(answer, mistake):
    verdict = check("2", reads_needed=answer)["reads_needed"]
    assert verdict.mistake == mistake and verdict.credit == 0


def test_a_formula_may_be_written_in_any_order():
    for text in ("B*t/b/w/S/32", "(t/S)*(B/(32*w))/b", "t*B/(32*S*w*b)"):
        assert check("1", reads_formula=text)["reads_formula"].credit == 1
