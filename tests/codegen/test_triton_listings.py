"""The steps of Triton's compiler as listings: locations are resolved, every line knows where it comes from."""

from __future__ import annotations

import re

import pytest
import torch

import staxlab
from staxlab.codegen.triton.locations import LlvmLocations, MlirLocations, without_locations
from staxlab.errors import OptionError
from tests.codegen.triton_support import example_1_1, kernels_of, program

TABLE = """\
#loc = loc("/a/b/kernel.py":8:1)
#loc1 = loc(unknown)
#loc2 = loc("/lib/standard.py":314:12)
#loc3 = loc("/a/b/kernel.py":24:12)
#loc4 = loc("tmp6"(#loc3))
#loc5 = loc(callsite(#loc2 at #loc4))
#loc6 = loc(fused[#loc1, #loc3])
#loc7 = loc(callsite(#loc1 at #loc5))
#loc8 = loc("odd \\"(name"(#loc))
"""


@pytest.mark.parametrize(
    ("location", "places"),
    [
        ("#loc", [("kernel.py", 8)]),
        ("#loc1", []),
        ("#loc4", [("kernel.py", 24)]),
        ("#loc5", [("standard.py", 314), ("kernel.py", 24)]),
        ("#loc6", [("kernel.py", 24)]),
        ("#loc7", [("standard.py", 314), ("kernel.py", 24)]),
        ("#loc8", [("kernel.py", 8)]),
        ('"in_ptr0"(#loc)', [("kernel.py", 8)]),
        ("callsite(#loc1 at #loc4)", [("kernel.py", 24)]),
        ('"/a/c.py":3:4', [("c.py", 3)]),
        ("#loc99", []),
    ],
)
def test_mlir_locations(location, places):
    assert list(MlirLocations(TABLE).places(location)) == places


@pytest.mark.parametrize(
    ("line", "shown", "location"),
    [
        ("  %0 = tt.load %1 : tensor<4xf32> loc(#loc3)", "  %0 = tt.load %1 : tensor<4xf32>", "#loc3"),
        ('f(%a: i32 loc("a"(#loc)), %b: i32 loc("b"(#loc))) {', "f(%a: i32, %b: i32) {", '"b"(#loc)'),
        ("  } loc(callsite(#loc1 at #loc2))", "  }", "callsite(#loc1 at #loc2)"),
        ("  ttg.local_alloc(%1)", "  ttg.local_alloc(%1)", ""),
        ('  } loc("odd (name"(#loc))', "  }", '"odd (name"(#loc)'),
        ("nothing", "nothing", ""),
    ],
)
def test_locations_are_taken_off(line, shown, location):
    assert without_locations(line) == (shown, location)


def test_llvm_locations():
    table = LlvmLocations(
        '!1 = !DIFile(filename: "kernel.py", directory: "/a/b")\n'
        '!3 = distinct !DISubprogram(name: "kernel", scope: !1, file: !1, line: 8, unit: !0)\n'
        "!11 = !DILocation(line: 12, column: 15, scope: !3)\n"
        "!22 = !DILocation(line: 287, column: 12, scope: !23, inlinedAt: !26)\n"
        "!23 = distinct !DILexicalBlockFile(scope: !3, file: !24, discriminator: 0)\n"
        '!24 = !DIFile(filename: "/lib/standard.py", directory: "/lib")\n'
        "!26 = !DILocation(line: 24, column: 12, scope: !3)\n"
    )
    assert list(table.places("11")) == [("kernel.py", 12)]
    assert list(table.places("22")) == [("standard.py", 287), ("kernel.py", 24)]
    assert list(table.places("1")) == [] and list(table.places("99")) == []


pytest.importorskip("triton")


@pytest.fixture(scope="module")
def kernel():
    (made,) = kernels_of(example_1_1())
    return made


WHAT = {
    "ttir": {r"tt\.load": ({0}, {1}), r"arith\.maximumf": ({3},), r'"tt\.reduce"': ({99},), r"tt\.store": ({99},)},
    "ttgir": {r"tt\.load": ({0}, {1}), r"arith\.maximumf": ({3},), r"ttg\.convert_layout": ({99},)},
    "llir": {r"ld\.global": ({0}, {1}), r"llvm\.maximum": ({3},), "shfl": ({99},), r"st\.global": ({99},)},
    "ptx": {r"ld\.global": ({0}, {1}), r"max\.NaN": ({3},), "shfl": ({99},)},
    "sass": {"LDG": ({0}, {1}), "FMNMX": ({3},), "SHFL": ({99},), "STG": ({99},)},
}


@pytest.mark.parametrize("kind", WHAT)
def test_lines_of_every_step_carry_origins(kernel, kind):
    lines = kernel.assembly(kind).lines
    for pattern, origins in WHAT[kind].items():
        found = {line.origins for line in lines if re.search(pattern, line.text) and "declare" not in line.text}
        assert found == set(map(frozenset, origins)), pattern


@pytest.mark.parametrize("kind", ["ttir", "ttgir", "llir"])
def test_listings_are_for_readers(kernel, kind):
    record = kernel.assembly(kind)
    assert record.kind == kind and "loc(" not in record.text and "!dbg" not in record.text and "#loc" not in record.text
    assert record.text.count("{") == record.text.count("}")
    assert record._repr_mimebundle_()["text/plain"] == record.text


def test_a_loop_belongs_to_the_line_of_the_loop():
    (looped,) = kernels_of(example_1_1(64, 40000), split_reductions=False)
    (opening,) = [line for line in looped.assembly("ttgir").lines if "scf.for" in line.text]
    assert opening.origins


def test_lines_of_a_helper_belong_to_its_caller():
    x, y = torch.empty(256, dtype=torch.int32), torch.empty(256, dtype=torch.int32)

    def compute(ops, i):
        tag = lambda n: ops.tagged(frozenset({n}))  # noqa: E731
        return tag(7).floordiv(tag(5).load("x", i[0]), tag(6).load("y", i[0]))

    (made,) = kernels_of(program({"x": x, "y": y}, (256,), compute, torch.int32))
    for kind, pattern in (("ttir", r"arith\.divsi"), ("llir", r" sdiv ")):
        found = {line.origins for line in made.assembly(kind).lines if re.search(pattern, line.text)}
        assert found == {frozenset({7})}, kind


def test_other_names_are_refused(kernel):
    with pytest.raises(OptionError, match="no 'wasm' listing") as caught:
        kernel.assembly("wasm")
    assert "ttgir" in caught.value.remedy


def test_transposition_is_a_conversion_of_layouts():
    tile = staxlab.explain(
        lambda x, y: x.t() + y, torch.empty(512, 256), torch.empty(256, 512), target="sm_90"
    ).kernels[0]
    (conversion, *_) = [line for line in tile.assembly("ttgir").lines if "convert_layout" in line.text]
    assert conversion.origins
