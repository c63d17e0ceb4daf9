"""The pipeline end to end: every stage of Example 1.1, backends as prefixes, fallbacks and strict mode."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab.backends.table import OWN
from staxlab.pipeline import STAGES


def example_1_1(x, w):
    return (torch.relu(x + w) * 2).sum(-1)


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(64, 128, generator=generator), torch.randn(64, 128, generator=generator)


def test_every_stage_leaves_a_record_that_prints(inputs):
    compilation = staxlab.explain(example_1_1, *inputs)
    expected = [stage for stage in STAGES if not (stage.differentiates or stage.option)]
    assert [stage.name for stage, _ in compilation.stages()] == [stage.name for stage in expected]
    for stage, record in compilation.stages():
        assert str(record).strip(), stage.name
        assert compilation.timings[stage.name] >= 0
    text = str(compilation)
    assert all(stage.title in text for stage in expected)
    with_gradients = staxlab.explain(example_1_1, *(x.clone().requires_grad_() for x in inputs))
    assert [stage.name for stage, _ in with_gradients.stages()] == [s.name for s in STAGES if not s.option]


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


@pytest.mark.parametrize("backend", OWN)
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


def test_training_regions_are_compiled_and_have_eager_gradients():
    def f(x, w):
        return F.gelu(x @ w).sum()

    x, w = torch.randn(4, 8), torch.randn(8, 3, requires_grad=True)
    staxlab.compile(f, strict_native=True)(x, w).backward()
    torch.testing.assert_close(w.grad, torch.autograd.grad(f(x, w), w)[0])


def test_a_training_region_that_cannot_be_compiled_falls_back_visibly_with_eager_gradients():
    def f(x, w):
        y = w * 1
        y.mul_(x)
        w.data.copy_(x)  # nothing records this
        return y.sum()

    def g(x, w):
        b = w * 2
        x.copy_(b)  # the argument becomes part of the graph of gradients
        return b.sum()

    for function in (f, g):
        gradients = []
        for call in (function, staxlab.compile(function)):
            x, w = torch.arange(4.0), torch.ones(4, requires_grad=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", staxlab.FallbackWarning)
                call(x, w).backward()
            gradients.append((w.grad, x.detach(), w.detach(), x.requires_grad))
        assert all(map(torch.equal, gradients[0][:3], gradients[1][:3])) and gradients[0][3] == gradients[1][3]
    with pytest.warns(staxlab.FallbackWarning, match="modified in place where gradients are recorded"):
        staxlab.compile(g)(torch.arange(4.0), torch.ones(4, requires_grad=True))


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


def warned(call, *, action="default"):
    """The warnings that a user with Python's own filters sees."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter(action)
        call()
    return seen


def here(text: str) -> int:
    """The number of the first line of this file that holds a text."""
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if text in line)


class Wrapped(torch.nn.Module):
    """PyTorch's own frames stand between the user's line and the compiled function."""

    def __init__(self, function):
        super().__init__()
        self.forward = function


@pytest.mark.parametrize("x", [torch.randn(5, dtype=torch.complex64), torch.randn(5, dtype=torch.complex128)])
def test_a_fallback_is_reported_at_the_users_line_whatever_lies_in_between(x):
    def f(x):
        return x * 2

    ways = [staxlab.compile(f), Wrapped(staxlab.compile(f)), lambda x: staxlab.explain(f, x)]
    ways += [torch.enable_grad()(staxlab.compile(f))]
    for function in ways[:2] + ways[3:]:
        (warning,) = warned(lambda function=function: function(x))  # the call
        assert (warning.filename, warning.lineno) == (__file__, here("function(x))  # the call"))
    (warning,) = warned(lambda: ways[2](x))
    assert (warning.filename, warning.lineno) == (__file__, here("lambda x: staxlab.explain(f, x)]"))


def test_two_functions_of_one_name_are_two_warnings_and_one_function_is_one():
    def make():
        def f(x):
            return torch.special.bessel_j0(x)

        return staxlab.compile(f)

    first, second = make(), make()
    assert len(warned(lambda: [g(torch.randn(3)) for g in (first, second)])) == 2
    third = make()
    assert len(warned(lambda: [third(torch.randn(n)) for n in (3, 4, 5)])) == 1
    assert len(third.versions) == 3


