"""Fused kernels on a GPU that is not here (Sections 7 and 9.4): counts, bytes, values, origins, machine code."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab.runtime.artifact import load

pytest.importorskip("triton")

from staxlab.codegen.triton import launch, tiling
from staxlab.codegen.triton.compile import aot_compile
from staxlab.codegen.triton.interpreter import interpret
from staxlab.codegen.triton.listings import ptx_lines
from staxlab.measure import traffic_model
from staxlab.schedule import programs


@pytest.fixture
def walked(monkeypatch):
    """Registers that hold nothing, and short steps: rows are walked along, in several steps."""
    monkeypatch.setattr(programs, "HELD_BY_RULE", 0)
    monkeypatch.setattr(programs, "REGISTER_SHARE", 1 << 30)
    monkeypatch.setattr(programs, "REGISTER_SHARE_OF_EXPONENTIALS", 1 << 30)
    for module in (launch, tiling):
        monkeypatch.setattr(module, "STEP_INNER", 16)
        monkeypatch.setattr(module, "STEP_OUTER", 8)
        monkeypatch.setattr(module, "LANES_ACROSS", 4)
        monkeypatch.setattr(module, "PERSISTENT_OUTER", 0)
    monkeypatch.setattr(tiling, "PERSISTENT_INNER", 0)


def explained(function: Callable, *inputs: torch.Tensor, **options):
    return staxlab.explain(function, *inputs, target="sm_90", strict_native=True, options=options)


def interpreted(compilation, inputs) -> tuple[torch.Tensor, ...]:
    launchers = {
        kernel.name: lambda *tensors, kernel=kernel: interpret(kernel, tensors)
        for kernel in compilation.kernels
        if kernel.language == "triton"
    }
    return load(compilation.wrapper, launchers).call(list(inputs))


def agrees(function: Callable, *inputs: torch.Tensor, **tolerance):
    compilation = explained(function, *inputs)
    wanted = function(*inputs)
    found = interpreted(compilation, inputs)
    for one, other in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype and one.stride() == other.stride()
        torch.testing.assert_close(one, other, equal_nan=True, **({"rtol": 2e-5, "atol": 2e-5} | tolerance))
    return compilation


def softmax(x):
    return torch.softmax(x, -1)


def five_operators(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def log_softmax(x):
    return torch.log_softmax(x, -1)


def layer_norm(x):
    return F.layer_norm(x, (x.shape[-1],))


def affine_layer_norm(x, w, b):
    return F.layer_norm(x, (x.shape[-1],), w, b)


def rms_norm(x, w):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w


def example_7_1(x):
    return x / x.sum(-1, keepdim=True)


def example_7_2(x):
    return x.exp().sum(-1), x.exp().amax(-1)


def cross_entropy_rows(x, target):
    return F.cross_entropy(x, target, reduction="none")


ROWS = {f.__name__: f for f in (softmax, five_operators, log_softmax, layer_norm, example_7_1, example_7_2)}


# -- one kernel, and the bytes of the bound ----------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [1000, 2048, 8192, 40000])
@pytest.mark.parametrize("name", ROWS)
def test_one_kernel_moves_what_any_program_must(name, columns):
    x = torch.randn(512, columns)
    compilation = explained(ROWS[name], x)
    (kernel,) = compilation.kernels
    assert kernel.launch["form"] == ("looped" if columns == 40000 else "persistent")
    model = traffic_model(compilation)
    assert model.attains_bound and kernel.bytes_read + kernel.bytes_written == model.bound.nbytes
    assert kernel.bytes_read == x.nbytes
    if kernel.launch["form"] == "persistent":
        assert kernel.source.count("tl.load(") == 1


def test_norms_and_cross_entropy_are_one_kernel_each():
    x, w, b = torch.randn(256, 1024), torch.randn(1024), torch.randn(1024)
    for function, inputs in ((affine_layer_norm, (x, w, b)), (rms_norm, (x, w))):
        compilation = explained(function, *inputs)
        assert len(compilation.kernels) == 1 and traffic_model(compilation).attains_bound
    compilation = explained(cross_entropy_rows, x, torch.randint(0, 1024, (256,)))
    (kernel,) = compilation.kernels
    assert kernel.bytes_read == x.nbytes + 256 * 8 and kernel.bytes_written == 256 * 4


def test_the_option_switches_fusion_off():
    x = torch.randn(64, 300)
    assert [len(explained(softmax, x, fuse=fuse).kernels) for fuse in (True, False)] == [1, 3]


def test_a_mean_of_everything_ends_in_the_kernel_that_merges_its_pieces():
    compilation = agrees(lambda x: (x * x).mean(), torch.randn(40, 5000))
    assert len(compilation.kernels) == 2


def test_elementwise_results_of_the_same_points_share_a_kernel():
    compilation = agrees(lambda x, y: (x + y, x * y, (x - y).relu()), torch.randn(37, 5), torch.randn(37, 5))
    (kernel,) = compilation.kernels
    assert kernel.launch["form"] == "pointwise" and kernel.source.count("tl.load(") == 2


# -- values ------------------------------------------------------------------------------------------------------------

SHAPES = [(1, 1), (3, 1), (1, 7), (5, 33), (4, 100), (9, 300), (2, 1030)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ROWS)
def test_values_agree_with_eager(name, shape):
    agrees(ROWS[name], torch.randn(shape).abs() + 0.1 if name == "example_7_1" else torch.randn(shape))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ROWS)
def test_rows_that_are_walked_along_agree_with_eager(name, shape, walked):
    compilation = agrees(ROWS[name], torch.randn(shape).abs() + 0.1 if name == "example_7_1" else torch.randn(shape))
    assert {k.launch["form"] for k in compilation.kernels} == {"looped"} or shape[1] == 1


def _spoiled(rows: int = 8, columns: int = 37) -> torch.Tensor:
    nan, inf = float("nan"), float("inf")
    x = torch.randn(rows, columns)
    x[0, 3], x[1, 5], x[2, 7], x[3, 0], x[3, 36] = nan, inf, -inf, inf, -inf
    x[4], x[5], x[6, :20] = -inf, inf, -inf
    x[7] = 1e30
    return x


@pytest.mark.parametrize("name", ROWS)
def test_nan_and_infinities(name):
    agrees(ROWS[name], _spoiled())


@pytest.mark.parametrize("name", ROWS)
def test_nan_and_infinities_in_rows_that_are_walked_along(name, walked):
    agrees(ROWS[name], _spoiled())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ROWS)
def test_other_precisions(name, dtype):
    tolerance = {torch.float16: 5e-3, torch.bfloat16: 4e-2, torch.float64: 1e-12}[dtype]
    x = (torch.randn(6, 100).abs() + 0.1).to(dtype)
    agrees(ROWS[name], x, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_never_reaches_memory_is_rounded_as_if_it_did(dtype):
    """Bit for bit the values of the kernels one by one."""
    x, y = torch.randn(5, 90).to(dtype), torch.randn(5, 90).to(dtype)

    def function(x, y):
        total = (x * y).sum(-1, keepdim=True)
        return (x + total) * (total * 1.7), total.amax(0)

    together, apart = explained(function, x, y), explained(function, x, y, fuse=False)
    assert len(together.kernels) < len(apart.kernels)
    for one, other in zip(interpreted(together, (x, y)), interpreted(apart, (x, y)), strict=True):
        assert torch.equal(one.view(torch.int16), other.view(torch.int16))


VIEWS = {
    "columns": lambda t: t[:, ::2],
    "rows": lambda t: t[::3],
    "transposed": lambda t: t.t(),
    "one row": lambda t: t[:1].expand(9, 40),
    "one column": lambda t: t[:, :1].expand(12, 7),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", ROWS)
def test_inputs_that_are_not_contiguous(name, view):
    agrees(ROWS[name], VIEWS[view](torch.randn(12, 40).abs() + 0.1))


@pytest.mark.parametrize("dim", [0, 1, 2, (0, 2), (1, 2)])
def test_any_dimensions_may_be_the_columns(dim):
    x = torch.randn(6, 5, 7)
    compilation = agrees(lambda x: (x - x.mean(dim, keepdim=True)) * torch.rsqrt(x.var(dim, keepdim=True) + 1e-5), x)
    assert len(compilation.kernels) == 1
    compilation = agrees(lambda x: (x - x.amax(dim, keepdim=True)).exp(), x)
    assert len(compilation.kernels) == 1


@pytest.mark.parametrize("dim", [0, 1])
def test_columns_that_lie_across_memory_are_walked_along(dim, walked):
    x = torch.randn(33, 20)
    assert len(agrees(lambda x: x / (x * x).sum(dim, keepdim=True), x).kernels) == 1


def test_reductions_of_every_kind_share_a_kernel():
    x = torch.randn(6, 70)
    x[2, 5] = x[2, 50] = float("nan")

    def function(x):
        return x.sum(-1), x.amin(-1), x.argmax(-1), (x > 0).any(-1), x.prod(-1), x.argmin(-1), (x < 3).all(-1)

    (kernel,) = agrees(function, x).kernels
    assert kernel.source.count("tl.load(") == 1


def test_reductions_of_every_kind_share_a_loop(walked):
    x = torch.randn(6, 70)
    (kernel,) = agrees(lambda x: (x.sum(-1), x.amin(-1), x.argmax(-1), (x > 0).any(-1)), x).kernels
    assert kernel.source.count("for r0_offset") == 1


def test_integers_and_bools():
    x = torch.randint(-50, 50, (6, 40))
    agrees(lambda x: (x - x.amax(-1, keepdim=True), x % 7 + x.sum(-1, keepdim=True)), x)
    agrees(lambda x: (x > x.amin(-1, keepdim=True)) & (x > 3).any(-1, keepdim=True), x)


@pytest.mark.parametrize("shape", [(8, 8), (5, 30)])
def test_rows_that_others_made_are_read_from_memory(shape):
    """A lane has only what it made itself; a barrier between instances there is none."""
    compilation = agrees(lambda x: x.sum(1).roll(1)[:, None] * x, torch.randn(shape))
    assert len(compilation.kernels) == 2
    assert len(agrees(lambda x: x * x.sum(1, keepdim=True) + x.amax(0), torch.randn(shape)).kernels) == 2


def test_cross_entropy_of_rows_agrees_and_checks_its_targets():
    x, target = torch.randn(9, 33), torch.randint(0, 33, (9,))
    compilation = agrees(cross_entropy_rows, x, target)
    assert len(compilation.kernels) == 1
    target[4] = 40
    with pytest.raises(IndexError):
        interpreted(compilation, (x, target))


# -- passes ------------------------------------------------------------------------------------------------------------


def loops(kernel) -> int:
    return kernel.source.count("for r0_offset")


def test_a_softmax_of_long_rows_reads_them_twice():
    """Proposition 9.1: maximum and sum in one pass."""
    for function in (softmax, log_softmax):
        (kernel,) = explained(function, torch.randn(512, 40000)).kernels
        assert loops(kernel) == 2 and "merge_exponential_into(_" in kernel.source
        first, second = re.findall(r"tl\.load\(.*\)", kernel.source)
        assert "evict_last" in first and "evict_first" in second  # the second pass finds it in the cache
        (decision,) = [d for d in kernel.decisions if d.topic == "row-passes"]
        assert decision.choice == 2 and "op0 and op1" in decision.reason


def test_the_sum_alone_needs_one_pass(walked):
    def function(x):
        m = x.amax(-1, keepdim=True)
        return m, (x - m).exp().sum(-1)

    (kernel,) = agrees(function, _spoiled()).kernels
    assert loops(kernel) == 1


def test_moments_of_long_rows_take_one_pass():
    """What separates the lanes' means from the row's is added when that is known (Chan, Golub and LeVeque, 1983)."""
    (kernel,) = explained(lambda x: torch.var_mean(x, -1), torch.randn(512, 40000)).kernels
    assert loops(kernel) == 1 and kernel.source.count("tl.load(") == 1 and "merge_deviation_into(_" in kernel.source
    (kernel,) = explained(layer_norm, torch.randn(512, 40000)).kernels
    assert loops(kernel) == 2 and "Times that a row is walked along: 2" in kernel.source
    first, second = re.findall(r"tl\.load\(.*\)", kernel.source)
    assert "evict_last" in first and "evict_first" in second
    (decision,) = [d for d in kernel.decisions if d.topic == "row-passes"]
    assert decision.choice == 2 and "op2" in decision.reason and "before buf1 is known" in decision.reason


def test_moments_of_rows_that_are_held_are_formed_by_their_definition():
    (kernel,) = explained(layer_norm, torch.randn(512, 4096)).kernels
    assert kernel.launch["form"] == "persistent" and "merge_deviation" not in kernel.source


MOMENTS = {
    "noise": lambda: torch.randn(5, 301),
    "a mean of ten million": lambda: torch.randn(5, 301) + 1e7,
    "a small mean": lambda: torch.randn(5, 301) * 1e-3 + 1e3,
    "two levels": lambda: torch.where(torch.arange(301) < 150, 1e6, -1e6) + torch.randn(5, 301),
    "one value": lambda: torch.full((5, 301), 0.1),
    "one outlier": lambda: torch.randn(5, 301).index_fill(1, torch.tensor([0]), 1e6),
    "large": lambda: torch.randn(5, 301) * 1e17,
    "one step": lambda: torch.randn(5, 16),
    "less than a step": lambda: torch.randn(5, 11),
    "two elements": lambda: torch.randn(5, 2),
}


@pytest.mark.parametrize("case", MOMENTS)
def test_moments_in_one_pass_are_as_accurate_as_in_two(case, walked):
    """Against float64: the error bound of the two-pass algorithm, n u in relative terms plus what the rounding of the
    mean adds (Chan, Golub and LeVeque, 1983, Section 3)."""
    x = MOMENTS[case]()
    compilation = explained(lambda x: torch.var_mean(x, -1), x)
    (kernel,) = compilation.kernels
    assert "merge_deviation_into" in kernel.source or x.shape[1] == 2
    variance, mean = interpreted(compilation, (x,))
    true_variance, true_mean = torch.var_mean(x.double(), -1)
    unit, n = 2.0**-24, x.shape[1]
    assert ((mean - true_mean).abs() <= n * unit * x.abs().amax(-1).double()).all()
    wrong = n * unit * true_variance + 4 * (n * unit * x.abs().amax(-1).double()) ** 2
    assert ((variance - true_variance).abs() <= wrong).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_moments_in_other_precisions(dtype, walked):
    x = (torch.randn(6, 100) + 3).to(dtype)
    tolerance = 1e-12 if dtype == torch.float64 else 2e-2
    agrees(lambda x: torch.var_mean(x, -1), x, rtol=tolerance, atol=tolerance)
    agrees(layer_norm, x, rtol=tolerance, atol=tolerance)


def test_moments_of_nan_and_infinities(walked):
    x = _spoiled()[:7]
    agrees(lambda x: (x.var(-1), x.mean(-1)), x)
    agrees(layer_norm, x)
    agrees(lambda x: (x - x.amax(-1, keepdim=True)).square().sum(-1), x)  # which stays finite or infinite: two passes


@pytest.mark.parametrize("view", ["columns", "transposed"])
def test_moments_of_inputs_that_are_not_contiguous(view, walked):
    agrees(lambda x: (x.std(-1), x - x.mean(-1, keepdim=True)), VIEWS[view](torch.randn(12, 40)))
    agrees(lambda x: x.var(0), VIEWS[view](torch.randn(12, 40)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x - y.amax(-1, keepdim=True)).exp().sum(-1),
        lambda x, y: (x - x.amin(-1, keepdim=True)).exp().sum(-1),
        lambda x, y: (x * 2 - x.amax(-1, keepdim=True)).exp().sum(-1),
        lambda x, y: (x.amax(-1, keepdim=True) - x).exp().sum(-1),
        lambda x, y: (x - x.amax(-1, keepdim=True)).exp2().sum(-1),
        lambda x, y: (x - x.amax(-1, keepdim=True)).exp().amax(-1),
    ],
)
def test_what_only_looks_like_it_keeps_its_passes(function, walked):
    compilation = agrees(function, torch.randn(5, 40), torch.randn(5, 40))
    assert all("merge_exponential_into" not in kernel.source for kernel in compilation.kernels)


def test_values_of_an_earlier_pass_are_made_again(walked):
    def function(x, w):
        h = torch.tanh(x)
        centred = h - h.mean(-1, keepdim=True)
        return h, centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5) * w

    (kernel,) = agrees(function, torch.randn(7, 50), torch.randn(50)).kernels
    assert loops(kernel) == 2 and kernel.source.count("elementwise, again") == 1
    assert kernel.source.count("tl.store(") == 2


def test_a_row_that_is_neither_held_nor_cheap_to_make_again_is_not_fused(walked):
    def function(a, b, c, d):
        h = a * b + c * d
        return h, h / h.sum(-1, keepdim=True)

    compilation = agrees(function, *(torch.rand(6, 40) + 0.5 for _ in range(4)))
    rules = {d.reason.split(":")[0] for d in compilation.schedule.decisions if d.topic == "fuse" and not d.choice}
    assert "registers" in rules and len(compilation.kernels) == 2


def test_lanes_run_across_rows_that_consist_of_several_loops():
    """Sums of columns, cut into pieces: the rows are (piece, column), and columns are neighbours in memory."""

    def function(x, w):
        y = torch.tanh(x) * w
        return y, (y * x).sum(0)

    compilation = agrees(function, torch.randn(2048, 40), torch.randn(40))
    kernel = compilation.kernels[0]
    assert len(compilation.kernels) == 2 and len(compilation.schedule.nodes[0].members) == 2
    (direction,) = [d for d in kernel.decisions if d.topic == "reduction-direction"]
    assert direction.choice == "outer" and kernel.launch["form"] == "looped" and loops(kernel) == 1


def test_lines_stand_under_the_title_of_their_member(walked):
    def function(x, w):
        h = torch.tanh(x)
        return h, h / (h * h).sum(-1, keepdim=True) * w

    (kernel,) = explained(function, torch.randn(64, 100), torch.randn(100)).kernels
    lines = [line.text.strip() for line in kernel.lines]
    titles = [k for k, text in enumerate(lines) if re.match(r"# op\d", text)]
    assert all(not lines[k + 1].startswith("# op") for k in titles)


def test_wide_subscripts(monkeypatch):
    monkeypatch.setattr(tiling, "INT32_MAX", 100)
    (kernel,) = agrees(softmax, torch.randn(5, 40)).kernels
    assert ".to(tl.int64)" in kernel.source


# -- training ----------------------------------------------------------------------------------------------------------


def test_forward_and_backward_of_a_norm_are_few_kernels():
    x, w = torch.randn(64, 128, requires_grad=True), torch.randn(128, requires_grad=True)
    compilation = staxlab.explain(lambda x, w: F.layer_norm(x, (128,), w).square().sum(), x, w, target="sm_90")
    together = [len(half.kernels) for half in (compilation, compilation.backward)]
    apart = staxlab.explain(
        lambda x, w: F.layer_norm(x, (128,), w).square().sum(), x, w, target="sm_90", options={"fuse": False}
    )
    assert together[0] <= 3 < len(apart.kernels) and together[1] < len(apart.backward.kernels)


# -- listings ----------------------------------------------------------------------------------------------------------


def test_lines_know_which_operations_they_serve():
    def function(x):
        shifted = x - x.amax(-1, keepdim=True)
        e = shifted.exp()
        return e / e.sum(-1, keepdim=True)

    compilation = explained(function, torch.randn(64, 1000))
    (kernel,) = compilation.kernels
    name = {node.name: node.id for node in compilation.graph.nodes}
    by_text = {line.text.strip(): line.origins for line in kernel.lines}
    origin = lambda part: next(o for text, o in by_text.items() if part in text)  # noqa: E731
    assert name["amax"] in origin("[:, None].to(tl.float32)  # amax") and origin("# exp") == {name["exp"]}
    assert origin("tl.sum") == {name["sum"]} and origin("# truediv") == {name["truediv"]}
    assert origin("# op1: sum") == compilation.schedule.nodes[0].members[1].origins
    ids = {node.id for node in compilation.graph.nodes}
    listing = ptx_lines(kernel, 90)
    assert frozenset().union(*(line.origins for line in listing)) <= ids
    assert any(line.origins == {name["truediv"]} for line in listing if "div" in line.text)


def test_a_line_that_two_members_need_belongs_to_both():
    compilation = explained(lambda x: (x.sum(-1), x.amax(-1)), torch.randn(64, 128))
    (kernel,) = compilation.kernels
    name = {node.name: node.id for node in compilation.graph.nodes}
    (line,) = [line for line in kernel.lines if "tl.load(" in line.text]
    assert line.origins >= {name["sum"], name["amax"]}


def test_the_explorer_shows_the_members(tmp_path):
    compilation = explained(softmax, torch.randn(64, 1000))
    page = tmp_path / "page.html"
    compilation.write_html(page)
    assert "op1: reduction sum" in page.read_text()
    assert "op1: reduction sum [1 | 1000] -> buf1" in str(compilation.schedule)


# -- machine code ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("columns", [1000, 40000])
def test_they_compile_ahead_of_time(columns, capability):
    for function in (softmax, layer_norm):
        (kernel,) = explained(function, torch.empty(512, columns)).kernels
        assert aot_compile(kernel, capability)["cubin"]


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("columns", [100, 5000, 40000])
@pytest.mark.parametrize("name", ROWS)
def test_all_of_them_compile_ahead_of_time(name, columns, dtype, capability):
    for kernel in explained(ROWS[name], torch.empty(256, columns, dtype=dtype)).kernels:
        assert aot_compile(kernel, capability)["cubin"]
