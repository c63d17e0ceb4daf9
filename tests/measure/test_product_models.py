"""The models of Section 9.8 on kernels of the templates: the same numbers as the generator's and the compiler's."""

from __future__ import annotations

import pytest
import torch

import staxlab
from staxlab.codegen.triton.numbering import GROUPED_LINES
from staxlab.errors import OptionError
from staxlab.measure.product_models import product_models
from staxlab.view.document import SIZE_CAP
from tests.view.reading import read, references

SIZES = {"divided": (512, 384, 256), "ragged": (300, 200, 100), "thin": (16, 1000, 64), "one": (1, 1, 1)}


def compiled(m, n, k, target="sm_90", dtype=torch.bfloat16, batch=(), matmul="template"):
    a, b = torch.randn(*batch, m, k, dtype=dtype), torch.randn(*batch, k, n, dtype=dtype)
    with torch.no_grad():
        return staxlab.explain(lambda a, b: torch.relu(a @ b), a, b, target=target, options={"matmul": matmul})


def facts(compilation, topic):
    """The quantities behind the first decision about a topic, of the template's kernel."""
    kernel = compilation.kernels[0]
    return dict(next(decision for decision in kernel.decisions if decision.topic == topic).inputs)


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", SIZES)
def test_the_generator_counts_the_same(name, target):
    m, n, k = SIZES[name]
    compilation = compiled(m, n, k, target)
    models = product_models(compilation)
    kernel = compilation.kernels[0]
    assert models.kernel == kernel.name
    assert (models.traffic.m, models.traffic.n, models.traffic.k, models.batch) == (m, n, k, 1)
    launch = facts(compilation, "launch")
    assert models.traffic.read * 2 == launch["bytes that tiles read"]
    assert models.numbering.grid_m * models.numbering.grid_n == launch["tiles"] == kernel.launch["grid"][0]
    assert models.num_stages <= models.budget.stages and models.shared <= models.budget.shared
    assert all(line in kernel.source for line in GROUPED_LINES)


def test_the_epilogue_saves_what_the_model_says():
    from staxlab.measure.epilogue_saving import epilogue_saving

    m, n, k = SIZES["divided"]
    found = facts(compiled(m, n, k), "epilogue")
    saving = epilogue_saving(m, n, k, itemsize=2)
    assert found["bytes apart"] - found["bytes fused"] == 2 * saving.saved


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_the_compiler_takes_that_much_shared_memory(target):
    pytest.importorskip("triton")
    from staxlab.codegen.triton.compile import aot_compile

    compilation = compiled(512, 384, 256, target)
    models = product_models(compilation)
    taken = aot_compile(compilation.kernels[0])["metadata"].shared
    # Triton may use the room of the slices for laying out the result, which can take more than they do.
    rows, columns, _ = models.traffic.tile
    assert models.shared <= taken <= max(models.shared, 4 * rows * columns) and taken <= models.budget.shared


def test_a_persistent_kernel_keeps_room_for_its_result():
    pytest.importorskip("triton")
    from staxlab.codegen.triton.compile import aot_compile

    compilation = compiled(512, 512, 512, matmul="template-tma")
    (kernel,) = compilation.kernels
    models = product_models(compilation)
    rows, columns, _ = models.traffic.tile
    assert "PROGRAMS" in kernel.launch["constants"] and models.numbering.window <= kernel.device.multiprocessors
    more = aot_compile(kernel)["metadata"].shared - models.shared
    assert 0 < more <= 2 * rows * columns + 8 * models.num_stages


def test_a_batch_and_a_choice_of_kernel():
    compilation = compiled(64, 64, 64, batch=(3,))
    models = product_models(compilation, compilation.kernels[0].name)
    assert models.batch == 3 and "3 times" in models.summary() and models == product_models(compilation)


@pytest.mark.parametrize(
    "call",
    [
        lambda: product_models(compiled(8, 8, 8, matmul="library")),
        lambda: product_models(compiled(8, 8, 8), "no such kernel"),
    ],
)
def test_where_there_is_no_template(call):
    with pytest.raises(OptionError, match="no kernel of a matrix template") as caught:
        call()
    assert "template" in caught.value.remedy


def test_it_prints_and_draws_all_its_parts():
    models = product_models(compiled(512, 384, 256))
    bundle = models._repr_mimebundle_()
    assert bundle["text/plain"] == str(models) and "Models of triton_tem" in str(models)
    html = bundle["text/html"]
    assert len(html) < SIZE_CAP and references(html) == [] and "drawing failed" not in html
    stages = [e.attributes["data-stage"] for e in read(html).walk() if e.has("class_", "sx-stage")]
    assert stages == ["product", "tile-traffic", "numbering", "stages"]
