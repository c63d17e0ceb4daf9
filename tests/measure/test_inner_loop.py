"""Machine code as data: loops found, instructions sorted, bytes and bounds counted, on listings with known counts."""

from __future__ import annotations

import dataclasses
import math
import random
import re
import shutil
import subprocess

import pytest
import torch

import staxlab
from staxlab.errors import OptionError
from staxlab.measure import port_model
from staxlab.measure.inner_loop import FORWARD, inner_loop, inner_loops, loops_of
from staxlab.measure.instruction_mix import KINDS, TABLE, kind_and_group, memory_bytes, width_of
from staxlab.measure.machine_code import natural_loops, parse, x86_register
from staxlab.measure.port_model import MODELS, assign, choose, least_cycles
from staxlab.options import host_instruction_set
from staxlab.provenance import Line
from staxlab.view.document import SIZE_CAP
from staxlab.view.inner_loop import bounds_chart, mix_chart, ports_chart
from tests.view.reading import read, references, stripped

# A sum of rows with four accumulators, as a compiler writes it: an outer loop around it, and a masked tail.
SUM = """\
row_sum:
     0:  push   %rbp
     1:  mov    %rdi,%rdx
     8:  vxorps %xmm3,%xmm3,%xmm3
     c:  vmovaps %zmm3,%zmm0
    10:  vmovaps %zmm3,%zmm1
    18:  vaddps -0x1000(%rax),%zmm1,%zmm1       # 19: acc0 = acc0 + element(r0, all_lanes);
    1f:  prefetcht0 (%rax)
    22:  vaddps -0xfc0(%rax),%zmm2,%zmm2
    2b:  vaddps -0xf80(%rax),%zmm0,%zmm0
    32:  vaddps -0xf40(%rax),%zmm3,%zmm3
    39:  add    $0x100,%rax
    3f:  cmp    %rax,%rdx
    42:  jne    18
    44:  vmovups (%rdx),%zmm5{%k2}{z}
    4a:  vaddps %zmm5,%zmm1,%zmm4{%k1}
    50:  vmovss %xmm4,(%rdi,%rcx,4)
    56:  add    $0x1,%rcx
    5a:  cmp    %rcx,%rsi
    5d:  jne    8
    5f:  vzeroupper
    62:  ret
"""

ARM = """\
row_sum:
     0:  movi v0.4s, #0
     4:  mov x3, x0
     8:  ldp q2, q3, [x3], #32
     c:  fadd v0.4s, v0.4s, v2.4s
    10:  fmla v1.4s, v3.4s, v4.4s
    14:  ld1 {v5.4s, v6.4s}, [x4]
    18:  st1 {v6.4s}, [x5], #16
    1c:  cmp x3, x1
    20:  b.ne 8
    24:  fdiv v0.4s, v0.4s, v1.4s
    28:  ret
"""


def lines(text):
    return [Line(row) for row in text.splitlines()]


def body(text, name="f"):
    """The instructions of a loop body, with a head and a jump back around them."""
    rows = [f"{16 * k + 16:6x}:  {row.strip()}" for k, row in enumerate(text.strip().splitlines())]
    return lines("\n".join([f"{name}:", "     0:  nop", *rows, f"{16 * len(rows) + 16:6x}:  jne    10"]))


def only(text, machine="golden-cove"):
    (loop,) = loops_of("f", body(text), machine)
    return loop


# -- loops -------------------------------------------------------------------------------------------------------------


def test_loops_are_found_with_their_nesting():
    ((name, instructions),) = parse(lines(SUM))
    outer, inner = natural_loops(name, instructions)
    assert (outer.depth, outer.innermost, inner.depth, inner.innermost) == (1, False, 2, True)
    assert [i.address for i in inner.instructions] == ["18", "1f", "22", "2b", "32", "39", "3f", "42"]
    assert outer.instructions[0].address == "8" and outer.instructions[-1].address == "5d"


def test_two_jumps_to_one_head_are_one_loop_and_code_never_reached_is_none():
    text = """\
f:
     0:  nop
     4:  add    $1,%rax
     8:  je     4
     c:  cmp    %rax,%rbx
    10:  jne    4
    14:  ret
    18:  jmp    18
"""
    ((name, instructions),) = parse(lines(text))
    (loop,) = natural_loops(name, instructions)
    assert [i.address for i in loop.instructions] == ["4", "8", "c", "10"]


