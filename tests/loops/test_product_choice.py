"""Who computes a product on a GPU (Section 9.8): the rule and its arithmetic, what is asked for, what cannot be."""

from __future__ import annotations

import pytest
import torch

import staxlab
from staxlab.capture.tracer import trace
from staxlab.loops.lowering import lower, product_choice
from staxlab.loops.lowering.product_choice import DEEP, LEAST_SAVING, UNMEASURED, peak_rate, segments
from staxlab.operators.record import record
from staxlab.options import GPU_SPECS, Options
from staxlab.runtime.plan_basis import basis
from staxlab.transform import transform

SM90, SM80 = GPU_SPECS["sm_90"], GPU_SPECS["sm_80"]


def samples(*shapes: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    """Of the right shapes and without memory: the rule looks at nothing else, and a processor that has no
    instructions for bfloat16 takes minutes to multiply what a card multiplies in microseconds."""
    return [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes]


def decision(function, *inputs, target: str = "sm_90", **options):
    """The stages up to the loops, on tensors without memory."""
    settings, inputs = Options.resolve(options=options), [tensor.to("meta") for tensor in inputs]
    module = transform(trace(function, tuple(inputs), execute=False), settings).final
    loops = lower(record(module, inputs, settings, basis=basis()), GPU_SPECS[target], settings)
    return next(d for d in loops.decisions if d.topic == "matmul")


def relu_of_sum(a, b, c):
    return torch.relu(a @ b + c)


@pytest.fixture
def unmeasured(monkeypatch):
    monkeypatch.setattr(product_choice, "MEASURED", {})


def test_the_rule_weighs_seconds(unmeasured):
    """A product of small depth is bound by memory, and its epilogue is half of what moves."""
    a, b, c = samples((2048, 64), (64, 2048), (2048,))
    found = decision(relu_of_sum, a, b, c)
    facts = dict(found.inputs)
    moved, saved = 2 * (2048 * 64 * 2 + 2048 * 2048), 2 * 2 * 2048 * 2048
    assert (
        found.choice == "tiled" and facts["bytes of the product"] == moved and facts["bytes an epilogue saves"] == saved
    )
    operations = 2 * 2048 * 2048 * 64
    library = max(operations / 989e12, moved / SM90.nominal_bandwidth) + saved / SM90.nominal_bandwidth
    template = max(operations / (UNMEASURED * 989e12), moved / SM90.nominal_bandwidth)
    assert facts["seconds by the library"] == pytest.approx(library, rel=1e-2)
    assert facts["by a template"] == pytest.approx(template, rel=1e-2) and template < library


@pytest.mark.parametrize(
    ("function", "shapes", "words"),
    [
        (relu_of_sum, [(2048, 2048), (2048, 2048), (2048,)], "loses"),
        (relu_of_sum, [(256, 64), (64, 256), (256,)], f"less than {LEAST_SAVING:,}"),
        (lambda a, b: a @ b, [(2048, 64), (64, 2048)], "nothing elementwise follows"),
        (lambda a, b: (a @ b).sum(0), [(2048, 64), (64, 2048)], "nothing elementwise follows"),
    ],
)
def test_the_library_otherwise(function, shapes, words, unmeasured):
    found = decision(function, *samples(*shapes))
    assert found.choice == "library" and words in found.reason


def test_a_measured_rate_takes_the_place_of_the_guess(monkeypatch, unmeasured):
    inputs = samples((2048, 2048), (2048, 2048), (2048,))
    assert decision(relu_of_sum, *inputs).choice == "library"
    monkeypatch.setitem(product_choice.MEASURED, (90, torch.bfloat16), ((0, 0.3), (1e9, 0.97)))
    found = decision(relu_of_sum, *inputs)
    assert found.choice == "tiled" and "0.97 (measured)" in found.reason


def test_what_was_measured_on_a_hopper_card():
    """A product that takes longer to launch than to compute is a template's even bare; a large one needs an epilogue;
    many tiles are the persistent template's, where there is an accelerator to fetch for it."""
    small, large = samples((1024, 1024), (1024, 1024)), samples((4096, 512), (512, 8192), (8192,))
    bare = decision(torch.mm, *small)
    assert bare.choice == "tiled" and "1.2 times the library's rate (measured)" in bare.reason
    assert decision(torch.mm, *samples((2048, 2048), (2048, 2048))).choice == "library"
    assert decision(torch.mm, *samples((1, 16384), (16384, 65536))).choice == "library"  # memory alone decides
    assert decision(relu_of_sum, *large).choice == "persistent-tma"
    assert decision(relu_of_sum, *large, target="sm_80").choice == "library"


def test_a_transposed_operand_was_not_measured():
    """As the weights of layers are. What holds for operands stored by rows is not taken to hold for it."""
    a, weight, c = samples((8192, 2048), (5632, 2048), (5632,))
    assert decision(relu_of_sum, a, weight.mT.contiguous(), c).choice == "persistent-tma"
    found = decision(lambda a, w, c: torch.relu(a @ w.mT + c), a, weight, c)
    assert found.choice == "library" and "transposed" in found.reason
    left = decision(lambda a, w, c: torch.relu(a.mT @ w + c), *samples((2048, 8192), (2048, 5632), (5632,)))
    assert left.choice == "library" and "transposed" in left.reason


def test_options_name_either():
    a, b, c = samples((64, 64), (64, 64), (64,))
    assert decision(relu_of_sum, a, b, c).choice == "library"
    assert decision(relu_of_sum, a, b, c, matmul="library").choice == "library"
    assert decision(relu_of_sum, a, b, c, matmul="template").choice == "tiled"
    assert decision(relu_of_sum, a, b, c, matmul="template-tma").choice == "persistent-tma"
    below = decision(relu_of_sum, a, b, c, target="sm_80", matmul="template-tma")
    assert below.choice == "tiled" and "no tensor memory accelerator" in below.reason


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.int8], ids=str)
def test_what_no_template_multiplies_stays_the_librarys(dtype):
    a = torch.zeros(8, 8, dtype=dtype)
    found = decision(torch.mm, a, a, matmul="template")
    assert found.choice == "library" and "no template multiplies" in found.reason


