"""Matrix templates on a CUDA device (Section 9.8): values beside the library's, of every template and layout."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F

import staxlab
from tests.codegen.test_triton_templates import EPILOGUES, within_the_bound

pytestmark = [pytest.mark.gpu]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TEMPLATES = ["template", "template-tma"]
SIZES = [(1, 1, 1), (3, 17, 33), (129, 64, 17), (256, 128, 64), (1000, 520, 264), (2048, 2048, 2048)]


def filled(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda").to(dtype)


def forms(compiled) -> set[str]:
    kernels = compiled.versions[0].compilation.kernels
    assert all(kernel.language == "triton" for kernel in kernels)
    return {kernel.launch["form"] for kernel in kernels}


def fetches() -> bool:
    return torch.cuda.get_device_capability()[0] >= 9


def product(a: torch.Tensor, b: torch.Tensor, template: str):
    compiled = staxlab.compile(torch.matmul, options={"matmul": template}, strict_native=True)
    first, second = compiled(a, b), compiled(a, b)
    assert torch.equal(first, second)
    within_the_bound(first, a, b)
    return compiled


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("template", TEMPLATES)
def test_products(template, dtype, sizes):
    rows, columns, depth = sizes
    a, b = filled(rows, depth, dtype=dtype), filled(depth, columns, dtype=dtype, seed=1)
    found = forms(product(a, b, template))
    if rows >= 256 and template == "template-tma" and fetches():
        assert found == {"persistent-tma"}
    product(a.t().contiguous().t(), b, template)
    product(a, b.t().contiguous().t(), template)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("template", TEMPLATES)
def test_batches_and_gaps(template, dtype):
    product(filled(5, 129, 65, dtype=dtype), filled(5, 65, 77, dtype=dtype, seed=1), template)
    product(filled(200, 300, dtype=dtype)[::2, ::3], filled(100, 90, dtype=dtype, seed=1), template)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("depth", [16384, 20000])
def test_segments(dtype, depth):
    compiled = product(filled(64, depth, dtype=dtype), filled(depth, 96, dtype=dtype, seed=1), "template")
    assert len(compiled.versions[0].compilation.kernels) == 2


def test_where_a_tensor_starts_off_a_multiple_of_16_bytes_another_kernel_runs():
    """A descriptor would hold another address. The key does not tell, so both happen in one version."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        memory = filled(256 * 128 + 1, dtype=dtype)
        b = filled(128, 256, dtype=dtype, seed=1)
        compiled = staxlab.compile(torch.mm, options={"matmul": "template-tma"})
        for start in (0, 1, 0):
            a = memory[start : start + 256 * 128].view(256, 128)
            within_the_bound(compiled(a, b), a, b)
        assert len(compiled.versions) == 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("template", TEMPLATES)
def test_nan_and_infinities(template, dtype):
    a, b = filled(264, 136, dtype=dtype), filled(136, 264, dtype=dtype, seed=1)
    a[3, 5], a[263, 135], b[7, 9], b[135, 263] = float("nan"), float("inf"), -float("inf"), float("inf")
    found = staxlab.compile(torch.mm, options={"matmul": template})(a, b)
    assert torch.equal(found.isnan(), (a @ b).isnan()) and torch.equal(found.isinf(), (a @ b).isinf())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("name", EPILOGUES)
def test_an_epilogue_changes_no_bit(name, template, dtype):
    a, b, c = filled(200, 136, dtype=dtype), filled(136, 264, dtype=dtype, seed=1), filled(264, dtype=dtype, seed=2)
    function = EPILOGUES[name]
    fused = staxlab.compile(function, options={"matmul": template})(a, b, c)
    apart = staxlab.compile(function, options={"matmul": template, "fuse": False})(a, b, c)
    eager = function(a, b, c)
    for one, other, wanted in zip(*(r if isinstance(r, tuple) else (r,) for r in (fused, apart, eager)), strict=True):
        assert torch.equal(one, other) and one.stride() == wanted.stride()
        loose = 2e-5 if dtype == torch.float32 else 4e-3 if dtype == torch.float16 else 3e-2
        torch.testing.assert_close(one, wanted, rtol=loose, atol=60 * loose)