def test_an_edge_into_the_middle_makes_no_natural_loop():
    """Neither of two blocks that jump into each other dominates the other."""
    text = "f:\n 0:  je c\n 4:  add $1,%rax\n 8:  jmp c\n c:  add $1,%rbx\n 10:  jne 4\n 14:  ret\n"
    ((name, instructions),) = parse(lines(text))
    assert natural_loops(name, instructions) == []


def test_labels_of_the_compilers_own_output_are_targets():
    text = "f:\n vxorps %xmm0, %xmm0, %xmm0\n.L3:\n vaddps (%rdi), %ymm0, %ymm0\n addq $32, %rdi\n jne .L3\n ret\n"
    (loop,) = loops_of("f", lines(text), "golden-cove")
    assert loop.count("add, multiply", 256) == 1 and loop.elements == 8


# -- the mix -----------------------------------------------------------------------------------------------------------


def test_the_mix_of_a_known_loop():
    loop = loops_of("row_sum", lines(SUM), "golden-cove")[0]
    expected = {("add, multiply", 512): 4, ("prefetch", 0): 4 - 3, ("scalar, address", 0): 2, ("branch", 0): 1}
    assert loop.mix == expected
    assert (loop.loads, loop.folded_loads, loop.stores) == (4, 4, 0)
    assert (loop.bytes_loaded, loop.bytes_stored, loop.elements) == (256, 0, 64)
    assert loop.chain.accumulators == ("zmm0", "zmm1", "zmm2", "zmm3") and loop.depth == 2


@pytest.mark.parametrize(
    ("text", "kind", "width", "moved"),
    [
        ("vmovups (%rax),%zmm1", "vector load", 512, 64),
        ("vmovups %ymm1,0x20(%rax,%rbx,4)", "vector store", 256, 32),
        ("vmovntps %zmm1,(%rax)", "non-temporal store", 512, 64),
        ("movnti %rax,(%rbx)", "non-temporal store", 0, 8),
        ("vbroadcastss (%rax),%zmm1", "vector load", 512, 4),
        ("vbroadcastf32x4 (%rax),%zmm1", "vector load", 512, 16),
        ("vaddps (%rax){1to16},%zmm1,%zmm2", "add, multiply", 512, 4),
        ("vaddss (%rax),%xmm1,%xmm2", "add, multiply", 0, 4),
        ("vmulpd %xmm1,%xmm2,%xmm3", "add, multiply", 128, 0),
        ("vfnmadd231ps (%rax),%ymm1,%ymm2", "multiply-add", 256, 32),
        ("vdivps %zmm1,%zmm2,%zmm3", "divide, root", 512, 0),
        ("vsqrtpd (%rax),%ymm1", "divide, root", 256, 32),
        ("vmaxps %zmm1,%zmm2,%zmm3", "compare, select", 512, 0),
        ("vcmpltps %zmm1,%zmm2,%k1", "compare, select", 512, 0),
        ("vblendmps %zmm1,%zmm2,%zmm3{%k1}", "compare, select", 512, 0),
        ("vpcmpgtd %ymm1,%ymm2,%ymm3", "compare, select", 256, 0),
        ("vcvtdq2ps %zmm1,%zmm2", "convert, round", 512, 0),
        ("vcvtps2pd (%rax),%zmm1", "convert, round", 512, 32),
        ("vpmovzxbd (%rax),%zmm1", "convert, round", 512, 16),
        ("vpmovdb %zmm1,(%rax)", "convert, round", 512, 16),
        ("vrndscaleps $0x8,%zmm1,%zmm2", "convert, round", 512, 0),
        ("vpermt2ps %zmm1,%zmm2,%zmm3", "shuffle", 512, 0),
        ("vunpcklps %ymm1,%ymm2,%ymm3", "shuffle", 256, 0),
        ("vextracti128 $0x1,%ymm0,%xmm0", "shuffle", 256, 0),
        ("vextracti32x4 $0x1,%zmm0,(%rax)", "vector store", 512, 16),
        ("vpaddd %zmm1,%zmm2,%zmm3", "integer, logic", 512, 0),
        ("vandps %ymm1,%ymm2,%ymm3", "integer, logic", 256, 0),
        ("vpslld $0x17,%zmm1,%zmm2", "integer, logic", 512, 0),
        ("vgatherdps (%rax,%zmm1,4),%zmm2{%k1}", "gather, scatter", 512, 64),
        ("kandw %k1,%k2,%k3", "mask", 0, 0),
        ("kmovw %eax,%k1", "mask", 0, 0),
        ("vmovaps %zmm1,%zmm2", "vector move", 512, 0),
        ("vmovaps %zmm1,%zmm2{%k1}{z}", "compare, select", 512, 0),
        ("vmovq %rax,%xmm1", "vector move", 0, 0),
        ("prefetcht0 0x1000(%rax)", "prefetch", 0, 0),
        ("lea 0x10(%rax,%rbx,4),%rcx", "scalar, address", 0, 0),
        ("mov 0x8(%rsp),%rax", "scalar, address", 0, 8),
        ("movzbl (%rax),%ecx", "scalar, address", 0, 1),
        ("mov %ecx,(%rax)", "scalar, address", 0, 4),
        ("jne 10", "branch", 0, 0),
        ("call *(%r15)", "call", 0, 0),
    ],
)
def test_every_kind_of_instruction_is_known(text, kind, width, moved):
    ((_, (found, _)),) = parse(lines(f"f:\n  10:  {text}\n  20:  push %rax\n"))
    assert (kind_and_group(found)[0], width_of(found), memory_bytes(found)) == (kind, width, moved)