def test_addbmm_of_half_precision_rounds_between_matrices_and_is_the_librarys():
    a, x, y = samples((4, 5), (3, 4, 6), (3, 6, 5))
    assert decision(torch.addbmm, a, x, y, matmul="template").choice == "library"
    assert decision(torch.addbmm, a.float(), x.float(), y.float(), matmul="template").choice == "tiled"


def test_a_convolution_is_the_librarys_and_says_so():
    x, w = torch.zeros(1, 3, 8, 8), torch.zeros(4, 3, 3, 3)
    loops = staxlab.explain(torch.nn.functional.conv2d, x, w, target="sm_90", options={"matmul": "template"}).loops
    found = next(d for d in loops.decisions if d.topic == "convolution")
    assert found.choice == "library" and "no template" in found.reason


def test_the_precision_of_products_is_in_the_key():
    before = torch.get_float32_matmul_precision()
    seen = []
    try:
        for precision in ("highest", "high"):
            torch.set_float32_matmul_precision(precision)
            found = staxlab.explain(torch.mm, torch.zeros(8, 8), torch.zeros(8, 8), target="sm_90",
                                    options={"matmul": "template"})  # fmt: skip
            seen.append((found.key.rho.product_precision, found.kernels[0].launch["precision"]))
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == [("ieee", "ieee"), ("tf32", "tf32")]


@pytest.mark.parametrize("device", [SM80, SM90], ids=lambda d: d.name)
@pytest.mark.parametrize("rows", [1, 16, 64, 100, 512])
def test_segments_tile_the_summed_dimension(device, rows):
    for depth in (DEEP * rows - 1, DEEP * rows, DEEP * rows + 1, 3 * DEEP * rows + 77):
        count, length = segments(rows, rows, depth, device)
        assert (count == 1) == (depth < DEEP * rows) or count == 1
        assert (count - 1) * length < depth <= count * length
        if count > 1:
            assert length % 64 == 0 and length >= 256
    assert segments(64, 64, 1 << 20, device)[0] > device.multiprocessors // 2


def test_rates_by_kind_of_unit():
    assert peak_rate(SM90, torch.bfloat16, "ieee") == 989e12
    assert peak_rate(SM90, torch.float32, "ieee") == SM90.nominal_throughput < peak_rate(SM90, torch.float32, "tf32")