def test_the_warning_names_operator_line_cause_and_remedy():
    def f(x):
        return x * 2  # complex

    def g(x):
        return torch.special.bessel_j0(x).sum()

    text = str(warned(lambda: staxlab.compile(f)(torch.randn(3, dtype=torch.complex64)))[0].message)
    assert "mul has a lowering, but not for complex64" in text and f"{__file__}:{here('# complex')}" in text
    text = str(warned(lambda: staxlab.compile(g)(torch.randn(3)))[0].message)
    assert "special_bessel_j0 has no lowering" in text and "return torch.special.bessel_j0(x).sum()" in text
    assert "register_lowering" in text
    with pytest.raises(staxlab.LoweringError, match="mul has a lowering, but not for complex64"):
        staxlab.compile(f, strict_native=True)(torch.randn(3, dtype=torch.complex64))


def test_many_operators_without_a_kernel_make_one_warning():
    def f(x):
        return ((x * 2 + 1) / 3 - 4).exp().sin().cos()

    seen = warned(lambda: staxlab.compile(f)(torch.randn(3, dtype=torch.complex64)), action="always")
    assert len(seen) == 1 and "and 3 more" in str(seen[0].message)


OBSTACLES = {
    "make it outside": (lambda x: x * torch.ones(3, requires_grad=True), torch.randn(3)),
    "known beforehand": (lambda x: x[x > 0], torch.randn(3)),
    "to_dense": (lambda x: x.to_sparse().to_dense(), torch.randn(3)),
}


@pytest.mark.parametrize("remedy", OBSTACLES)
def test_the_remedy_is_that_of_the_reason(remedy):
    function, x = OBSTACLES[remedy]
    (warning,) = warned(lambda: staxlab.compile(function)(x))
    assert remedy in str(warning.message) and "mutation" not in str(warning.message)
    with pytest.raises(staxlab.LoweringError) as error:
        staxlab.compile(function, strict_native=True)(x)
    assert remedy in error.value.remedy and "mutation" not in str(error.value)


def test_every_kind_of_obstacle_has_a_remedy():
    import re
    from pathlib import Path

    from staxlab.autodiff import joint as joint_module
    from staxlab.fallbacks import REMEDIES
    from staxlab.operators import graph

    kinds = set(re.findall(r'"([a-z-]+)"', graph.Obstacle.__doc__))
    record, functionalize, scatter = (
        Path(graph.__file__).with_name(f"{name}.py").read_text() for name in ("record", "functionalize", "scatter")
    )
    used = set(re.findall(r'obstacles.append\(\([^"]*"([a-z-]+)"', record))
    joint = Path(joint_module.__file__).read_text()
    used |= set(re.findall(r'Obstacle\(node.name, "([a-z-]+)"', joint))
    used |= set(re.findall(r'(?:NotCovered\(|protect\(|protected = ).*"([a-z-]+)"\)', functionalize))
    used |= set(re.findall(r'(?:protected = \(|kind: str = )"([a-z-]+)"', record + functionalize + scatter))
    assert kinds == used and kinds <= set(REMEDIES)


def test_a_compilation_without_kernels_says_so_first_and_has_no_traffic():
    def f(x):
        return x.detach()

    x = torch.randn(2, 4, requires_grad=True)
    with torch.no_grad(), pytest.warns(staxlab.FallbackWarning):
        compilation = staxlab.explain(f, x)
    assert compilation.kernels is None and "%detach" in compilation.fallback_reason
    lines = str(compilation).splitlines()
    assert "operator by operator" in lines[1] and ".clone()" in lines[2]
    assert "requires grad" in repr(compilation)
    html = compilation._repr_mimebundle_()["text/html"]
    place = html.index("detached and returned")
    assert place < html.index(".clone()") < html.index("<details")
    with pytest.raises(staxlab.OptionError) as error:
        _ = compilation.traffic
    assert "requires grad" in error.value.what and ".clone()" in error.value.remedy


