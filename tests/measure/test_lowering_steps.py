"""Every step of Triton's compiler in counts, and what became of a line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from staxlab.errors import CodegenError
from staxlab.measure.lowering_steps import HEAD, lowering_steps
from staxlab.view.registry import panes_of
from tests.codegen.triton_support import example_1_1, example_6_1, kernels_of

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def total():
    (kernel,) = kernels_of(example_1_1())
    return kernel.lowering_steps()


@pytest.fixture(scope="module")
def tile():
    (kernel,) = kernels_of(example_6_1())
    return kernel.lowering_steps()


def test_a_block_becomes_instructions_of_a_thread(total):
    """Two rows of 128 floats over 32 or 64 threads: 16 bytes to a load; five shuffles sum up a warp."""
    assert [step.name for step in total.steps] == ["ttir", "ttgir", "llir", "ptx", "sass"]
    assert dict(total["ttir"].loads) == dict(total["ttgir"].loads) and sum(dict(total["ttir"].loads).values()) == 2
    for name in ("llir", "ptx", "sass"):
        assert dict(total[name].loads) == {"16 B": 2} and dict(total[name].stores) == {"4 B": 1}
        assert total[name].shuffles == 5 and total[name].barriers == 0
    assert total["ttir"].operations < total["sass"].operations


def test_a_conversion_becomes_stores_a_barrier_and_loads(tile):
    assert tile["ttir"].conversions == 0 and tile["ttgir"].conversions >= 1
    for name in ("llir", "ptx", "sass"):
        assert tile[name].shared > 0 and tile[name].barriers > 0, name
    assert tile["ptx"].barriers == tile["sass"].barriers == tile["llir"].barriers
    assert tile["ptx"].loads == tile["sass"].loads == tile["llir"].loads
    assert tile.resources.shared > 0 and "bytes of shared memory" in tile.takes()


def test_what_became_of_a_line(total):
    texts = [line.text for line in total.source]
    relu = next(number for number, text in enumerate(texts, 1) if "tl.maximum" in text)
    became = total.lines_of(relu)
    assert any("maximumf" in text for text in became["ttir"]) and any("maximumf" in text for text in became["ttgir"])
    assert any("maximum" in text for text in became["llir"]) and any("max.NaN" in text for text in became["ptx"])
    assert any("FMNMX" in text for text in became["sass"])
    assert total.lines_of(1) == dict.fromkeys(became, ())


def test_every_instruction_that_computes_is_linked(total, tile):
    for record in (total, tile):
        for name in ("ptx", "sass"):
            code = [place for text, place in record[name].lines if text.lstrip().startswith(("/*", "ld", "st", "add"))]
            assert code and all(place is not None for place in code)


def test_it_prints_and_draws(total):
    text = str(total)
    assert all(word in text for word in (*HEAD, "TTGIR", "LLVM IR", "registers"))
    view = panes_of(total)
    assert [pane.key for pane in view.panes] == ["steps", "steps-kernel", "ttir", "ttgir", "llir", "ptx", "sass"]
    assert "Operations of each step" in view.panes[0].body and view.first == ("steps-kernel", "sass")
    assert any("tl.maximum" in name for name in view.names.values())
    assert total._repr_mimebundle_()["text/plain"] == text


def test_other_languages_have_no_steps():
    (kernel,) = kernels_of(example_1_1())
    with pytest.raises(CodegenError, match="not a Triton kernel"):
        lowering_steps(replace(kernel, language="cpp"))
    with pytest.raises(KeyError):
        kernel.lowering_steps(80)["wasm"]
