"""Machine code with origins: every instruction belongs to a generated line, and so to the user's operations."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest
import torch

from staxlab.errors import OptionError
from staxlab.provenance import Line
from staxlab.runtime import assembly
from tests.codegen.cpp_support import RUNNABLE, compile_program, reduction

F32 = torch.float32


def example():
    """Example 1.1 with one origin per operation."""

    def compute(ops, i, r):
        x = ops.tagged(frozenset({10})).load("x", 128 * i[0] + r[0])
        w = ops.tagged(frozenset({11})).load("w", 128 * i[0] + r[0])
        total = ops.tagged(frozenset({12})).add(x, w)
        kept = ops.tagged(frozenset({13})).relu(total)
        last = ops.tagged(frozenset({14}))
        return last.mul(kept, last.constant(3, F32))

    x = torch.randn(64, 128)
    program = reduction({"x": x, "w": x}, (64,), (128,), "sum", F32, F32, compute)
    return compile_program(program, RUNNABLE[0])[1][0]


def test_instructions_are_attributed_to_the_operations_they_serve():
    kernel = example()
    listing = kernel.assembly()
    assert listing.kind == "asm" and listing.kernel == kernel.name
    serving: dict[int, list[str]] = {}
    for line in listing.lines:
        for origin in line.origins:
            if len(line.origins) == 1:
                serving.setdefault(origin, []).append(line.text)
    if RUNNABLE[0] == "avx512":
        assert any("vmulps" in text for text in serving[14])
        assert any("vcmp" in text or "vmax" in text for text in serving[13])
        assert any("vadd" in text for text in serving[12])
        assert any("zmm" in text for text in serving[12])
    assert {12, 13, 14} <= set(serving)
    assert all(origins <= kernel.origins for origins in (line.origins for line in listing.lines))


def test_the_listing_holds_no_directives():
    text = example().assembly().text
    assert ".cfi" not in text and ".loc" not in text and ".section" not in text
    assert "ret" in text


def test_without_objdump_the_compilers_own_listing_serves(monkeypatch):
    kernel = example()
    monkeypatch.setattr(assembly, "shutil", SimpleNamespace(which=lambda name: None))
    listing = assembly.disassemble(kernel)
    origins = set().union(*(line.origins for line in listing.lines))
    assert {12, 13} <= origins
    assert ".loc" not in listing.text and "ret" in listing.text


LLVM = """\
	.text
	.globl	_total
_total:                                 ; @total
Lfunc_begin0:
	.file	1 "/tmp" "total.cpp"
	.loc	1 2 0                           ; total.cpp:2:0
	mov	x8, #0
LBB0_1:                                 ; =>This Inner Loop Header: Depth=1
	.loc	1 3 0
Ltmp0:
	add	x8, x8, #16
	b.lo	LBB0_1
	ret
	.section	__DWARF,__debug_abbrev
Lsection_abbrev:
	.byte	1
"""


def test_labels_that_are_jumped_to_stay_and_others_go():
    kernel = SimpleNamespace(lines=[Line("a"), Line("b", frozenset({7})), Line("c", frozenset({8}))])
    lines = assembly.parse_compiler_output(LLVM, kernel, "total.cpp")
    assert [line.text.strip() for line in lines] == [
        "_total:", "mov x8, #0", "LBB0_1:", "add x8, x8, #16", "b.lo LBB0_1", "ret",
    ]  # fmt: skip
    assert lines[1].origins == {7} and lines[3].origins == {8}


def test_an_objdump_that_is_not_gnus_is_left_alone(tmp_path, monkeypatch):
    """LLVM's program of that name knows no ``--inlines``."""
    other = tmp_path / "objdump"
    other.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo 'Apple LLVM version 17' || exit 1\n")
    other.chmod(0o755)
    monkeypatch.setattr(assembly, "shutil", SimpleNamespace(which=lambda name: str(other)))
    assert "ret" in assembly.disassemble(example()).text


def test_an_unknown_kind_is_refused():
    with pytest.raises(OptionError, match="asm"):
        example().assembly("ptx")


@pytest.mark.skipif(not shutil.which("objdump"), reason="no objdump here")
def test_sum_and_elements_have_different_origins():
    """Merging belongs to the reduction, the elements to what is reduced."""
    kernel = example()
    for line in kernel.lines:
        if "acc0 = acc0 +" in line.text:
            assert line.origins == frozenset({1})