def test_every_group_of_the_table_has_a_cost_in_every_model():
    for model in MODELS.values():
        for _, _, group in TABLE:
            assert group in {name for name, _ in model.costs} | {"load", "nothing"}, (model.key, group)
        labels = {key for key, _ in (*model.ports, *model.memory_ports)}
        for (group, _), uops in model.costs.items():
            assert all(ports <= labels for ports, _ in uops), (model.key, group)
    assert {kind for _, kind, _ in TABLE} <= set(KINDS)


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("%al", "rax"),
        ("%eax", "rax"),
        ("%sil", "rsi"),
        ("%r8d", "r8"),
        ("%r12", "r12"),
        ("%zmm31", "v31"),
        ("%k3", "k3"),
    ],
)
def test_registers_have_one_name(name, full):
    assert x86_register(name) == full


def test_reads_and_writes():
    rows = {
        "vfmadd231ps %zmm1,%zmm2,%zmm3": ({"v1", "v2", "v3"}, {"v3"}),
        "vmovups (%rax),%zmm1{%k1}{z}": ({"k1"}, {"v1"}),
        "vaddps %zmm5,%zmm1,%zmm4{%k1}": ({"v5", "v1", "v4", "k1"}, {"v4"}),
        "vblendmps %zmm1,%zmm2,%zmm3{%k1}": ({"v1", "v2", "k1"}, {"v3"}),
        "vxorps %xmm3,%xmm3,%xmm3": (set(), {"v3"}),
        "xor %eax,%eax": (set(), {"rax"}),
        "add $0x8,%rax": ({"rax"}, {"rax"}),
        "lea 0x8(%rax,%rbx,4),%rcx": (set(), {"rcx"}),
        "mov %rax,(%rbx)": ({"rax"}, set()),
        "cmp %rax,%rbx": ({"rax", "rbx"}, set()),
        "cmpxchg %ecx,(%rdx)": ({"rcx"}, set()),
    }
    for text, (reads, writes) in rows.items():
        ((_, (found,)),) = parse(lines(f"f:\n  10:  {text}\n"))
        assert (set(found.reads), set(found.writes)) == (reads, writes), text


def test_a_listing_for_arm_gets_the_mix_and_no_bounds():
    (loop,) = loops_of("row_sum", lines(ARM))
    assert loop.machine is None and loop.bounds == () and loop.cycles is None
    assert loop.count("vector load", 128) == 2 and loop.count("vector store", 128) == 1
    assert loop.count("add, multiply", 128) == 1 and loop.count("multiply-add", 128) == 1
    assert (loop.bytes_loaded, loop.bytes_stored, loop.elements) == (64, 16, 8)
    assert loop.chain.accumulators == ("v0", "v1")
    assert "no port model" in str(loop) and "drawing failed" not in loop._repr_mimebundle_()["text/html"]