@pytest.mark.parametrize("template", TEMPLATES)
def test_reduced_precision_is_a_version_of_its_own(template):
    a, b = filled(512, 512), filled(512, 512, seed=1)
    compiled = staxlab.compile(torch.mm, options={"matmul": template})
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        rough = compiled(a, b)
        torch.set_float32_matmul_precision("highest")
        fine = compiled(a, b)
    finally:
        torch.set_float32_matmul_precision(before)
    within_the_bound(fine, a, b)
    exact = a.double() @ b.double()
    assert (rough - exact).abs().max() > 10 * (fine - exact).abs().max()
    assert bool(((rough - exact).abs() <= 2**-9 * (a.double().abs() @ b.double().abs())).all())


@pytest.mark.parametrize("template", TEMPLATES)
def test_training_through_templates(template):
    """The backward pass runs in a thread of autograd's, where descriptors need their memory, too."""
    w = torch.nn.Parameter(filled(256, 512) / 16)
    x, target = filled(128, 512, seed=1), filled(128, 256, seed=2)

    def loss(x):
        return F.mse_loss(torch.relu(F.linear(x, w)), target)

    loss(x).backward()
    wanted, w.grad = w.grad, None
    staxlab.compile(loss, options={"matmul": template})(x).backward()
    torch.testing.assert_close(w.grad, wanted, rtol=1e-4, atol=1e-6)


def test_another_thread_may_call():
    a, b = filled(256, 256, dtype=torch.bfloat16), filled(256, 256, dtype=torch.bfloat16, seed=1)
    compiled, found = staxlab.compile(torch.mm, options={"matmul": "template-tma"}), []
    compiled(a, b)
    thread = threading.Thread(target=lambda: found.append(compiled(a, b)))
    thread.start()
    thread.join()
    within_the_bound(found[0], a, b)


def test_the_rule_takes_a_template_where_memory_decides():
    a, b, c = (filled(*s, dtype=torch.bfloat16) for s in ((4096, 64), (64, 4096), (4096,)))
    compiled = staxlab.compile(lambda a, b, c: torch.relu(a @ b + c))
    found = compiled(a, b, c)
    (kernel,) = compiled.versions[0].compilation.kernels
    hopper = torch.cuda.get_device_capability() >= (9, 0)
    assert kernel.launch["form"] == ("persistent-tma" if hopper else "tiled")
    torch.testing.assert_close(found, torch.relu(a @ b + c), rtol=2e-2, atol=2e-2)


def test_no_candidate_spills_and_all_agree():
    """What the search of ``autotune`` may take: measured configurations are as right as the rule's."""
    a, b = filled(1024, 512, dtype=torch.bfloat16), filled(512, 1024, dtype=torch.bfloat16, seed=1)
    compiled = staxlab.compile(torch.mm, options={"matmul": "template"})
    compiled(a, b)
    from staxlab.codegen.triton.launcher import load

    (kernel,) = compiled.versions[0].compilation.kernels
    for configuration in kernel.tuning.candidates:
        launcher, out = load(kernel.tuning.kernel(configuration)), torch.empty(1024, 1024, dtype=a.dtype, device="cuda")
        launcher(a, b, out)
        within_the_bound(out, a, b)
        assert all(one.n_spills == 0 for one in launcher.compiled)


@pytest.mark.parametrize("depth", [64, 2048])
def test_a_search_measures_the_library_beside_the_templates(depth):
    a, b, c = (filled(*s, dtype=torch.bfloat16) for s in ((2048, depth), (depth, 2048), (2048,)))

    def f(a, b, c):
        return torch.relu(a @ b + c)

    compiled = staxlab.compile(f, options={"autotune": True})
    torch.testing.assert_close(compiled(a, b, c), f(a, b, c), rtol=2e-2, atol=2e-2 * depth**0.5)
    compilation = compiled.versions[0].compilation
    decision = next(d for d in compilation.loops.decisions if d.topic == "matmul-search")
    seconds = dict(decision.inputs)
    assert "seconds, library" in seconds and len(seconds) >= 2
    assert ("extern" in {k.language for k in compilation.kernels}) == (decision.choice == "library")
