"""HLO, loops and dialects: what is counted is what the texts say."""

from __future__ import annotations

import pytest

import staxlab
from staxlab import view
from staxlab.errors import OptionError
from staxlab.measure.comparison import observations
from staxlab.measure.representations import computations, dialects, hlo_stages, layers, loops_beside
from staxlab.view.document import SIZE_CAP
from tests.codegen.triton_support import example_1_1, example_6_1, kernels_of
from tests.view.reading import read, references, stripped

FUNCTIONS = ("example_1_1", "softmax_five_operators", "transpose_add")

BEFORE = """\
HloModule jit_f

ENTRY main.1 {
  x.1 = f32[4,8]{1,0} parameter(0)
  constant.1 = f32[] constant(2)
  mul.1 = f32[4,8]{1,0} broadcast(constant.1), dimensions={}
  mul.2 = f32[4,8]{1,0} multiply(x.1, mul.1)
  both.3 = (f32[4,8]{1,0}, s32[]) tuple(mul.2, mul.2)
  ROOT exp.2 = f32[4,8]{1,0} exponential(mul.2)
}
"""
AFTER = """\
HloModule jit_f

%fused (p: f32[4,8]) -> f32[4,8] {
  %p = f32[4,8]{1,0} parameter(0)
  %c = f32[] constant(2)
  %b = f32[4,8]{1,0} broadcast(%c), dimensions={}
  ROOT %m = f32[4,8]{1,0} multiply(%p, %b)
}

ENTRY %main.1 (x.1: f32[4,8]) -> f32[4,8] {
  %x.1 = f32[4,8]{1,0} parameter(0)
  %call = f32[4,8]{1,0} custom-call(%x.1), custom_call_target="library"
  ROOT %some_fusion = f32[4,8]{1,0} fusion(%call), kind=kInput, calls=%fused
}
"""
TEXTS = {
    "jaxpr": "{ lambda ; a:f32[4,8]. let\n    b:f32[4,8] = mul a 2.0\n    c:f32[4,8] = exp b\n  in (c,) }",
    "stablehlo": "module @jit_f {\n  func.func public @main(%arg0: tensor<4x8xf32>) {\n"
    "    %0 = stablehlo.multiply %arg0, %arg0 : tensor<4x8xf32>\n    return %0 : tensor<4x8xf32>\n  }\n}\n",
    "hlo": BEFORE,
    "optimized": AFTER,
}


def test_a_module_is_read_into_computations():
    found = computations(AFTER)
    assert [name for name, _ in found["fused"]] == ["parameter", "constant", "broadcast", "multiply"]
    assert [name for name, _ in found["ENTRY"]] == ["parameter", "custom-call", "fusion"]
    assert [name for name, _ in computations(BEFORE)["ENTRY"]][-2:] == ["tuple", "exponential"]
    with pytest.raises(OptionError, match="no HLO module"):
        computations("int main() { return 0; }")


def test_fusions_have_their_kind_and_what_is_inside():
    stages = hlo_stages("f", TEXTS, "made by hand")
    (fusion,) = stages.fusions
    assert (fusion.name, fusion.kind, fusion.operations) == ("some_fusion", "kInput", ("broadcast", "multiply"))
    assert stages.alone == ("custom-call",) and stages.kernels == 2
    assert stages.operations == {"jaxpr": 2, "StableHLO": 1, "HLO": 3, "optimised HLO": 4}
    assert "kInput: broadcast, multiply" in str(stages) and "2 run one after the other" in str(stages)
    with pytest.raises(OptionError, match="no text of optimized"):
        hlo_stages("f", {name: text for name, text in TEXTS.items() if name != "optimized"})


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_kept_texts_are_modules_and_draw_themselves(function):
    stages = hlo_stages(function, observations().systems["xla"].structure[function], "observed")
    assert stages.kernels >= 1 and all(fusion.operations for fusion in stages.fusions)
    html = stages._repr_mimebundle_()["text/html"]
    assert "drawing failed" not in html and len(html) < SIZE_CAP and references(html) == []
    words = read(stripped(html)).text
    assert all(step in words for step in stages.texts) and "ENTRY" in words
    assert all("metadata" not in text and ".py" not in text for text in stages.texts.values()), "no file names"