CLANG = """\
fused_sum_0:
 xorl %ecx, %ecx
.LBB0_2:
 vaddps -48(%rdi,%rcx,4), %xmm3, %xmm3
 vaddps -32(%rdi,%rcx,4), %xmm2, %xmm2
 vaddps -16(%rdi,%rcx,4), %xmm1, %xmm1
 vaddps (%rdi,%rcx,4), %xmm0, %xmm0  # a remark
 vaddps 16(%rdi,%rcx,4), %xmm3, %xmm3
 vaddps 32(%rdi,%rcx,4), %xmm2, %xmm2
 vaddps 48(%rdi,%rcx,4), %xmm1, %xmm1
 vaddps 64(%rdi,%rcx,4), %xmm0, %xmm0
 addq $32, %rcx
 cmpq $4080, %rcx
 jb .LBB0_2
 retq
"""

# The same kernel for Arm, by the same compiler: objdump's spelling, and that of macOS.
ARM_SUM = """\
fused_sum_0:
      1c:  mov x11, x9
      20:  ldp q4, q5, [x11, #-32]
      24:  add x10, x10, #16
      28:  ldp q6, q7, [x11], #64
      2c:  cmp x10, #4080
      30:  fadd v3.4s, v3.4s, v4.4s
      34:  fadd v2.4s, v2.4s, v5.4s
      38:  fadd v1.4s, v1.4s, v6.4s
      3c:  fadd v0.4s, v0.4s, v7.4s
      40:  b.lo 0x20
      44:  ret
"""
MACOS_SUM = """\
_fused_sum_0:
LBB0_2:
 ldp q4, q5, [x11, #-32]
 fadd.4s v3, v3, v4
 fadd.4s v2, v2, v5
 ldp q4, q5, [x11], #64
 fadd.4s v1, v1, v4
 fadd.4s v0, v0, v5  ; a remark
 add x10, x10, #16
 cmp x10, #4080
 b.lo LBB0_2
 ret
"""


def test_an_accumulator_may_take_in_several_vectors_per_iteration():
    """Unrolled twice: each of four accumulators waits for two additions, and eight vectors are merged."""
    (loop,) = loops_of("f", lines(CLANG), "skylake-x")
    assert loop.chain.cycles == 8 and loop.chain.merges == 8 and len(loop.chain.accumulators) == 4
    assert [cycles for _, cycles, _ in loop.accumulators_table((1, 2, 4))] == [4, 2, 1] and loop.elements == 32


@pytest.mark.parametrize("text", [ARM_SUM, MACOS_SUM])
def test_both_spellings_for_arm_are_read(text):
    (loop,) = loops_of("f", lines(text))
    expected = {("vector load", 128): 2, ("add, multiply", 128): 4, ("scalar, address", 0): 2, ("branch", 0): 1}
    assert loop.mix == expected and (loop.elements, loop.bytes_loaded) == (16, 64)
    assert loop.chain.accumulators == ("v0", "v1", "v2", "v3")


# -- ports -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_the_even_spread_reaches_the_bound_of_hall(seed):
    rng = random.Random(seed)
    uops = [
        (f"kind {rng.randint(0, 2)}", (frozenset(rng.sample("01256", rng.randint(1, 3))), rng.choice((1.0, 1.0, 4.0))))
        for _ in range(rng.randint(1, 30))
    ]
    spread = assign(uops)
    loads = {port: sum(kinds.values()) for port, kinds in spread.items()}
    assert max(loads.values()) == pytest.approx(least_cycles(uop for _, uop in uops), abs=1e-3)
    assert sum(loads.values()) == pytest.approx(sum(cycles for _, (_, cycles) in uops))
    allowed = {(kind, port) for kind, (ports, _) in uops for port in ports}
    assert {(kind, port) for port, kinds in spread.items() for kind in kinds} <= allowed


def test_two_sets_that_share_a_port():
    one, two = frozenset("01"), frozenset("05")
    assert least_cycles([(one, 1.0)] * 4) == 2
    assert least_cycles([(one, 1.0)] * 4 + [(two, 1.0)] * 2) == 2
    assert least_cycles([(one, 1.0)] * 4 + [(two, 1.0)] * 6) == pytest.approx(10 / 3)
    assert least_cycles([]) == 0


