"""How compute functions are composed: who reads what, through which views, at which address."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import staxlab
from staxlab.errors import OptionError
from staxlab.loops.body import record
from staxlab.loops.composition import Applied, Load, compose, computed_names, index_text

from .lowered import CPU, GPU, program_of


def example_1_1(x, w):
    y = torch.relu(x + w)
    return (y * 2).sum(-1)


@pytest.fixture(scope="module")
def compilation():
    return staxlab.explain(example_1_1, torch.randn(64, 128), torch.randn(128))


def nest(box: Applied) -> list[str]:
    """The operators from outside in, along the first read of every box."""
    inner = [read.source for read in box.reads if isinstance(read.source, Applied)]
    return [box.operator, *(nest(inner[0]) if inner else [])]


def test_example_1_1_is_four_boxes_around_two_loads(compilation):
    made = compose(compilation.loops, "buf0")
    ((name, root),) = made.functions
    assert name == "" and nest(root) == ["sum", "mul", "relu", "add"]
    assert made.verb("") == "merges" and made.outcome == ""
    assert made.heading == "i0 < 64: sum over r0 < 128 in float32"
    assert [str(read.source) for read in made.loads()] == ["tmp0 = load x[128*i0 + r0]", "tmp1 = load w[r0]"]
    _, broadcast = made.loads()
    assert [(step.operator, index_text(step.index)) for step in broadcast.steps] == [("broadcast", "(r0,)")]
    assert index_text(broadcast.index) == "(i0, r0)"


def test_every_box_has_the_users_line_and_the_captured_node(compilation):
    made = compose(compilation.loops)
    by_id = {node.id: node for node in compilation.graph}
    for box in made.applied():
        assert [by_id[k].location for k in box.origins] == [box.location]
        assert by_id[next(iter(box.origins))].target_name().rpartition(".")[2] == box.operator
    assert [box.location.text for box in made.applied()] == ["return (y * 2).sum(-1)"] * 2 + [
        "y = torch.relu(x + w)"
    ] * 2
    # A broadcast belongs to the operator whose operands are broadcast.
    _, broadcast = made.loads()
    assert broadcast.steps[0].origins == made.applied()[-1].origins


def test_the_loader_chain_from_the_users_subscript_to_the_address():
    def f(x):
        return x.t().reshape(24)[3:] * 2

    made = staxlab.explain(f, torch.randn(4, 6)).loops.composition("buf0")
    (mul, clone) = made.applied()
    assert (mul.operator, clone.operator, clone.own_text()) == ("mul", "clone", ("tmp0, passed on",))
    (first,), (second,) = mul.reads, clone.reads
    chain = [(step.operator, index_text(step.index)) for step in (*first.steps, *second.steps)]
    assert chain == [
        ("slice", "(i0 + 3,)"),
        ("reshape", "(((i0 + 3) // 4), ((i0 + 3) % 4))"),
        ("t", "(((i0 + 3) % 4), ((i0 + 3) // 4))"),
    ]
    assert index_text(first.index) == "(i0,)" and second.index == first.steps[-1].index
    assert all(step.location.line == f.__code__.co_firstlineno + 1 for step in (*first.steps, *second.steps))
    values = {"i0": torch.arange(21)}
    assert torch.equal(second.source.address.evaluate(values), torch.arange(24).view(4, 6).t().reshape(24)[3:])


def test_text_form(compilation):
    lines = str(compose(compilation.loops)).splitlines()
    assert lines[0] == "buf0: float32[64], stride=[1]"
    assert lines[1] == "for i0 < 64: sum over r0 < 128 in float32"
    assert lines[2].startswith("sum at (i0, r0), merges tmp5") and lines[2].endswith(": return (y * 2).sum(-1)")
    line = example_1_1.__code__.co_firstlineno + 2
    assert lines[4].split("  #")[0].rstrip() == "└─ mul at (i0, r0)" and lines[4].endswith(f"  # line {line}")
    assert "         └─ tmp1 = load w[r0]" in lines and "              through broadcast: (r0,)" in lines
    assert sum(": y = torch.relu" in line for line in lines) == 1  # the words once, then the line's number


def test_a_value_read_twice_is_one_box():
    def f(x):
        y = x.exp()
        return (y * y).sum()

    made = compose(staxlab.explain(f, torch.randn(8, 8), target="sm_90").loops)
    (mul,) = [box for box in made.applied() if box.operator == "mul"]
    assert [read.again for read in mul.reads] == [False, True]
    assert mul.reads[0].source.result == mul.reads[1].source.result
    assert len([box for box in made.applied() if box.operator == "exp"]) == 1
    assert "as above" in str(made)


def test_both_levels_of_a_split_reduction():
    program = program_of(lambda x: (x * x).sum(-1), torch.randn(64, 16384), device=GPU)
    first, second = (compose(program, name) for name in computed_names(program))
    assert nest(first.functions[0][1])[1:] == ["mul"] and nest(second.functions[0][1]) == ["sum"]
    assert index_text(first.applied()[1].index) == "(i0, 8192*i1 + r0)"
    assert str(second.loads()[0].source.address) == "2*i0 + r0"


def test_a_split_over_two_dimensions_goes_through():
    program = program_of(lambda x: (x.exp() * 2).sum((0, 2)), torch.randn(64, 4, 4096), device=GPU)
    made = compose(program, computed_names(program)[0])
    assert nest(made.functions[0][1])[1:] == ["mul", "exp"] and len(made.loads()) == 1


def test_masked_and_indirect_reads():
    def f(x, i):
        return torch.cat([x.flip(0), x + 1])[i]

    made = compose(staxlab.explain(f, torch.randn(8), torch.tensor([3, 4])).loops)
    assert [box.operator for box in made.applied()] == ["index", "cat", "add", "flip"]
    index = made.applied()[0]
    assert index.own_text() == ("indirect0 = subscript tmp0 within 16, checked",)
    assert {read.source.buffer for read in made.loads()} == {"x", "i"}


def test_unknown_and_library_buffers():
    loops = staxlab.explain(lambda x: (x @ x).sort()[0] + 1, torch.randn(4, 4)).loops
    extern = next(b.name for b in loops.buffers if type(b).__name__ == "ExternBuffer")
    for name in (extern, "x", "nothing"):
        with pytest.raises(OptionError, match="has no compute function") as caught:
            compose(loops, name)
        assert computed_names(loops)[0] in caught.value.remedy
    with pytest.raises(OptionError, match="PyTorch computes all"):
        compose(staxlab.explain(lambda x: x.sort()[0], torch.randn(4)).loops)


def test_a_template_is_three_functions():
    program = program_of(lambda a, b: (a.t() @ b).relu(), torch.randn(16, 8), torch.randn(16, 8))
    found = [made for name in computed_names(program) if len((made := compose(program, name)).functions) > 1]
    if not found:
        pytest.skip("no matrix product is lowered to a template")
    (made,) = found
    assert [name for name, _ in made.functions] == ["left", "right", "epilogue"]
    assert made.outcome == "tmp2 = mul(tmp0, tmp1) is merged"
    left, right = made.loads()[:2]
    assert [step.operator for step in left.steps] == ["t"] and right.steps == ()
    assert "left:\nmm at (i0, r0), gives tmp0" in str(made)


def test_a_scatter_says_where_its_value_goes():
    program = program_of(lambda x, i: x.index_add(0, i, x[:2].exp()), torch.randn(4, 4), torch.tensor([1, 1]))
    made = compose(program)
    if made.outcome == "":
        pytest.skip("index_add is not lowered to a scatter")
    assert made.outcome == f"tmp{made.body.result} goes to {made.buffer.name}[i1 + 4*indirect0]"
    assert [box.operator for box in made.applied()] == ["index_add", "exp"] and made.outcome in str(made)


# -- the composition against the recorded body ------------------------------------------------------------------------

PROGRAMS = [
    lambda x, y: F.gelu(x + y.t()) * x,
    lambda x, y: F.softmax(x * y.t(), -1),
    lambda x, y: F.layer_norm(x, (6,)) + y.sum(0, keepdim=True)[:, :1],
    lambda x, y: torch.cat([x, y.t().flip(0)])[1:, ::2].cumsum(0),
    lambda x, y: torch.where(x > 0, x, y.t().roll(1, 0)).argmax(-1),
    lambda x, y: x.index_add(0, torch.tensor([0, 2]), y.t()[:2].exp()),
    lambda x, y: F.pad(x, (1, 2)).unfold(1, 3, 2).amax(-1),
    lambda x, y: (x[torch.tensor([1, 3, 0])] + y.t()[:3]).var(-1),
]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(range(len(PROGRAMS))), st.sampled_from([CPU, GPU]))
def test_every_statement_belongs_to_exactly_one_box(which, device):
    program = program_of(PROGRAMS[which], torch.randn(4, 6), torch.randn(6, 4), device=device)
    dtypes = {b.name: b.layout.dtype for b in (*program.inputs, *program.buffers)}
    for name in computed_names(program):
        made = compose(program, name)
        plain = record(program.buffer(name), dtypes)
        assert made.body == plain, "following a compute function changes nothing"
        bodies = [body for body in (plain, plain.epilogue) if body is not None]
        expected = sorted(
            s.id for body in bodies for s in body.all_statements() if s.operation not in ("load", "merged")
        )
        owned = [s.id for box in made.applied() for s in box.statements if s.operation != "merged"]
        if not made.body.epilogue and "right" not in dict(made.functions):
            assert sorted(owned) == expected
        loads = {(read.source.buffer, read.source.address) for read in made.loads()}
        assert loads == {(access.buffer, access.index) for access in plain.reads()}
        for read in made.loads():
            position = read.steps[-1].index if read.steps else read.index
            address = read.source.layout.address(position)
            values = {s.name: int(s.upper) // 2 for s in address.symbols | read.source.address.symbols}
            assert address.evaluate(values) == read.source.address.evaluate(values)


def test_loads_know_their_statement():
    made = compose(program_of(lambda x: x + x.t(), torch.randn(3, 3)))
    statements = {s.id: s for s in made.body.all_statements()}
    for read in made.loads():
        assert isinstance(read.source, Load)
        assert statements[read.source.result].args == (read.source.buffer, read.source.address)
