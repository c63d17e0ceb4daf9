"""Plans of regions for a GPU that is not here: written and read again, they hold the kernels that were generated."""

from __future__ import annotations

import pytest
import torch

import staxlab
from benchmarks.kernel_forms import FORMS
from staxlab.codegen.kernel import Kernel
from staxlab.runtime import cache, plan
from staxlab.runtime.artifact import load

pytestmark = pytest.mark.usefixtures("plans")

KEY = "plan-" + "0" * 64
FIELDS = ("name", "language", "lines", "arguments", "nodes", "device", "origins", "flags", "bytes_read",
          "bytes_written", "operations", "is_fallback")  # fmt: skip


def same_kernel(one: Kernel, other: Kernel) -> bool:
    """All that a launcher reads, kernels inside ``launch`` among it."""
    mine = {key: value for key, value in one.launch.items() if key not in plan.DESCRIPTIVE}
    if mine.keys() != other.launch.keys() or any(getattr(one, name) != getattr(other, name) for name in FIELDS):
        return False
    return all(
        same_kernel(value, other.launch[key]) if isinstance(value, Kernel) else value == other.launch[key]
        for key, value in mine.items()
    )


def round_trip(compilation) -> plan.Plan:
    """The compilation's plan, from disk."""
    records = (compilation.loops, compilation.schedule, compilation.kernels, compilation.wrapper)
    whole = plan.made(compilation.operators, *records, KEY)
    cache.clear()
    assert plan.keep(whole, compilation.operators, compilation.device, compilation.name)
    found = plan.restored(KEY, compilation.operators, compilation.device, compilation.name)
    assert (found.recipe, found.inputs, found.externs) == (whole.recipe, whole.inputs, whole.externs)
    assert found.wrapper.lines == whole.wrapper.lines and found.wrapper.globals.keys() == whole.wrapper.globals.keys()
    generated = [kernel for kernel in whole.kernels if kernel.language != "extern"]
    assert len(generated) == len(found.kernels) and all(map(same_kernel, generated, found.kernels))
    return found


def check_form(form) -> None:
    round_trip(staxlab.explain(form.function, *form.inputs(form.values_at or form.sizes), target="sm_90"))


def test_a_few_forms_of_kernels():
    for form in FORMS[:6]:
        check_form(form)


@pytest.mark.slow
def test_every_form_of_kernel():
    for form in FORMS:
        check_form(form)


@pytest.mark.parametrize("options", [{}, {"matmul": "template"}, {"matmul": "template-tma"}, {"fuse": False}])
def test_products_and_what_surrounds_them(options):
    x, w = torch.randn(256, 128, dtype=torch.float16), torch.randn(128, 256, dtype=torch.float16)
    compilation = staxlab.explain(lambda x, w: torch.relu(x @ w + 1).sum(-1), x, w, target="sm_90", options=options)
    found = round_trip(compilation)
    assert any(kernel.language == "triton" for kernel in found.kernels)
    if options.get("matmul") == "template-tma":
        assert any("unaligned" in kernel.launch for kernel in found.kernels)


def test_a_restored_region_computes_what_the_program_does():
    pytest.importorskip("triton")
    from staxlab.codegen.triton.interpreter import interpret

    def f(x):
        return torch.softmax(x, -1), x.t() @ x

    x = torch.randn(5, 7)
    found = round_trip(staxlab.explain(f, x, target="sm_90"))
    launchers = {k.name: lambda *tensors, kernel=k: interpret(kernel, tensors) for k in found.kernels}
    for one, other in zip(load(found.wrapper, launchers).call([x]), f(x), strict=True):
        torch.testing.assert_close(one, other)