@pytest.mark.parametrize("machine", MODELS)
def test_bounds_of_the_sum(machine):
    loop = loops_of("row_sum", lines(SUM), machine)[0]
    bounds = {bound.name: bound.cycles for bound in loop.bounds}
    latency = loop.model.latency("fp add", 512)
    assert bounds["dependence chain"] == latency
    assert bounds["execution ports"] == {"zen-4": 4}.get(machine, 2)  # four additions on two ports, two passes on Zen 4
    # The load ports of Intel take two vectors of 512 bits per cycle, Zen 4 one.
    assert bounds["loads and stores"] == pytest.approx({"zen-4": 4, "golden-cove": 2}.get(machine, 2.5), abs=0.35)
    assert bounds["front end"] == pytest.approx(7 / loop.model.issue_width)  # the comparison goes with its jump
    assert loop.limit.cycles == max(bounds.values()) == loop.cycles


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 8])
def test_more_accumulators_shorten_the_chain_until_ports_are_full(count):
    rows = [f"vaddps {64 * k:#x}(%rax),%zmm{k},%zmm{k}" for k in range(count)]
    loop = only("\n".join([*rows, f"add ${64 * count:#x},%rax", "cmp %rax,%rdx"]), "skylake-x")
    assert len(loop.chain.accumulators) == count and loop.chain.cycles == 4
    assert loop.elements == 16 * count
    per_vector = loop.cycles / count
    assert per_vector == max(4 / count, 0.5, (count + 2) / 4 / count)
    table = {k: cycles for k, cycles, _ in loop.accumulators_table((1, 2, 4, 8))}
    assert table[1] == 4 and table[2] == 2 and list(table.values()) == sorted(table.values(), reverse=True)
    if count in table:
        assert table[count] == per_vector


def test_a_chain_that_goes_through_two_registers_counts_half():
    crossed = only("vaddps %zmm0,%zmm2,%zmm1\nvmulps %zmm3,%zmm3,%zmm0\nvaddps %zmm1,%zmm2,%zmm0")
    assert crossed.chain.cycles == 8  # an addition into zmm1 and one out of it, in one iteration
    swapped = only("vaddps %zmm0,%zmm2,%zmm5\nvmovaps %zmm1,%zmm0\nvmovaps %zmm5,%zmm1")
    assert swapped.chain.cycles == 2  # one addition of 4 cycles for every two iterations
    assert set(swapped.chain.registers) >= {"zmm0", "zmm1"}
    assert only("vaddps (%rax),%zmm2,%zmm0\nadd $64,%rax").chain.registers == ("rax",)


def test_a_chain_through_an_address_waits_for_the_load():
    assert only("mov (%rax),%rax").chain.cycles == 5


def test_what_is_kept_in_the_stack_frame_is_carried_on():
    """One accumulator that was never given a register: every addition waits for a store and a load as well."""
    loop = only("vmovaps (%rsp),%zmm3\nvaddps (%rax),%zmm3,%zmm2\nvmovaps %zmm2,(%rsp)\nadd $64,%rax", "skylake-x")
    assert loop.chain.cycles == FORWARD + 4 and loop.chain.accumulators == ("[rsp+0]",) and loop.elements == 16
    elsewhere = only("vmovaps 64(%rsp),%zmm3\nvaddps (%rax),%zmm3,%zmm2\nvmovaps %zmm2,(%rsp)\nadd $64,%rax")
    assert elsewhere.chain.accumulators == () and elsewhere.chain.cycles == 1


def test_a_call_ends_every_chain_through_registers_it_may_change():
    loop = only("vaddps %zmm0,%zmm1,%zmm0\ncall *(%r15)\nvmovups %zmm0,(%r14)\nadd $64,%r14")
    assert loop.chain.accumulators == () and len(loop.calls) == 1 and "are not counted" in str(loop)


def test_division_keeps_the_divider_busy():
    for width, cycles in (("xmm", 3), ("ymm", 5), ("zmm", 10)):
        loop = only(f"vdivps %{width}1,%{width}2,%{width}3\nadd $1,%rax")
        assert loop.cycles == cycles and "divider" in loop.bounds[0].reason


