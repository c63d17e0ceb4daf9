"""The pipeline end to end: every stage of Example 1.1, backends as prefixes, fallbacks and strict mode."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab.pipeline import BACKENDS, STAGES


def example_1_1(x, w):
    return (torch.relu(x + w) * 2).sum(-1)


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(64, 128, generator=generator), torch.randn(64, 128, generator=generator)


def test_every_stage_leaves_a_record_that_prints(inputs):
    compilation = staxlab.explain(example_1_1, *inputs)
    assert [stage.name for stage, _ in compilation.stages()] == [stage.name for stage in STAGES]
    for stage, record in compilation.stages():
        assert str(record).strip(), stage.name
        assert compilation.timings[stage.name] >= 0
    text = str(compilation)
    assert all(stage.title in text for stage in STAGES)


def test_example_1_1_is_one_kernel_with_the_traffic_of_proposition_1_1(inputs):
    kernels = staxlab.explain(example_1_1, *inputs).kernels
    (kernel,) = kernels
    elements = 64 * 128
    assert (kernel.bytes_read, kernel.bytes_written) == (2 * elements * 4, 64 * 4)
    assert kernels.bytes_moved == (2 * elements + 64) * 4


def test_provenance_reaches_from_the_source_line_to_the_kernel_line(inputs):
    compilation = staxlab.explain(example_1_1, *inputs)
    relu = compilation.graph.find("relu")
    assert relu.location.text == "return (torch.relu(x + w) * 2).sum(-1)"
    assert relu.location.file == __file__
    (line,) = [line for line in compilation.kernels[0].lines if "= relu(" in line.text]
    assert line.origins == frozenset({relu.id})


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_gives_the_value(inputs, backend):
    compiled = staxlab.compile(example_1_1, backend=backend)
    expected = example_1_1(*inputs)
    result = compiled(*inputs)
    if backend == "stax":
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-4)
    else:
        assert torch.equal(result, expected)


def test_backends_are_prefixes(inputs):
    eager = staxlab.explain(example_1_1, *inputs, backend="eager")
    assert [stage.name for stage, _ in eager.stages()] == ["capture", "transforms"]
    aot = staxlab.explain(example_1_1, *inputs, backend="aot_eager")
    assert [stage.name for stage, _ in aot.stages()] == ["capture", "transforms", "operators"]


def test_another_target_can_be_read_but_not_run(inputs):
    compilation = staxlab.explain(example_1_1, *inputs, target="sm_90")
    assert compilation.kernels[0].language == "triton"
    assert compilation.artifact is None
    with pytest.raises(staxlab.OptionError, match="not this machine"):
        compilation.call(list(inputs))


def test_a_compilation_keeps_no_tensor_of_the_caller_alive(inputs):
    import gc
    import weakref

    x = torch.randn(8, 8)
    reference = weakref.ref(x)
    compilation = staxlab.explain(lambda a: a + 1, x)
    del x
    gc.collect()  # a reference cycle may delay it, the compilation must not
    assert reference() is None
    assert compilation.kernels is not None


def test_training_regions_fall_back_visibly_and_have_eager_gradients():
    def f(x, w):
        return F.gelu(x @ w).sum()

    x, w = torch.randn(4, 8), torch.randn(8, 3, requires_grad=True)
    compiled = staxlab.compile(f)
    with pytest.warns(staxlab.FallbackWarning, match="requires grad"):
        compiled(x, w).backward()
    expected = torch.autograd.grad(f(x, w), w)[0]
    assert torch.equal(w.grad, expected)
    assert "requires grad" in compiled.versions[0].compilation.fallback_reason
    with pytest.raises(staxlab.LoweringError, match="no_grad"):
        staxlab.compile(f, strict_native=True)(x, w)


def test_an_operator_without_a_rule_runs_visibly_and_strict_mode_names_the_line():
    def f(x):
        return torch.special.bessel_j0(x + 1) * 2

    x = torch.randn(16)
    compiled = staxlab.compile(f)
    with pytest.warns(staxlab.FallbackWarning, match="bessel_j0"):
        result = compiled(x)
    torch.testing.assert_close(result, f(x))
    kernels = compiled.versions[0].compilation.kernels
    assert [k.is_fallback for k in kernels] == [False, True, False]
    with pytest.raises(staxlab.LoweringError) as error:
        staxlab.compile(f, strict_native=True)(x)
    assert "bessel_j0" in str(error.value)
    assert "test_pipeline.py" in str(error.value)


def test_a_backend_failure_runs_the_captured_graph_and_says_so(monkeypatch, inputs):
    import staxlab.schedule.dependencies as dependencies

    def broken(*arguments):
        raise staxlab.ScheduleError("planted")

    monkeypatch.setattr(dependencies, "schedule", broken)
    compiled = staxlab.compile(example_1_1)
    with pytest.warns(staxlab.FallbackWarning, match="planted"):
        result = compiled(*inputs)
    assert torch.equal(result, example_1_1(*inputs))
    with pytest.raises(staxlab.ScheduleError, match="planted"):
        staxlab.compile(example_1_1, strict_native=True)(*inputs)


@pytest.mark.parametrize("backend", ["aot_eager", "stax"])
def test_a_result_whose_shape_depends_on_data_is_computed_at_each_call(backend):
    compiled = staxlab.compile(lambda x: torch.nonzero(x > 0).flatten() * 2, backend=backend)
    x = torch.tensor([1.0, -1.0, 2.0])
    with pytest.warns(staxlab.FallbackWarning, match="depends on data"):
        assert compiled(x).tolist() == [0, 4]
    assert compiled(-x).tolist() == [2]


def test_reseeding_inside_a_library_wrapper_is_refused_while_other_threads_live():
    """A notebook kernel has several threads, and the function's own code never mentions the seed."""
    import threading

    from torch.testing._internal.common_methods_invocations import op_db

    # Its wrapper seeds, draws, and puts the state back.
    op = next(op for op in op_db if op.name == "nn.functional.rrelu")
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        torch.manual_seed(0)
        with pytest.raises(staxlab.CaptureError, match="random number generator"):
            staxlab.compile(lambda x: op.op(x, lower=0.0, upper=1.0, training=True))(torch.randn(20))
    finally:
        done.set()
        thread.join()


