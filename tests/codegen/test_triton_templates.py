"""Matrix templates on a GPU that is not here (Section 9.8): values of every template, prologues and epilogues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import staxlab
from staxlab.errors import CodegenError, OptionError
from staxlab.loops.expressions import Expr
from staxlab.measure.rounding import gamma, unit_roundoff
from staxlab.runtime.artifact import load

pytest.importorskip("triton")

from staxlab.codegen.triton.generate import triton_kernel
from staxlab.codegen.triton.interpreter import interpret

HALVES = (torch.float16, torch.bfloat16)
DTYPES = (torch.float32, *HALVES)
TEMPLATES = ("template", "template-tma")


def filled(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def explained(function: Callable, *inputs: torch.Tensor, target: str = "sm_90", **options):
    return staxlab.explain(function, *inputs, target=target, options={"matmul": "template"} | options)


def interpreted(compilation, inputs) -> tuple[torch.Tensor, ...]:
    def runs(kernel):
        return lambda *tensors: interpret(kernel, tensors)

    launchers = {kernel.name: runs(kernel) for kernel in compilation.kernels if kernel.language == "triton"}
    return load(compilation.wrapper, launchers).call(list(inputs))


def within_the_bound(found: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """A product is within ``gamma(k + 1) |A| |B|`` of the exact one, and one rounding to what is stored (Section 6.5).
    Where that is not finite, it is what eager says."""
    depth = a.shape[-1]
    exact = a.double() @ b.double()
    bound = gamma(depth + 1) * (a.double().abs() @ b.double().abs())
    unit = unit_roundoff(found.dtype)
    if found.dtype != torch.float32:
        bound = bound + unit * (exact.abs() + bound) + torch.finfo(found.dtype).smallest_normal
    regular = exact.isfinite()
    if not bool(regular.all()):
        torch.testing.assert_close(found[~regular], (a @ b)[~regular], equal_nan=True)
    assert bool(((found.double() - exact).abs() <= bound)[regular].all())


def product(a: torch.Tensor, b: torch.Tensor, forms: set[str] | None = None, **options) -> torch.Tensor:
    compilation = explained(torch.matmul, a, b, **options)
    assert [kernel.language for kernel in compilation.kernels] == ["triton"] * len(compilation.kernels)
    if forms is not None:
        assert {kernel.launch["form"] for kernel in compilation.kernels} == forms
    (found,) = interpreted(compilation, (a, b))
    assert found.dtype == a.dtype and found.shape == (*a.shape[:-1], b.shape[-1])
    within_the_bound(found, a, b)
    return found


# -- products ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 17, 33), (33, 3, 129), (129, 64, 17), (70, 48, 1)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("template", TEMPLATES)
def test_products_of_odd_sizes(template, dtype, sizes):
    rows, columns, depth = sizes
    product(filled(rows, depth, dtype=dtype), filled(depth, columns, dtype=dtype, seed=1), matmul=template)


@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_accelerator_fetches_rows_and_columns(dtype, turned):
    """With multiples of 16 bytes between rows; the edges of the result hang over its last tiles."""
    rows, columns, depth = 136, 72, 40
    a, b = filled(rows, depth, dtype=dtype), filled(depth, columns, dtype=dtype, seed=1)
    a = a.t().contiguous().t() if turned[0] else a
    b = b.t().contiguous().t() if turned[1] else b
    product(a, b, {"persistent-tma"}, matmul="template-tma")


@pytest.mark.parametrize("seen", ["every other", "flipped gaps", "expanded", "inside"])
def test_what_the_accelerator_cannot_fetch_is_tiled_and_the_decision_says_why(seen):
    a = {
        "every other": filled(32, 64)[:, ::2],
        "flipped gaps": filled(96, 40)[::3, :32],
        "expanded": filled(1, 32).expand(32, 32),
        "inside": filled(33, 35)[1:, 2:34],
    }[seen]
    compilation = explained(torch.mm, a, filled(32, 32), matmul="template-tma")
    (kernel,) = compilation.kernels
    if seen == "flipped gaps":  # rows lie 480 bytes apart: the accelerator takes them
        assert kernel.launch["form"] == "persistent-tma"
    else:
        assert kernel.launch["form"] == "tiled"
        assert "16 bytes" in next(d.reason for d in kernel.decisions if d.topic == "template")
    within_the_bound(interpreted(compilation, (a, filled(32, 32)))[0], a, filled(32, 32))


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_batches(dtype, template):
    a, b = filled(2, 3, 33, 17, dtype=dtype), filled(3, 17, 40, dtype=dtype, seed=1)
    product(a, b, {"tiled"}, matmul=template)
    product(a[0].transpose(0, 1), filled(33, 17, 5, dtype=dtype, seed=2), {"tiled"}, matmul=template)


@st.composite
def strided(draw, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """A matrix of any strides: transposed, with gaps, the same along a dimension, inside other memory."""
    gaps = [draw(st.sampled_from([1, 1, 2, 3])) for _ in shape]
    order = (1, 0) if draw(st.booleans()) else (0, 1)
    same, lead = draw(st.sampled_from([None, None, None, 0, 1])), draw(st.integers(0, 3))
    base = [1 if d == same else n * g for d, (n, g) in enumerate(zip(shape, gaps, strict=True))]
    memory = filled(lead + base[0] * base[1], dtype=dtype, seed=draw(st.integers(0, 99)))[lead:]
    whole = memory.view(*(base[d] for d in order)).permute(*order)
    kept = whole[tuple(slice(None, None, 1 if d == same else g) for d, g in enumerate(gaps))]
    return kept.expand(*shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("depth", [1, 23])
def test_an_operand_that_is_the_same_for_every_k_ends_with_it_too(dtype, depth):
    """Its loads have no subscript to compare with the end: copies past it must not be added, nor an infinity there
    meet the zeros of the other operand."""
    a, b = filled(40, 1, dtype=dtype).expand(40, depth), filled(1, 24, dtype=dtype, seed=1).expand(depth, 24)
    product(a, b)
    infinite = a.clone()[:, :1].fill_(float("inf")).expand(40, depth)
    product(infinite, filled(depth, 24, dtype=dtype, seed=2))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_sizes_and_strides(data):
    rows, columns, depth = (data.draw(st.integers(1, 70)) for _ in range(3))
    dtype, template = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from(TEMPLATES))
    a, b = data.draw(strided((rows, depth), dtype)), data.draw(strided((depth, columns), dtype))
    product(a, b, matmul=template)


@pytest.mark.parametrize("template", TEMPLATES)
def test_products_of_nothing(template):
    for rows, columns, depth in ((0, 5, 7), (5, 0, 7), (5, 7, 0)):
        compilation = explained(torch.mm, filled(rows, depth), filled(depth, columns), matmul=template)
        (found,) = interpreted(compilation, (filled(rows, depth), filled(depth, columns)))
        assert torch.equal(found, torch.zeros(rows, columns))


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_and_infinities_stay_where_they_belong(dtype, template):
    """Also beside the edge: what a tile reads past it must not meet an infinity."""
    nan, inf = float("nan"), float("inf")
    a, b = filled(40, 24, dtype=dtype), filled(24, 40, dtype=dtype, seed=1)
    a[3, 5], a[39, 23], b[7, 9], b[23, 39] = nan, inf, -inf, inf
    found = product(a, b, matmul=template)
    assert torch.equal(found.isnan(), (a @ b).isnan()) and torch.equal(found.isinf(), (a @ b).isinf())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("depth", [2560, 2600, 5000])
def test_a_long_sum_is_cut_into_segments(dtype, depth):
    """Partial products first, then their sum in order, then what follows: two kernels, with no atomic operation."""
    a, b, bias = filled(16, depth, dtype=dtype), filled(depth, 20, dtype=dtype, seed=1), filled(20, dtype=dtype, seed=2)
    compilation = explained(lambda a, b, c: torch.relu(torch.addmm(c, a, b)), a, b, bias)
    decision = next(d for d in compilation.loops.decisions if d.topic == "split-k")
    first, second = compilation.kernels
    length = dict(decision.inputs)["length"]
    assert decision.choice == compilation.schedule.nodes[0].ranges[0] == len(range(0, depth, length))
    assert not any("atomic" in kernel.source for kernel in compilation.kernels)
    assert first.launch["form"] == "tiled" and second.launch["form"] in ("persistent", "looped")
    (found,) = interpreted(compilation, (a, b, bias))
    exact = torch.relu(a.double() @ b.double() + bias.double())
    bound = gamma(depth + 2) * (a.double().abs() @ b.double().abs() + bias.double().abs())
    bound = bound + unit_roundoff(dtype) * (exact + bound)
    assert bool(((found.double() - exact).abs() <= bound).all())


# -- prologues and epilogues -------------------------------------------------------------------------------------------

EPILOGUES: dict[str, Callable] = {
    "bias and relu": lambda a, b, c: torch.relu(a @ b + c),
    "linear and gelu": lambda a, b, c: F.gelu(F.linear(a, b.t(), c)),
    "addmm": lambda a, b, c: torch.addmm(c, a, b, beta=2, alpha=3).tanh(),
    "addmm, no addend": lambda a, b, c: torch.addmm(c, a, b, beta=0) + 1,
    "residual": lambda a, b, c: (a @ b) * c + (b.sum() * 0 + 1).to(a.dtype) + a[:, :1],
    "two results": lambda a, b, c: ((p := a @ b), torch.sigmoid(p)),
    "chain": lambda a, b, c: ((p := torch.relu(a @ b)), p * 2 - c),
    "turned": lambda a, b, c: (a @ b).t() + 1,
    "cast": lambda a, b, c: (a @ b).float() * 3,
    "silu": lambda a, b, c: F.silu(a @ b) * c,
}


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", EPILOGUES)
def test_an_epilogue_changes_no_bit(name, dtype, template):
    """What is made of a tile in registers is what would be made of the stored product: rounded where the program rounds
    it. And it is what eager makes, within the bound of the product carried through functions of slope 5 at most."""
    a, b, c = filled(72, 40, dtype=dtype), filled(40, 56, dtype=dtype, seed=1), filled(56, dtype=dtype, seed=2)
    fused = explained(EPILOGUES[name], a, b, c, matmul=template)
    apart = explained(EPILOGUES[name], a, b, c, matmul=template, fuse=False)
    wanted = EPILOGUES[name](a, b, c)
    unit = max(unit_roundoff(dtype), unit_roundoff())
    error = 5 * (gamma(41) * float((a.double().abs() @ b.double().abs()).max()) + 8 * unit * 30)
    results = wanted if isinstance(wanted, tuple) else (wanted,)
    for one, other, eager in zip(interpreted(fused, (a, b, c)), interpreted(apart, (a, b, c)), results, strict=True):
        assert torch.equal(one, other) and one.stride() == eager.stride() and one.dtype == eager.dtype
        torch.testing.assert_close(one, eager, rtol=8 * unit, atol=error)


def test_an_epilogue_saves_the_round_trip_of_the_product():
    """Of relu(A B + b), writing and reading m n elements (Section 9.8)."""
    a, b, c = filled(128, 64), filled(64, 96), filled(96)

    def f(a, b, c):
        return torch.relu(a @ b + c)

    fused, apart = explained(f, a, b, c), explained(f, a, b, c, fuse=False)
    assert len(fused.kernels) == 1 and len(apart.kernels) == 2
    assert apart.kernels.bytes_moved - fused.kernels.bytes_moved == 2 * 128 * 96 * 4
    decision = next(d for d in fused.kernels[0].decisions if d.topic == "epilogue")
    facts = dict(decision.inputs)
    assert facts["bytes fused"] == fused.kernels.bytes_moved and facts["bytes apart"] == apart.kernels.bytes_moved


def test_a_kept_product_is_stored_once_and_not_read_again():
    a, b = filled(64, 32), filled(32, 64)
    (kernel,) = explained(lambda a, b: ((p := a @ b), torch.relu(p)), a, b).kernels
    assert kernel.source.count("tl.store") == 2 and kernel.source.count("tl.load") == 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_makes_an_operand_goes_into_its_loads(dtype):
    """A function of nothing is not nothing: 0 + 1 must not be added past the end of k."""
    a, b = filled(40, 23, dtype=dtype), filled(23, 36, dtype=dtype, seed=1)

    def f(a, b):
        return (a + 1) @ (b + 0.5)

    compilation = explained(f, a, b)
    (kernel,) = compilation.kernels
    (found,) = interpreted(compilation, (a, b))
    assert "past the end" in kernel.source
    within_the_bound(found, a + 1, b + 0.5)


def test_what_is_costly_is_made_once_and_not_for_every_tile():
    a, b = filled(40, 23), filled(23, 36)
    compilation = explained(lambda a, b: torch.exp(a) @ torch.relu(b), a, b)
    first, second = compilation.kernels
    assert "libdevice.exp" in first.source and "libdevice.exp" not in second.source and "relu" in second.source
    within_the_bound(interpreted(compilation, (a, b))[0], a.exp(), b.relu())


def test_lines_know_what_they_serve():
    def f(a, b, c):
        return torch.relu(torch.abs(a) @ b + c)

    compilation = explained(f, filled(64, 64), filled(64, 64), filled(64))
    names = {node.name: node.id for node in compilation.graph}
    (kernel,) = compilation.kernels
    where = {line.text.strip(): line.origins for line in kernel.lines}
    absolute, product, add, relu = (names[n] for n in ("abs", "matmul", "add", "relu"))
    assert next(o for t, o in where.items() if "tl.abs" in t) == {absolute}
    assert next(o for t, o in where.items() if "tl.dot" in t) == {product}
    assert product in next(o for t, o in where.items() if t.startswith("width"))
    assert next(o for t, o in where.items() if "acc +" in t) == {add}
    assert next(o for t, o in where.items() if "tl.maximum" in t) == {relu}
    assert next(o for t, o in where.items() if "tl.store" in t) == {relu}


# -- configurations ----------------------------------------------------------------------------------------------------


def test_any_feasible_configuration_computes_the_same_product():
    a, b, c = (filled(*s, dtype=torch.bfloat16, seed=n) for n, s in enumerate(((100, 72), (72, 88), (88,))))
    compilation = explained(lambda a, b, c: torch.relu(a @ b + c), a, b, c)
    (kernel,) = compilation.kernels
    tuning, wanted = kernel.tuning, interpreted(compilation, (a, b, c))[0]
    assert tuning.candidates[0] == tuning.rule and 1 <= len(tuning.candidates) <= 6
    chosen = [s for s in tuning.space if s[3] == 4 and s[-1] == 3 and tuning.feasible(s)][::7]
    assert {s[4] for s in chosen} == {1, 2, 4}
    for configuration in chosen:
        made, out = tuning.kernel(configuration), torch.full((100, 88), 77.0, dtype=torch.bfloat16)
        inputs = dict(zip((argument.buffer for argument in made.arguments), (a, b, c), strict=False))
        interpret(made, [inputs.get(argument.buffer, out) for argument in made.arguments])
        torch.testing.assert_close(out, wanted, rtol=2**-7, atol=2**-7)
    with pytest.raises(OptionError, match="not in the configuration space"):
        tuning.kernel((3, 3, 3, 8, 1, 4, 3))
    with pytest.raises(CodegenError, match="registers or shared memory"):
        tuning.kernel((16, 16, 16, 8, 1, 8, 6))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_accelerator_stores_what_lies_by_rows(dtype):
    """And nothing else: what is turned, or has rows that do not lie at multiples of 16 bytes, is stored as ever."""
    a, b, c = filled(72, 40, dtype=dtype), filled(40, 136, dtype=dtype, seed=1), filled(136, dtype=dtype, seed=2)

    def f(a, b, c):
        p = a @ b
        return p, torch.relu(p + c), (p.t() + 1).contiguous(), p > 0

    compilation = explained(f, a, b, c)
    wanted = interpreted(compilation, (a, b, c))
    (kernel,) = compilation.kernels
    blocks = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8, "PROGRAMS": 3, "TMA_STORE": 1}
    made = triton_kernel(compilation.schedule, compilation.schedule.nodes[0], "", compilation.device, (blocks, 4, 2))
    assert made.source.count(".store(") - made.source.count("tl.store(") == 2 and made.source.count("tl.store(") == 2
    inputs = dict(zip(compilation.schedule.inputs, (a, b, c), strict=True))
    outputs = {
        argument.buffer: torch.zeros_like(compiled)
        for argument in made.arguments
        if argument.role == "output"
        for compiled in [wanted[[o.name for o in compilation.schedule.outputs].index(argument.buffer)]]
    }
    interpret(made, [inputs.get(x.buffer, outputs.get(x.buffer)) for x in made.arguments])
    for output, compiled in zip(compilation.schedule.outputs, wanted, strict=True):
        if compiled.is_floating_point():
            loose = 2e-5 if dtype == torch.float32 else 2e-2
            torch.testing.assert_close(outputs[output.name], compiled, rtol=loose, atol=loose)
        else:
            assert torch.equal(outputs[output.name], compiled)


def test_a_block_that_does_not_divide_must_not_meet_a_kernel_without_its_mask():
    (kernel,) = explained(torch.mm, filled(64, 64), filled(64, 64)).kernels
    assert "tl.static_assert(M % BLOCK_M == 0" in kernel.source and "m_mask" not in kernel.source
    compilation = explained(torch.mm, filled(65, 63), filled(63, 64))
    (kernel,) = compilation.kernels
    assert "m_mask" in kernel.source and "k_row_mask" in kernel.source and " n_mask" not in kernel.source
    node = compilation.schedule.nodes[0]
    blocks = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 16, "GROUP_M": 8}
    other = triton_kernel(compilation.schedule, node, "_other", compilation.device, (blocks, 4, 2))
    assert "m_mask" in other.source and other.launch["grid"] == (5, 1, 1)


def test_64_bit_subscripts_where_32_do_not_suffice():
    """Judged without the memory: the left operand's rows are moved 2**31 elements apart."""
    schedule = explained(torch.mm, filled(2, 16), filled(16, 16)).schedule
    (node,) = schedule.nodes
    name, body = node.reads[0].buffer, node.body
    assert "to(tl.int64)" not in triton_kernel(schedule, node, "", schedule.device).source
    far = (1 << 31) * Expr.of(body.indices[0])
    changed = tuple(replace(s, args=(name, s.args[1] + far)) if name in s.args else s for s in body.statements)
    wide = replace(node, body=replace(body, statements=changed))
    source = triton_kernel(schedule, wide, "", schedule.device).source
    assert "m = tile_m.to(tl.int64) * BLOCK_M" in source


@pytest.mark.parametrize("value", ["cublas", True, None, 3])
def test_an_unknown_choice_is_refused_by_name(value):
    with pytest.raises(OptionError, match="matmul"):
        explained(torch.mm, filled(4, 4), filled(4, 4), matmul=value)