@pytest.mark.skipif(shutil.which("llvm-mca") is None, reason="llvm-mca is not installed")
@pytest.mark.parametrize(("machine", "processor"), [("skylake-x", "skylake-avx512"), ("ice-lake", "icelake-server")])
@pytest.mark.parametrize(
    "text",
    [
        "vaddps (%rax),%zmm1,%zmm1\nvaddps 64(%rax),%zmm2,%zmm2\nadd $128,%rax",
        "vfmadd231ps %ymm1,%ymm2,%ymm3\nvmulps %ymm1,%ymm2,%ymm4\nvaddps %ymm4,%ymm3,%ymm5\nadd $32,%rax",
        "vmovups (%rax),%zmm1\nvpermt2ps %zmm1,%zmm2,%zmm3\nvunpcklps %zmm1,%zmm3,%zmm4\nvmovups %zmm4,(%rbx)",
        "vdivps %zmm1,%zmm2,%zmm3",
        "vcmpltps %zmm1,%zmm2,%k1\nvmaxps %zmm1,%zmm2,%zmm4\nvpaddd %zmm1,%zmm2,%zmm5",
        "vmovups (%rax),%ymm1\nvmovups 32(%rax),%ymm2\nvmovups 64(%rax),%ymm3\nvaddps %ymm1,%ymm2,%ymm2",
    ],
)
def test_the_limit_is_what_llvm_mca_says(machine, processor, text, tmp_path):
    """LLVM's own tables of the same processors: their largest resource, without the chain, over a loop."""
    source = tmp_path / "loop.s"
    source.write_text(text + "\n")
    command = ["llvm-mca", f"-mcpu={processor}", "-instruction-info=0", "-resource-pressure=1", str(source)]
    output = subprocess.run(command, capture_output=True, text=True)
    if output.returncode:
        pytest.skip(f"this llvm-mca does not know {processor}")
    theirs = float(re.search(r"Block RThroughput: ([\d.]+)", output.stdout)[1])
    loop = only(text, machine)
    own = max(bound.cycles for bound in loop.bounds[:2])
    jump = 1.0  # the loop here has one more instruction
    assert own == pytest.approx(theirs, abs=0.55) or own == jump > theirs, (own, theirs)


# -- which processor ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "key", "words"),
    [
        (("GenuineIntel", 6, 85, "avx512f"), "skylake-x", "model number, 85"),
        (("GenuineIntel", 6, 106, "avx512f"), "ice-lake", "model number, 106"),
        (("GenuineIntel", 6, 143, "avx512f amx_tile"), "golden-cove", "AMX"),
        (("GenuineIntel", 6, 167, "avx512f avx512_fp16"), "golden-cove", "AMX"),  # a hypervisor's number
        (("GenuineIntel", 6, 151, "avx2"), "golden-cove", "model number, 151"),
        (("AuthenticAMD", 25, 17, "avx512f"), "zen-4", "family"),
        (("AuthenticAMD", 23, 49, "avx2"), "zen-4", "assumption"),
        (("GenuineIntel", 6, 60, "avx2"), "skylake-x", "assumption"),
    ],
)
def test_the_model_follows_the_processor(facts, key, words):
    vendor, family, model, flags = facts
    text = f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: A B\nflags\t\t: {flags}\n"
    found = choose(cpuinfo=text)
    assert found.model.key == key and words in found.reason and "A B" in found.reason
    assert "assumption" in choose(cpuinfo="").reason


def test_models_are_chosen_by_name():
    assert choose("Sapphire Rapids").model is MODELS["golden-cove"] and choose("zen 4").model.key == "zen-4"
    with pytest.raises(OptionError, match="pentium"):
        choose("pentium")


# -- kernels -----------------------------------------------------------------------------------------------------------

vectors = pytest.mark.skipif(host_instruction_set() not in ("avx512", "avx2"), reason="needs AVX2 or AVX-512")
BITS = {"avx512": 512, "avx2": 256}


def kernel_of(function, *inputs, **options):
    return staxlab.explain(function, *inputs, options=options).kernels[0]


@vectors
@pytest.mark.parametrize("accumulators", [2, 4, 8])
def test_a_sum_has_as_many_vector_additions_as_accumulators(accumulators):
    kernel = kernel_of(lambda x: x.sum(-1), torch.randn(64, 4096), accumulators=accumulators)
    loop = kernel.inner_loop()
    width = BITS[host_instruction_set()]
    assert loop.count("add, multiply", width) == loop.loads == len(loop.chain.accumulators) == accumulators
    assert loop.elements == kernel.launch["vector_lanes"] * kernel.launch["accumulators"] == width // 32 * accumulators
    assert loop.bytes_loaded == 4 * loop.elements and loop.stores == 0
    assert loop.origins <= kernel.origins and loop.origins


@vectors
def test_one_accumulator_is_bound_by_its_chain():
    loop = kernel_of(lambda x: x.sum(-1), torch.randn(64, 4096), accumulators=1).inner_loop()
    assert loop.count("add, multiply") == 1 and len(loop.chain.accumulators) == 1
    assert loop.limit.name == "dependence chain" and loop.cycles >= 3


