"""Algorithm 8.1, and what a kernel's source says about its threads."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import staxlab
from staxlab.codegen.cpp.sharing import imbalance, parallel_depth
from staxlab.errors import OptionError
from staxlab.view.document import SIZE_CAP
from staxlab.view.sharing import imbalance_chart, threads_chart
from tests.view.reading import read, references, stripped

PROGRAMS = {
    "sum of rows": (lambda x: x.sum(-1), (512, 2050)),
    "sum of columns": (lambda x: x.sum(0), (512, 2050)),
    "few columns": (lambda x: x.sum(0), (4096, 40)),
    "one result": (lambda x: x.sum(), (1 << 18,)),
    "pointwise": (lambda x: (x + 1) * x, (300, 70)),
    "one long loop": (lambda x: x * 2 + 1, (100_003,)),
    "transposed": (lambda x: x.t().contiguous() + 1, (300, 500)),
    "softmax": (lambda x: torch.softmax(x, -1), (64, 1000)),
    "planes": (lambda x: x.sum((0, 2)), (8, 16, 1280)),
    "small": (lambda x: x + 1, (10,)),
    "running sums of rows": (lambda x: x.cumsum(-1), (64, 1000)),
    "running sums of columns": (lambda x: x.cumsum(0), (500, 4000)),
    "one long running sum": (lambda x: x.cumsum(0), (1 << 18,)),
    "product": (lambda x: torch.relu(x @ torch.ones(48, 56)), (40, 48)),
    "shared product": (lambda x: x.int() @ torch.ones(100, 300, dtype=torch.int32), (200, 100)),
    "products": (lambda x: torch.relu(x @ torch.ones(48, 24, 24)), (48, 20, 24)),
    "scatter": (lambda x: torch.zeros(64, 300).index_add(0, torch.arange(5000) % 64, x), (5000, 300)),
}


def kernels_of(name):
    function, shape = PROGRAMS[name]
    return [k for k in staxlab.explain(function, torch.randn(shape)).kernels if k.language == "cpp"]


def kernel_of(name):
    return kernels_of(name)[0]


def shared_in_source(source):
    """The product of the trip counts of the loops behind the first ``omp parallel for``; 1 without one."""
    lines = source.splitlines()
    for number, line in enumerate(lines):
        if "#pragma omp parallel for" not in line:
            continue
        collapsed = re.search(r"collapse\((\d+)\)", line)
        count = 1
        for head in lines[number + 1 : number + 1 + (int(collapsed[1]) if collapsed else 1)]:
            found = re.search(r"for \(i64 (\w+) = 0; \1 < (\d+); (?:\+\+\1|\1 \+= (\d+))\)", head)
            count *= -(-int(found[2]) // int(found[3] or 1))
        return count
    return 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_says_what_the_source_does(name):
    for kernel in kernels_of(name):
        sharing = kernel.sharing()
        assert sharing.iterations == shared_in_source(kernel.source), f"{sharing}\n{kernel.source}"
        assert sharing.parallel == ("#pragma omp" in kernel.source)
        assert sharing.threads == torch.get_num_threads() and sum(sharing.shares) == sharing.iterations


@given(st.integers(1, 10_000), st.integers(1, 64))
def test_the_imbalance_is_the_share_of_the_busiest_thread(q, threads):
    busiest = -(-q // threads)
    assert imbalance(q, threads) == Fraction(busiest * threads, q) >= 1
    if q >= 2 * threads:
        assert imbalance(q, threads) < Fraction(3, 2)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=4), st.integers(1, 64), st.sampled_from((1, 64, 512)))
def test_the_algorithm_takes_no_loop_too_many(extents, threads, grain):
    found = parallel_depth(extents, threads, grain)
    inside, product = 1, 1
    for size in extents:
        inside *= size
    for size in extents[: found.depth]:
        assert product < 2 * threads and inside / threads >= grain
        product, inside = product * size, inside // size
    assert found.iterations == product
    assert found.depth == len(extents) or product >= 2 * threads or inside / threads < grain
    assert len(found.steps) == found.depth + (found.depth < len(extents))


def test_the_chapters_nest():
    assert [parallel_depth((4, 4096, 16), threads, 512).depth for threads in (8, 64)] == [2, 2]
    assert parallel_depth((4, 4096, 16), 64, 2048).depth == 1  # 1024 for each thread are too few to take another loop
    assert parallel_depth((4, 4096, 16), 2, 512).depth == 1 and parallel_depth((4, 4), 2, 512).depth == 0
    with pytest.raises(OptionError, match="1 thread or more"):
        parallel_depth((4,), 0, 1)


def test_the_steps_are_drawn_and_printed():
    found = parallel_depth((4, 4096, 16), 8, 512)
    bundle = found._repr_mimebundle_()
    assert "drawing failed" not in bundle["text/html"] and bundle["text/plain"] == str(found)
    assert "2 of 3 loops are taken: q = 16,384 iterations for P = 8, m = 512" in str(found)
    assert len(read(bundle["text/html"]).find("tr")) == 1 + len(found.steps) == 4


def test_other_threads_and_other_languages():
    sharing = kernel_of("sum of rows").sharing().with_threads(7)
    assert sharing.shares == (74, 73, 73, 73, 73, 73, 73) and sharing.imbalance == Fraction(74 * 7, 512)
    with pytest.raises(OptionError):
        sharing.with_threads(0)
    with pytest.raises(OptionError, match="no loops that threads"):
        staxlab.explain(lambda x: x + 1, torch.randn(64), target="sm_90").kernels[0].sharing()


# -- pictures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("threads", [1, 7, 64])
def test_a_view_is_text_and_self_contained_html(name, threads):
    sharing = kernel_of(name).sharing().with_threads(threads)
    bundle = sharing._repr_mimebundle_()
    html = bundle["text/html"]
    assert "drawing failed" not in html and len(html) < SIZE_CAP and bundle["text/plain"] == str(sharing)
    assert references(html) == [] and not any("hidden" in e.attributes for e in read(stripped(html)).walk())


def test_bars_are_shares_and_what_is_hatched_is_waiting():
    sharing = kernel_of("sum of rows").sharing().with_threads(7)
    picture = read(threads_chart(sharing))
    bars = [int(e.attributes["data-share"]) for e in picture.find("rect") if "data-share" in e.attributes]
    idle = [int(e.attributes["data-idle"]) for e in picture.find("rect") if "data-idle" in e.attributes]
    assert tuple(bars) == sharing.shares and idle == [1] * 6
    loops = [e.attributes for e in picture.find("rect") if "data-loop" in e.attributes]
    assert [(a["data-loop"], a["data-shared"]) for a in loops] == [("i0", "1"), ("r0", "0")]
    (svg,) = read(imbalance_chart(sharing)).find("svg")
    assert "here q = 512: 1.01" in svg.attributes["aria-label"] and "3/2 from 2P on" in svg.text
