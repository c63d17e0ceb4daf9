"""The picture of a validation."""

from __future__ import annotations

import dataclasses

import torch

import staxlab
from staxlab import view
from staxlab.measure.validation import KernelValidation, Mismatch, Validation
from staxlab.view.document import SIZE_CAP
from staxlab.view.validation import MOST, validation_chart
from tests.view.reading import read, references, stripped

EXACT = KernelValidation("fused_add_0", "buf0", 1, "bit for bit", ("ordinary",), 100, 100, 0, origins=frozenset({3}))
WITHIN = KernelValidation("fused_exp_sum_1", "buf1", 2, "sum of 8", ("ordinary",), 9, 2, 0, 4e-6, 1e-6)
FAILED = dataclasses.replace(
    EXACT, kernel="fused_mul_2", mismatch=Mismatch("fused_mul_2", "buf2", "whole", (1, 2), 3.5, 4.0, 4.0, 4.0, 1, 12)
)
RECORD = Validation((EXACT, WITHIN, FAILED), ("extern_mm_3",))


def test_it_prints_and_draws_itself():
    bundle = RECORD._repr_mimebundle_()
    html = bundle["text/html"]
    assert "drawing failed" not in html and len(html) < SIZE_CAP and bundle["text/plain"] == str(RECORD)
    assert view.html(RECORD) == html and references(html) == [] and " at 0x" not in html
    assert not any("hidden" in e.attributes for e in read(stripped(html)).walk())
    assert 'data-origins="3"' in html
    for text in (html, str(RECORD)):
        assert "1 of 3 kernels FAILED" in text and "buf2[1, 2] is 3.5" in text and "extern_mm_3" in text


def test_every_kernel_is_a_row_that_says_what_was_found():
    picture = read(validation_chart(RECORD))
    drawn = [e for e in picture.walk() if "data-kernel" in e.attributes]
    assert [e.attributes["data-kernel"] for e in drawn] == ["fused_add_0", "fused_exp_sum_1", "fused_mul_2"]
    assert len({(e.tag, e.attributes.get("d")) for e in drawn}) == 3  # shapes differ, not only colours
    (svg,) = picture.find("svg")
    words = svg.attributes["aria-label"]
    assert "fused_add_0: equal bit for bit" in words and "fused_exp_sum_1: 25 % of its bound" in words
    assert "fused_mul_2: FAILED" in words and "largest deviation (% of the error bound)" in svg.text


def test_many_kernels_are_cut_and_none_is_no_picture():
    many = Validation(tuple(dataclasses.replace(EXACT, kernel=f"fused_{k}") for k in range(MOST + 5)))
    (svg,) = read(validation_chart(many)).find("svg")
    assert "and 5 more" in svg.attributes["aria-label"]
    html = Validation(())._repr_mimebundle_()["text/html"]
    assert "there is no generated kernel" in html and "drawing failed" not in html


def test_it_is_a_stage_of_the_explorer_in_both_halves():
    compiled = staxlab.compile(lambda x: (x.exp() * x).sum(-1), options={"validate": True})
    compiled(torch.randn(4, 9).requires_grad_()).sum().backward()
    compilation = compiled.versions[0].compilation
    html = compilation._repr_mimebundle_()["text/html"]
    assert "Forward: Translation validation" in html and "Backward: Translation validation" in html
    assert "Translation validation (Section 6.9" in str(compilation)