@vectors
def test_a_pointwise_kernel_loads_computes_and_stores():
    kernel = kernel_of(lambda x, w: (x + w) * x, torch.randn(4096), torch.randn(4096))
    loop = kernel.inner_loop()
    width = BITS[host_instruction_set()]
    assert loop.count("add, multiply", width) == 2 and loop.stores == 1
    assert loop.bytes_loaded in (2 * width // 8, 3 * width // 8) and loop.bytes_stored == width // 8
    assert loop.elements == kernel.launch["vector_lanes"] and loop.chain.accumulators == ()


@vectors
def test_narrower_instructions_are_counted_as_such():
    loop = kernel_of(lambda x: x.sum(-1), torch.randn(64, 4096), instruction_set="avx2").inner_loop()
    assert loop.count("add, multiply", 256) == 4 and loop.count("add, multiply", 512) == 0 and loop.elements == 32


@vectors
def test_half_precision_is_widened_and_double_is_counted_by_eights():
    half = kernel_of(lambda x: x.sum(-1), torch.randn(64, 4096).to(torch.bfloat16)).inner_loop()
    assert half.count("convert, round") and half.elements == 4 * 16 // (64 // (BITS[host_instruction_set()] // 8))
    assert half.bytes_loaded >= 2 * half.elements  # halves of a vector may be read twice
    double = kernel_of(lambda x: x.sum(-1), torch.randn(64, 4096, dtype=torch.float64)).inner_loop()
    assert double.elements * 8 == double.bytes_loaded


@vectors
def test_a_transposing_tile_shuffles():
    kernel = kernel_of(lambda x, y: x.t() + y, torch.randn(512, 256), torch.randn(256, 512))
    loop = kernel.inner_loop("skylake-x")
    lanes = kernel.launch["vector_lanes"]
    assert loop.elements == lanes * lanes
    rounds = int(math.log2(lanes))
    assert loop.count("shuffle") >= lanes * rounds / 2 and "p5" in loop.bounds[0].reason


def test_what_has_no_inner_loop_says_so():
    kernel = kernel_of(lambda x: x + 1, torch.randn(3))
    with pytest.raises(OptionError, match="no loop"):
        inner_loop(dataclasses.replace(kernel))
    gpu = staxlab.explain(lambda x: x + 1, torch.randn(64), target="sm_90").kernels[0]
    with pytest.raises(OptionError, match="is triton"):
        gpu.inner_loop()
    with pytest.raises(OptionError, match="no port model"):
        kernel_of(lambda x: x + 1, torch.randn(4096)).inner_loop("pentium")


def test_a_fused_kernel_has_several_and_the_hottest_comes_first():
    kernel = kernel_of(lambda x: torch.softmax(x, -1), torch.randn(64, 2048))
    found = inner_loops(kernel)
    assert len(found) >= 2 and found[0].function == kernel.inner_loop().function
    assert all(loop.depth == found[0].depth for loop in found[:2])


# -- pictures ----------------------------------------------------------------------------------------------------------


def test_it_draws_itself_and_says_the_same_in_words():
    loop = loops_of("row_sum", lines(SUM), "golden-cove")[0]
    bundle = loop._repr_mimebundle_()
    html = bundle["text/html"]
    assert "drawing failed" not in html and len(html) < SIZE_CAP and bundle["text/plain"] == str(loop)
    assert references(html) == [] and "dependence chain" in read(stripped(html)).text
    for picture, words in (
        (mix_chart(loop), "4 add, multiply 512 bits"),
        (bounds_chart(loop), "the limit: dependence chain"),
        (ports_chart(loop), "p0 2.00"),
    ):
        (svg,) = read(picture).find("svg")
        assert svg.attributes["role"] == "img" and words in svg.attributes["aria-label"]


def test_the_columns_of_the_ports_add_up_to_the_micro_operations():
    loop = loops_of("row_sum", lines(SUM), "golden-cove")[0]
    drawn = read(ports_chart(loop)).find("rect")
    heights = sum(float(e.attributes["height"]) for e in drawn)
    busy = sum(cycles for _, (_, cycles) in loop.micro_operations)
    most = max(sum(kinds.values()) for kinds in loop.pressure.values())
    assert heights == pytest.approx(busy / most * (190 - 16), rel=0.01)


def test_the_model_of_this_machine_is_found():
    assert port_model.choose().model.key in MODELS