def test_the_forward_half_of_a_training_region_has_traffic():
    assert staxlab.explain(torch.nn.Linear(4, 4), torch.randn(2, 4)).traffic.eager.rows


def test_the_traffic_of_a_prefix_says_which_backend_has_one(inputs):
    with pytest.raises(staxlab.OptionError, match="backend 'eager' ends before"):
        _ = staxlab.explain(example_1_1, *inputs, backend="eager").traffic
    assert staxlab.explain(example_1_1, *inputs, backend="aot_eager").traffic.compiled is None


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


@pytest.mark.parametrize(
    "arguments",
    [
        {"backend": "inductor"}, {"mode": "fast"}, {"options": {"fuse": 1}}, {"options": {"accumulators": "four"}},
        {"options": {"accumulators": -3}}, {"options": {"max_versions": True}}, {"dynamic": "yes"},
        {"strict_native": 1}, {"mode": ["a"]}, {"backend": None}, {"options": 3}, {"strict": True}, {"fullgraph": True},
    ],
)  # fmt: skip
def test_settings_that_do_not_exist_are_refused_at_once(arguments):
    with pytest.raises(staxlab.OptionError) as error:
        staxlab.compile(example_1_1, **arguments)  # before the first call
    given = arguments.get("options")
    assert next(iter(given if isinstance(given, dict) else arguments)) in str(error.value)
    with pytest.raises(staxlab.OptionError):
        staxlab.compile(**arguments)


def test_unknown_parameters_are_answered_with_the_nearest(inputs):
    def f(x):
        return x + 1

    x = inputs[0]
    for call, message in (
        (lambda: staxlab.compile(f, strict=True), "did you mean 'strict_native'"),
        (lambda: staxlab.compile(f, accumulators=4), "options={'accumulators': ...}"),
        (lambda: staxlab.compile(x), "takes a function or module first, got Tensor"),
        (lambda: staxlab.explain(x), "takes a function or module first, got Tensor"),
        (lambda: staxlab.trace(x), "takes a function or module first, got Tensor"),
        (lambda: staxlab.explain(f, x, targt="sm_90"), "did you mean 'target'.* and f takes x"),
        (lambda: staxlab.explain(torch.nn.ReLU(), x, targt="sm_90"), "did you mean 'target'.* and ReLU takes input"),
        (lambda: staxlab.trace(f, x, exec=True), "did you mean 'execute'"),
    ):
        with pytest.raises(staxlab.OptionError, match=message):
            call()
    named = staxlab.explain(lambda x, **more: x + more["targt"], x, targt=1)  # the function's own business
    assert named.kernels is not None


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


def test_a_pending_negation_or_conjugation_is_seen():
    """``z.conj().imag`` is a tensor whose memory holds the negatives of its values (Section 2.1: it is in the key)."""
    compiled = staxlab.compile(lambda x: x * 2 + 1)
    z = torch.randn(5, dtype=torch.cfloat)
    plain, pending = z.imag, z.conj().imag
    assert pending.is_neg() and plain.stride() == pending.stride()
    for _ in range(3):
        assert torch.equal(compiled(plain), plain * 2 + 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", staxlab.FallbackWarning)
            assert torch.equal(compiled(pending), pending * 2 + 1)
    scalar = torch.tensor(1 - 2j).conj().imag
    assert scalar.is_neg() and torch.equal(staxlab.compile(lambda x: x + 1)(scalar), scalar + 1)
    assert [version.compilation.fallback_reason is None for version in compiled.versions] == [True, False]
    assert "negated" in str(compiled.recompiles[0])
    with pytest.raises(staxlab.LoweringError, match="resolve_neg"):
        staxlab.compile(lambda x: x + 1, strict_native=True)(pending)
    weight = pending
    free = staxlab.compile(lambda x: x + weight)
    x = torch.randn(5)
    for _ in range(3):
        assert torch.equal(free(x), x + pending)
    inside = staxlab.compile(lambda z: z.conj().imag * 2)
    for _ in range(3):
        assert torch.equal(inside(z), z.conj().imag * 2)
    both = staxlab.compile(lambda z: z.real + 1)
    for w in (z, z.conj(), z, z.conj()):
        assert torch.equal(both(w), w.real + 1)