def test_a_transposition_is_a_copy_of_a_layout_in_xla():
    stages = hlo_stages("transpose_add", observations().systems["xla"].structure["transpose_add"])
    assert "transpose" in stages.fusions[0].operations and "copy" in stages.fusions[0].operations
    assert "copy" not in stages.texts["HLO"]


# --- Halide -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", FUNCTIONS)
def test_both_schedules_belong_to_one_algorithm(function):
    kept = observations().systems["halide"].structure[function]
    stages, pieces = (kept["loops"][schedule] for schedule in ("stage by stage", "piece by piece"))
    assert "hl.Func" in kept["algorithm"] and "parallel" not in kept["algorithm"]
    assert "parallel" not in stages and "vectorized" not in stages
    assert "parallel" in pieces and "vectorized" in pieces
    assert set(kept["lowered"]) == set(kept["loops"]) and all("for (" in text for text in kept["lowered"].values())


@pytest.mark.parametrize("function", FUNCTIONS)
def test_tvm_schedules_what_staxlab_describes(function):
    described, scheduled = observations().systems["tvm"].structure[function]["loops"].values()
    assert "T.parallel" in scheduled and "parallel" not in described and "T.grid" in described


def test_loops_beside_count_what_they_show_and_keep_origins(cache_dir):
    program, inputs = _program(), _inputs()
    kernels = staxlab.explain(program, *inputs).kernels
    record = loops_beside("f", {"theirs": "produce h:\n  parallel i:\n    for j:\n      h(...) = ..."}, kernels, "made")
    table = {row[0]: row[1:] for row in record.table().rows}
    assert table["theirs"] == ("4", "2", "1")
    grid = loops_beside("f", {"grids": "for i, j in T.grid(4, 8):\n    for k in T.parallel(2):"}).table()
    assert grid.rows[0] == ("grids", "2", "3", "1")
    assert record["theirs"].startswith("produce h:")
    with pytest.raises(KeyError):
        record["nobody's"]
    html = record._repr_mimebundle_()["text/html"]
    assert "drawing failed" not in html and references(html) == [] and view.html(record) == html
    page = read(html)
    linked = [e for e in page.walk() if "data-origins" in e.attributes]
    assert linked, "lines of our kernel know the captured nodes"
    assert "parallel i:" in page.text


def _program():
    import torch

    def f(x, w):
        return (torch.relu(x + w) * 2).sum(-1)

    return f


def _inputs():
    import torch

    return torch.randn(16, 32), torch.randn(16, 32)


# --- MLIR -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", [example_1_1, example_6_1])
def test_every_operation_of_ttir_and_ttgir_has_a_dialect(example):
    pytest.importorskip("triton")
    (kernel,) = kernels_of(example())
    steps = kernel.lowering_steps()
    counts = dialects(steps)
    for title, name in (("TTIR", "ttir"), ("TTGIR", "ttgir")):
        assert sum(counts.of(title).values()) == steps[name].operations, "none is missed, none is counted twice"
    assert "ttg" not in counts.of("TTIR") and {"tt", "arith"} <= set(counts.of("TTGIR"))
    assert counts.of("PTX") == {"(PTX)": steps["ptx"].operations}
    html = counts._repr_mimebundle_()["text/html"]
    assert "drawing failed" not in html and references(html) == []
    picture = read(html)
    (svg,) = picture.find("svg")
    assert "operations (count)" in svg.text and f"TTIR, tt: {counts.of('TTIR')['tt']}" in picture.text
    bars = [e for e in picture.find("rect") if "data-value" in e.attributes]
    assert len(bars) == len(counts.of("TTIR")) + len(counts.of("TTGIR"))


def test_levels_are_counted_in_the_compilation():
    pytest.importorskip("triton")
    compilation = staxlab.explain(_program(), *_inputs(), target="sm_90")
    record = layers(compilation, dialects(compilation.kernels[0].lowering_steps()))
    by_level = {row[0]: row for row in record.rows}
    assert by_level["captured graph"][2] == 4 and by_level["loop level"][2] == 1
    assert by_level["schedule"][2] == len(compilation.schedule.nodes)
    assert by_level["kernels"][4] == "arith, tt, ttg"
    assert "drawing failed" not in record._repr_mimebundle_()["text/html"]
    assert "gpu, llvm" in str(layers(compilation))
