"""What a backend is given, what it must deliver, and what stays ours around it (Section 11.3)."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab.backends.region import divide
from staxlab.operators.record import record
from tests.backends.programs import PROGRAMS, check, same

AFTER = ("transforms", "operators")


def interpreting(after, log=None):
    """A backend that runs the graph it is given, and notes what that is."""
    from staxlab.backends import table

    def interpret(graph_module, example_inputs):
        if log is not None:
            log.append((graph_module, example_inputs))
        return graph_module.forward

    name = f"interpreting_{after}"
    staxlab.register_backend(name, interpret, after=after, replace=True)
    assert table.find(name).after == after
    return name


@pytest.fixture(autouse=True)
def fresh_table():
    from staxlab.backends import table

    yield
    table.clear()


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_the_programs_of_the_course_run(program, after):
    result = check(program, staxlab.compile(program.fn, backend=interpreting(after), strict_native=True))
    if after == "transforms":
        same(result, program.fn(*program.make()))


@pytest.mark.parametrize("after", AFTER)
def test_writes_views_and_identities_are_eagers(after):
    def f(x, y, z):
        x.add_(1)
        doubled = x * 2
        return {"view": x.t(), "own": [doubled, 3], "rows": doubled[1:], "same": y, "square": z.t() * z.t(),
                "copy": x.clone()}  # fmt: skip

    outcomes = []
    for call in (f, staxlab.compile(f, backend=interpreting(after), strict_native=True)):
        x, y, z = torch.arange(6.0).reshape(2, 3), torch.ones(3), torch.randn(4, 2, generator=torch.manual_seed(0))
        version = x._version
        found = call(x, y, z)
        assert found["view"].data_ptr() == x.data_ptr() and found["same"] is y
        rows, own = found["rows"], found["own"][0]
        assert rows.untyped_storage().data_ptr() == own.untyped_storage().data_ptr()
        assert found["copy"].data_ptr() != x.data_ptr()
        outcomes.append((x, x._version - version, found["own"], found["rows"], found["square"], found["copy"]))
    (x, writes, own, *rest), (x2, writes2, own2, *rest2) = outcomes
    same([x2, own2[0], *rest2], [x, own[0], *rest])
    assert writes == writes2 and own2[1] == 3


def test_a_backend_that_leaves_copies_out_is_given_results_of_their_own():
    def lazy(graph_module, example_inputs):
        return lambda x: (x, x)  # for x.clone() twice, and no arithmetic

    staxlab.register_backend("lazy", lazy, after="operators", replace=True)
    x = torch.ones(3)
    a, b = staxlab.compile(lambda x: (x.clone(), x.clone().mul(1.0).clone()), backend="lazy")(x)
    assert len({t.untyped_storage().data_ptr() for t in (x, a, b)}) == 3


def test_only_computing_is_handed_over():
    log = []
    name = interpreting("operators", log)
    compilation = staxlab.explain(lambda x: (x.t(), x.sum(0)[1:]), torch.ones(2, 3), backend=name)
    ((module, examples),) = log
    assert [node.target_name() for node in module.graph.calls] == ["aten.sum.dim_IntList"]
    assert [node.target_name() for node in compilation.outside.division.finishing][:1] == ["aten.t.default"]
    log.clear()
    views_only = staxlab.explain(lambda x: x.t(), torch.ones(2, 3), backend=name)
    assert log == [] and views_only.call([torch.ones(2, 3)])[0].shape == (3, 2)


@pytest.mark.parametrize("after", AFTER)
def test_example_inputs_are_copies_that_may_be_written_into(after):
    def scribbling(graph_module, example_inputs):
        strides.append(example_inputs[0].stride())
        example_inputs[0].fill_(7)
        torch.rand(3)
        return graph_module.forward

    strides = []
    staxlab.register_backend("scribbling", scribbling, after=after, replace=True)
    x = torch.ones(4, 6)[:, ::2]
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    assert staxlab.compile(lambda x: x + 1, backend="scribbling")(x).sum() == 24
    assert torch.equal(torch.rand(1), expected)  # the random state is as it was
    assert x.sum() == 12 and strides == [(6, 2)]


@pytest.mark.parametrize("after", AFTER)
def test_random_programs_draw_what_eager_draws(after):
    f = lambda x: F.dropout(x, 0.5) + torch.rand_like(x)  # noqa: E731
    compiled = staxlab.compile(f, backend=interpreting(after), strict_native=True)
    x = torch.ones(50)
    for _ in range(2):
        torch.manual_seed(5)
        expected = f(x)
        torch.manual_seed(5)
        same(compiled(x), expected)


@pytest.mark.parametrize("after", AFTER)
def test_training_has_eagers_gradients(after):
    x, w1, b1, w2, b2 = PROGRAMS[3].make()
    log = []
    compiled = staxlab.compile(PROGRAMS[3].fn, backend=interpreting(after, log), strict_native=True)
    leaves = [t.clone().requires_grad_() for t in (x, w1, b1, w2, b2)]
    compiled(*leaves).square().sum().backward()
    others = [t.clone().requires_grad_() for t in (x, w1, b1, w2, b2)]
    PROGRAMS[3].fn(*others).square().sum().backward()
    for a, b in zip(leaves, others, strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    assert len(log) == (2 if after == "operators" else 1)  # a forward and a backward half


def test_a_callable_that_cuts_the_gradients_off_is_refused():
    def detaching(graph_module, example_inputs):
        return lambda *inputs: graph_module.forward(*(x.detach() for x in inputs))

    compiled = staxlab.compile(lambda w: (w * 2).sum(), backend=detaching)
    with pytest.raises(staxlab.BackendError, match="cannot train <lambda>: result 0.*\n.*after='operators'"):
        compiled(torch.ones(2, requires_grad=True))
    with torch.no_grad():
        assert compiled(torch.ones(2, requires_grad=True)) == 4
    staxlab.register_backend("detaching", detaching, after="operators", replace=True)
    w = torch.ones(2, requires_grad=True)
    staxlab.compile(lambda w: (w * 2).sum(), backend="detaching")(w).backward()
    assert w.grad.tolist() == [2, 2]


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize(
    "deliver, words",
    [
        (lambda y: None, "NoneType instead of a tuple of 2"),
        (lambda y: y, "Tensor instead of a tuple of 2"),
        (lambda y: (y,), "1 results where the graph has 2"),
        (lambda y: (y, 3), "int as result 1"),
        (lambda y: (y, y[:1]), r"float32\[1\] on cpu as result 1, which is float32\[3\]"),
        (lambda y: (y.double(), y), "float64.* as result 0"),
        (lambda y: (y, y.to("meta")), "on meta as result 1"),
    ],
)
def test_what_breaks_the_contract_is_named(after, deliver, words):
    def wrong(graph_module, example_inputs):
        return lambda x: deliver(x + 1)

    staxlab.register_backend("wrong", wrong, after=after, replace=True)
    with pytest.raises(staxlab.BackendError, match=words):
        staxlab.compile(lambda x: (x + 1, x * 2), backend="wrong")(torch.ones(3))


@pytest.mark.parametrize("after", AFTER)
def test_a_backend_that_raises_is_a_visible_fallback_or_in_strict_mode_an_error(after):
    def refusing(graph_module, example_inputs):
        raise ValueError("not on a Monday")

    staxlab.register_backend("refusing", refusing, after=after, replace=True)
    with pytest.warns(staxlab.FallbackWarning, match="ValueError: not on a Monday"):
        assert staxlab.compile(lambda x: x + 1, backend="refusing")(torch.ones(1)).item() == 2
    with pytest.raises(staxlab.BackendError, match="refused .*ValueError: not on a Monday") as raised:
        staxlab.compile(lambda x: x + 1, backend="refusing", strict_native=True)(torch.ones(1))
    assert isinstance(raised.value.__cause__, ValueError)
    with pytest.raises(staxlab.BackendError, match="returned int"):
        staxlab.compile(lambda x: x + 1, backend=lambda g, e: 3, strict_native=True)(torch.ones(1))


def test_a_backward_half_that_is_refused_runs_operator_by_operator():
    def only_forward(graph_module, example_inputs):
        if any(node.name.startswith("tangents") for node in graph_module.graph.placeholders):
            raise NotImplementedError("no derivatives")
        return graph_module.forward

    staxlab.register_backend("only_forward", only_forward, after="operators", replace=True)
    w = torch.ones(3, requires_grad=True)
    with pytest.warns(staxlab.FallbackWarning, match="backward runs operator by operator.*no derivatives"):
        staxlab.compile(lambda w: w.exp().sum(), backend="only_forward")(w).backward()
    torch.testing.assert_close(w.grad, w.detach().exp())


def test_an_error_while_running_is_the_programs_own_with_a_note():
    def failing(graph_module, example_inputs):
        def run(x):
            raise IndexError("out of range")

        return run

    with pytest.raises(IndexError) as raised:
        staxlab.compile(lambda x: x + 1, backend=failing)(torch.ones(1))
    assert raised.value.__notes__ == ["while <lambda> ran in backend 'failing'"]


def test_each_kind_of_input_is_a_version_of_its_own():
    log = []
    compiled = staxlab.compile(lambda x: x + 1, backend=interpreting("transforms", log))
    compiled(torch.ones(2)), compiled(torch.zeros(2)), compiled(torch.ones(3))
    assert len(log) == 2 and len(compiled.versions) == 2


def test_forward_derivatives_go_through_a_backend():
    name = interpreting("transforms")
    x, v = torch.rand(4), torch.rand(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", staxlab.FallbackWarning)
        value, tangent = staxlab.jvp(lambda x: x.sin().sum(), backend=name)((x,), (v,))
    torch.testing.assert_close(tangent, (x.cos() * v).sum())
    torch.testing.assert_close(value, x.sin().sum())


def test_the_record_prints_what_was_handed_over():
    compilation = staxlab.explain(lambda x: (x + 1).t(), torch.ones(2, 3), backend=interpreting("operators"))
    text = str(compilation)
    assert "Outside backend (Section 11.3" in text and "given 1 operation (operators)" in text
    assert "carried out here afterwards" in text and "%t" in text


def test_divisions_of_random_programs_compute_what_the_graph_computes():
    def program(x, y):
        a = x[1:] * 2
        y.mul_(3)
        parts = (x + y).split(2)
        y.t().add_(1)
        return a, a[0], parts[1], parts[0].t(), y, y[0], x.expand(2, 4, 4), (x @ y).view(2, 8)[1]

    def run(call):
        x, y = torch.arange(16.0).view(4, 4), torch.ones(4, 4)
        return call(x, y), x, y

    found = staxlab.compile(program, backend=interpreting("operators"), strict_native=True)
    (a, *first), (b, *second) = run(program), run(found)
    same([*b, *second], [*a, *first])
    graph = record(staxlab.trace(program, torch.ones(4, 4), torch.ones(4, 4)).module,
                   [torch.ones(4, 4), torch.ones(4, 4)])  # fmt: skip
    division = divide(graph)
    division.module.graph.check()
    assert not any(node.target_name() == "aten.copy_.default" for node in division.module.graph)
