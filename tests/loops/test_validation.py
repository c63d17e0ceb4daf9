"""Translation validation through the option: right kernels pass, and a damaged one of any class is found."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab.codegen import cpp
from staxlab.codegen.cpp import operations, reductions
from staxlab.codegen.kernel import KernelSet
from staxlab.errors import ValidationError
from staxlab.provenance import Line
from tests.codegen.cpp_support import RUNNABLE

needs_vectors = pytest.mark.skipif(RUNNABLE[0] != "avx512", reason="the texts below are those of 16 lanes")


def data(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 7, shape, generator=generator).to(dtype)


def validated(function: Callable, *inputs: torch.Tensor, **options):
    """The compilation of a function whose kernels were all validated."""
    compiled = staxlab.compile(function, options={"validate": True, **options})
    compiled(*inputs)
    compilation = compiled.versions[0].compilation
    assert compilation.fallback_reason is None, compilation.fallback_reason
    return compilation


# One program for each class of kernel. All of them round to bfloat16, multiply and subtract.
def body(x):
    return x.to(torch.bfloat16).float() * 2 - 1


CLASSES: dict[str, tuple[Callable, tuple[torch.Tensor, ...]]] = {
    "pointwise": (lambda x, y: torch.where(x > 0, body(x), y[:, None]), (data(37, 70), data(37))),
    "row reduction": (lambda x: body(x).sum(-1), (data(6, 167),)),
    "column reduction": (lambda x: body(x).sum(0), (data(301, 107),)),
    "full reduction": (lambda x: body(x).sum(), (data(70_003),)),
    "argmax": (lambda x: (x - body(x) - 2).argmax(-1), (data(6, 167),)),
    "indirect": (lambda x, i: body(x[i]), (data(37, 70), data(19, dtype=torch.int64))),
    "concatenation": (lambda x, y: body(torch.cat([x, y], 1)), (data(37, 70), data(37, 9))),
    "transposed": (lambda x: body(x).t().contiguous(), (data(37, 70),)),
}


@pytest.mark.parametrize("name", CLASSES)
def test_right_kernels_pass(name):
    function, inputs = CLASSES[name]
    validation = validated(function, *inputs).validation
    assert validation.passed and validation.require() is validation
    for kernel in validation.kernels:
        assert kernel.compared and kernel.free == 0 and len(kernel.data) >= 6
        assert kernel.order == (2 if name in ("row reduction", "full reduction") else 1)
        assert kernel.deviation <= kernel.bound
        assert kernel.verdict == ("equal bit for bit" if kernel.order == 1 else "within the bound")


def test_it_costs_nothing_when_it_is_off():
    function, inputs = CLASSES["row reduction"]
    compilation = staxlab.explain(function, *inputs)
    assert compilation.validation is None and "validation" not in compilation.timings


def test_a_target_that_is_not_here_is_not_validated():
    compiled = staxlab.explain(lambda x: x + 1, data(4), target="sm_90", options={"validate": True})
    assert compiled.validation is None and compiled.fallback_reason is None


# -- planted faults ----------------------------------------------------------------------------------------------------

# fault: {class of kernel: (text of the kernel, what takes its place)}; the printer's own tables are changed by PRINTER.
TEXTS: dict[str, dict[str, tuple[str, str]]] = {
    "mask dropped": {
        "pointwise": (r"(store_vector\(.*), lanes\)", r"\1)"),
        "row reduction": (r"keep\(first<\d+>", "keep(first<16>"),
        "column reduction": (r"(store_vector\(.*), first<\d+>\)", r"\1)"),
        "full reduction": (r"keep\(first<\d+>", "keep(first<16>"),
        "argmax": (r"keep\(first<\d+>", "keep(first<16>"),
        "indirect": (r"(store_vector\(.*), lanes\)", r"\1)"),
        "concatenation": (r"= select\(t4, t5, t2\)", "= t5"),
        "transposed": (r"first<5>", "first<9>"),
    },
    "wrong stride": {
        "pointwise": (r"in_x \+ 70\*i0", "in_x + 69*i0"),
        "row reduction": (r"167\*i0", "166*i0"),
        "column reduction": (r"107\*r0", "106*r0"),
        "full reduction": (r"in_x \+ r0", "in_x + r0/2"),
        "argmax": (r"167\*i0", "166*i0"),
        "indirect": (r"70\*subscript0", "69*subscript0"),
        "concatenation": (r"in_y \+ 9\*i0", "in_y + 8*i0"),
        "transposed": (r"70\*i1, 70", "70*i1, 69"),
    },
    "dropped tail": {
        "pointwise": (r"^ *element\(64, first<\d+>\);$", ""),
        "row reduction": (r"^.*= keep\(.*$", ""),
        "column reduction": (r"^.*= acc \+ element\(i0, r0, first<\d+>\);$", ""),
        "full reduction": (r"^.*= keep\(.*$", ""),
        "argmax": (r"^.*= keep\(.*$", ""),
        "indirect": (r"^ *element\(64, first<\d+>\);$", ""),
        "concatenation": (r"^ *element\(72, first<\d+>\);$", ""),
        "transposed": (r"^ *else tile\(.*$", ""),
    },
    "lost accumulator": {
        "row reduction": (r"\(acc2 \+ acc3\)", "acc2"),
        "column reduction": (r"16, acc1\)", "16, acc0)"),
        "full reduction": (r"\(acc2 \+ acc3\)", "acc2"),
        "argmax": (r"\(acc2, acc3\)", "(acc2, acc2)"),
    },
    "wrong cast": {
        "pointwise": (r"round_bf16\(", "("),
        "row reduction": (r"round_bf16\(", "("),
        "column reduction": (r"round_bf16\(", "("),
        "full reduction": (r"round_bf16\(", "round_f16("),
        "argmax": (r"\(i64\)result", "(i64)(i8)result"),
        "indirect": (r"round_bf16\(", "("),
        "concatenation": (r"round_bf16\(", "("),
        "transposed": (r"round_bf16\(", "("),
    },
}
REDUCED = ("row reduction", "column reduction", "full reduction", "argmax")
PRINTER: dict[str, tuple[Callable, tuple[str, ...]]] = {
    # A maximum of x - 1 is where that of x + 1 is: argmax has x itself besides.
    "operator flipped": (lambda patch: patch.setitem(operations.FLOAT, "sub", "{0} + {1}"), tuple(CLASSES)),
    "wrong neutral element": (
        lambda patch: patch.setattr(reductions, "neutral_element", lambda kind, dtype: 0 if kind == "argmax" else 1),
        REDUCED,
    ),
}
PAIRS = [(fault, name) for fault, texts in TEXTS.items() for name in texts]
PAIRS += [(fault, name) for fault, (_, names) in PRINTER.items() for name in names]
QUICK = {("operator flipped", "pointwise"), ("dropped tail", "row reduction"), ("lost accumulator", "full reduction"),
         ("wrong neutral element", "argmax"), ("mask dropped", "transposed")}  # fmt: skip


def plant(monkeypatch, fault: str, name: str) -> None:
    if fault in PRINTER:
        PRINTER[fault][0](monkeypatch)
        return
    pattern, wrong = TEXTS[fault][name]
    generate = cpp.generate

    def damaged(*arguments):
        kernels = []
        for kernel in generate(*arguments):
            lines = tuple(Line(re.sub(pattern, wrong, line.text), line.origins) for line in kernel.lines)
            assert lines != kernel.lines, f"the text to damage is not there:\n{kernel.source}"
            kernels.append(dataclasses.replace(kernel, lines=lines))
        return KernelSet(tuple(kernels))

    monkeypatch.setattr(cpp, "generate", damaged)


@needs_vectors
@pytest.mark.parametrize(
    ("fault", "name"), [pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow) for pair in PAIRS]
)
def test_a_planted_fault_is_found(fault, name, monkeypatch):
    function, inputs = CLASSES[name]
    plant(monkeypatch, fault, name)
    with pytest.raises(ValidationError) as found:
        validated(function, *inputs)
    error = found.value
    (kernel,) = error.validation.failures
    assert kernel.verdict == "FAILED" and kernel.kernel in str(error) and "FAILED" in str(error.validation)
    assert error.where is not None and error.where.file == __file__
    assert kernel.mismatch.element or kernel.mismatch.what or not kernel.mismatch.elements > 1


# -- the corpus --------------------------------------------------------------------------------------------------------


def images(*shape: int) -> torch.Tensor:
    return data(*shape).to(torch.float32)


CORPUS: dict[str, tuple[Callable, tuple[torch.Tensor, ...]]] = {
    "softmax": (lambda x: F.softmax(x, -1), (data(33, 70),)),
    "log_softmax over columns": (lambda x: F.log_softmax(x, 0), (data(33, 70),)),
    "layer_norm": (lambda x: F.layer_norm(x, (70,)), (data(33, 70),)),
    "gelu": (lambda x: F.gelu(x) + F.gelu(x, approximate="tanh"), (data(33, 70),)),
    "activations": (lambda x: F.silu(x) * F.softplus(x) + F.elu(x) - F.hardswish(x), (data(33, 70),)),
    "cross entropy": (lambda x, y: F.cross_entropy(x, y), (data(33, 7), data(33, dtype=torch.int64))),
    "variance": (lambda x: x.var(-1) + x.std(0)[:33], (data(33, 70),)),
    "product": (lambda x: x.prod(-1), (data(33, 70),)),
    "extremes": (lambda x: x.amax(-1) - x.amin(0)[:33], (data(33, 70),)),
    "logical reductions": (lambda x: ((x > 2).any(-1), (x > -9).all(0)), (data(33, 70),)),
    "integers": (lambda x: (x // 3 + x % 5, (x << 2) ^ x, x.sum(-1), x.prod(0)), (data(20, 30, dtype=torch.int64),)),
    "small integers": (lambda x: (x * x).to(torch.int16) - x, (data(20, 30, dtype=torch.uint8),)),
    "double": (lambda x: x.double().sin().sum(-1) + x.double().sum(), (data(33, 70),)),
    "bfloat16": (lambda x: (x * 2 + x.exp()).sum(-1), (data(33, 70, dtype=torch.bfloat16),)),
    "float16": (lambda x: F.layer_norm(x, (70,)), (data(33, 70, dtype=torch.float16),)),
    "gather": (lambda x, i: x.gather(1, i), (data(33, 70), data(33, 5, dtype=torch.int64))),
    "padding": (lambda x: F.pad(x, (3, 2), value=1.5).tril(1), (data(33, 70),)),
    "views": (lambda x: x.reshape(7, 10, 33).permute(2, 0, 1).flip(1)[::2] * x[:17, None, :10], (data(33, 70),)),
    "pooling": (lambda x: F.max_pool2d(x, 2) + F.avg_pool2d(x, 2), (images(2, 3, 8, 10),)),
    "upsampling": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (images(2, 3, 8, 10),)),
    "library calls between": (lambda x: (x @ x.t()).relu().sort(0)[0].tanh(), (data(70, 80),)),
    "empty": (lambda x: (x.sum(-1), x * 2, x.sum(0)), (data(0, 5),)),
    "a scalar": (lambda x: x.sin() * 2 + 1, (data(),)),
    "constants": (lambda x: x + torch.arange(70) * torch.tensor([2.5]), (data(33, 70),)),
}  # fmt: skip
QUICK_CORPUS = ("softmax", "product", "bfloat16", "gather", "empty")


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in QUICK_CORPUS else pytest.mark.slow) for name in CORPUS
])  # fmt: skip
@pytest.mark.filterwarnings("ignore::staxlab.FallbackWarning", "ignore:.*degrees of freedom")
def test_the_corpus_is_valid_in_both_directions(name):
    """Every kernel of the corpus agrees with its loops, and so do those of the backward halves."""
    function, inputs = CORPUS[name]
    compilations = [validated(function, *inputs)]
    if any(x.is_floating_point() for x in inputs):
        compiled = staxlab.compile(function, options={"validate": True})
        leaves = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
        results = compiled(*leaves)
        results = results if isinstance(results, tuple) else (results,)
        roots = [result.sum() for result in results if result.requires_grad]
        if roots:
            torch.stack([root.float() for root in roots]).sum().backward()
            forward = compiled.versions[0].compilation
            compilations += [forward, forward.backward]
            assert forward.backward.validation is not None
    for compilation in compilations:
        validation = compilation.validation
        assert validation.passed
        compared, free = (sum(getattr(kernel, what) for kernel in validation.kernels) for what in ("compared", "free"))
        assert free <= 0.1 * compared
        assert not [k.kernel for k in validation.kernels if not k.compared and name != "empty"]


@pytest.mark.slow
@pytest.mark.parametrize("instruction_set", RUNNABLE)
@pytest.mark.parametrize("name", CLASSES)
def test_every_instruction_set_is_valid(name, instruction_set):
    function, inputs = CLASSES[name]
    assert validated(function, *inputs, instruction_set=instruction_set).validation.passed


@needs_vectors
def test_a_fault_of_the_backward_half_is_found_there(monkeypatch):
    compiled = staxlab.compile(lambda x: (x * x * 3).sum(-1), options={"validate": True})
    x = data(6, 167).requires_grad_()
    result = compiled(x)
    plant_everywhere(monkeypatch, "+ i1", "+ i1 + 1")
    with pytest.raises(ValidationError, match="kernel fused_"):
        result.sum().backward()


def plant_everywhere(monkeypatch, right: str, wrong: str) -> None:
    generate = cpp.generate

    def damaged(*arguments):
        return KernelSet(tuple(
            dataclasses.replace(
                kernel, lines=tuple(Line(line.text.replace(right, wrong), line.origins) for line in kernel.lines)
            )
            for kernel in generate(*arguments)
        ))  # fmt: skip

    monkeypatch.setattr(cpp, "generate", damaged)


def test_the_record_prints_and_says_what_it_is_held_to():
    text = str(validated(lambda x: x.exp().sum(-1), data(6, 167)).validation)
    assert "exp 3 ulp" in text and "sum of 167 in a tree of height" in text and "within the bound" in text
    text = str(validated(lambda x: x.sort()[0] + 1, data(6, 6)).validation)
    assert "run by PyTorch" in text and "extern_" in text


# -- the region as a whole ---------------------------------------------------------------------------------------------


def test_the_region_runs_as_a_whole_where_it_can():
    function, inputs = CORPUS["softmax"]
    assert validated(function, *inputs).validation.whole.startswith("equal")
    with_a_library_call = validated(lambda x: x.sort()[0].relu(), data(6, 6)).validation
    assert with_a_library_call.whole.startswith("not run") and "extern_sort" in with_a_library_call.whole


def test_right_kernels_that_are_put_together_wrongly_are_found(monkeypatch):
    from staxlab.runtime import artifact

    load = artifact.load

    def damaged(*arguments, **more):
        loaded = load(*arguments, **more)
        return dataclasses.replace(loaded, call=lambda inputs: tuple(r + 1 for r in loaded.call(inputs)))

    monkeypatch.setattr(artifact, "load", damaged)
    with pytest.raises(ValidationError, match="put together wrongly: result 0") as found:
        validated(lambda x: x.exp() * 2, data(33, 70))
    assert "as a whole FAILED" in str(found.value.validation)