def test_a_seed_is_refused_although_the_generator_happens_to_stand_there():
    def f(x):
        torch.manual_seed(42)
        return x + torch.rand(3)

    torch.manual_seed(42)
    with pytest.raises(staxlab.CaptureError, match="random number generator"):
        staxlab.compile(f)(torch.zeros(3))


def test_a_native_region_warns_about_nothing(inputs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        staxlab.compile(example_1_1, strict_native=True)(*inputs)


@pytest.mark.parametrize("arguments", [{"backend": "inductor"}, {"mode": "fast"}, {"options": {"fuse": 1}}])
def test_unknown_settings_are_refused_at_once(arguments, inputs):
    with pytest.raises(staxlab.OptionError):
        staxlab.compile(example_1_1, **arguments)(*inputs)


def test_as_a_decorator_with_and_without_arguments(inputs):
    @staxlab.compile
    def f(x):
        return x * 2

    @staxlab.compile(strict_native=True)
    def g(x):
        return x * 2

    assert torch.equal(f(inputs[0]), inputs[0] * 2)
    assert torch.equal(g(inputs[0]), inputs[0] * 2)


def test_a_module_is_compiled_with_its_parameters_read_at_each_call():
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()
    compiled = staxlab.compile(module, strict_native=True)
    x = torch.randn(5, 8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))
        module[0].weight.mul_(2)
        torch.testing.assert_close(compiled(x), module(x))
    assert len(compiled.versions) == 1


def test_transposed_input_makes_its_own_version():
    f = staxlab.compile(lambda x: (x * 2).sum(-1) + x[0])
    x = torch.randn(16, 16)
    for argument in (x, x.t(), x, x.t()):
        torch.testing.assert_close(f(argument), (argument * 2).sum(-1) + argument[0])
    assert len(f.versions) == 2


SHAPES = [(), (0,), (1,), (3, 0), (0, 3), (1, 1), (7, 13), (2, 3, 5)]


@pytest.mark.parametrize("shape", SHAPES)
def test_any_shape(shape):
    x, w = torch.randn(shape), torch.randn(shape)
    f = staxlab.compile(lambda x, w: (torch.relu(x + w) * 2, (x - w).sum(), (x * w).abs() + 1), strict_native=True)
    expected = (torch.relu(x + w) * 2, (x - w).sum(), (x * w).abs() + 1)
    for result, wanted in zip(f(x, w), expected, strict=True):
        torch.testing.assert_close(result, wanted)
        assert result.stride() == wanted.stride()


def test_relu_keeps_nan_and_infinity_reaches_the_sum():
    x = torch.randn(4, 33)
    x[0, 3], x[1, 32], x[2, 0] = float("nan"), float("inf"), float("-inf")
    f = staxlab.compile(example_1_1, strict_native=True)
    torch.testing.assert_close(f(x, torch.zeros(4, 33)), example_1_1(x, torch.zeros(4, 33)), equal_nan=True)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::2],
        lambda x: x[:, 1:-1],
        lambda x: x.t(),
        lambda x: x[:1].expand(9, -1),
        lambda x: x[:, :1].expand(-1, 5),
        lambda x: x[3],
        lambda x: x.flip(0),
        lambda x: torch.as_strided(x, (4, 4), (1, 1)),
    ],
)
def test_views_of_inputs(view):
    base = torch.randn(12, 20)
    f = staxlab.compile(lambda x: torch.exp(x).sum(-1) - x.amax(), strict_native=True)
    argument = view(base)
    torch.testing.assert_close(f(argument), torch.exp(argument).sum(-1) - argument.amax())


def test_results_that_alias_inputs_alias_them():
    f = staxlab.compile(lambda x: (x, x.t(), x + 1))
    x = torch.randn(3, 4)
    same, transposed, fresh = f(x)
    assert transposed.data_ptr() == x.data_ptr()
    assert transposed.stride() == x.t().stride()
    assert same.data_ptr() == x.data_ptr()
    fresh.add_(1)
    assert torch.equal(fresh, x + 2)


def test_results_are_the_same_at_every_call(inputs):
    f = staxlab.compile(example_1_1, strict_native=True)
    first = f(*inputs)
    assert all(torch.equal(f(*inputs), first) for _ in range(20))
