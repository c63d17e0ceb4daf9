"""Programs that calculate with sizes and decide by them: dynamic mode against eager execution (Section 10.4)."""

from __future__ import annotations

import enum
import functools
import math
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import staxlab
from staxlab.capture.tracer import trace
from staxlab.errors import CaptureError, SideEffectWarning
from staxlab.options import Options
from tests.specialize.regions import outcome


def dynamic(fn, **options):
    return staxlab.compile(fn, dynamic=True, backend="eager", options={"max_versions": 64, **options})


def ramp(*shape):
    return (torch.arange(1.0, 1.0 + math.prod(shape)) / 2).reshape(shape)


def same(a, b):
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or (a.shape, a.dtype) != (b.shape, b.dtype):
            return False
        return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b


# -- one program after the other --------------------------------------------------------------------------------------

SHAPES = [(4, 3), (6, 3), (3, 3), (5, 5), (7, 2), (1, 3), (4, 1), (0, 3), (4, 3)]
CLASSES = 4  # both sizes 2 or more; one of them 1; no rows


class Four(enum.IntEnum):
    FOUR = 4


@functools.lru_cache
def cached_half(n):
    return n // 2


def matched(x):
    match x.shape:
        case (4, m):
            return x + m
        case (n, 3):
            return x * n
    return x


def caught(x):
    try:
        return x * (12 // (x.shape[0] - 4))
    except ZeroDivisionError:
        return x - 1


def turned(x):
    """The shape of ``y`` is asked for before and after it changes, that of ``z`` only after."""
    y = x * 1
    z, n = y + 1, y.shape[0]
    y.t_()
    return y * y.shape[0] + n, z * z.shape[0]


def squeezed(x):
    y = x[:, :1] * 1
    y.squeeze_(1).unsqueeze_(0)
    return y * y.shape[1]


@torch.no_grad()
def without_gradients(x):
    return x * x.shape[0]


inner = staxlab.compile(lambda x, n: x * n + x.shape[0], dynamic=True, backend="eager")

#: With sizes of 2 and more all by one version.
ONE_VERSION = {
    "unpacked": lambda x: (lambda n, m: x * n + m)(*x.shape),
    "generator": lambda x: x * sum(extent * 2 for extent in x.shape) + math.prod(x.shape),
    "last two": lambda x: x.new_zeros(x.shape[-2:]) + x.new_ones((2, *x.shape)),
    "longer shape": lambda x: x.new_zeros(x.shape + (2,)) + x.new_ones(x.shape[::-1])[:1, :1],
    "left of a tensor": lambda x: x.shape[1] * x + (x.shape[1] - x) + x.shape[1] / (x + 1),
    "power": lambda x: x ** x.shape[1] + x.shape[1] ** (x / 9),
    "compared with a tensor": lambda x: (x < x.shape[1]) | (x.shape[0] == x),
    "full": lambda x: torch.full((x.shape[0],), x.shape[0]),
    "pad": lambda x: F.pad(x, (0, x.shape[1], x.shape[0], 1)),
    "einsum": lambda x: torch.einsum("ij,ik->jk", x, x) / x.shape[0],
    "narrow": lambda x: x.narrow(0, 0, x.shape[0] // 2) if x.dim() == 2 else x,
    "as_strided": lambda x: x.as_strided((x.shape[0],), (x.shape[1],)),
    "repeat": lambda x: x.repeat(x.shape[1], 1).roll(x.shape[0] // 2, 0),
    "linspace": lambda x: torch.linspace(0, x.shape[0], x.shape[0]) + torch.tensor(x.shape[1]),
    "eye": lambda x: torch.eye(*x.shape) + x.tril(x.shape[0] - x.shape[1]),
    "layer norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "unflatten": lambda x: x.flatten().unflatten(0, (x.shape[0], x.shape[1])),
    "written": lambda x: x.clone().fill_(x.shape[0]).mul_(x.shape[1]),
    "in-place shape change": turned,
    "no_grad": without_gradients,
    "rounded up": lambda x: F.pad(x, (0, -x.shape[1] % 4)),
    "nested": lambda x: inner(x, x.shape[1]) + 1,
    "isinstance": lambda x: x + 1 if isinstance(x.shape[0], int) else x,
    "shape and None": lambda x: x + 1 if x.shape[0] is not None and x.shape[0] != "a" else x,
    "divided": lambda x: x * divmod(x.shape[0], 3)[1] + x.shape[1] % -3 + -x.shape[0] // 2,
    "free tensor's": lambda x: x[:, :1] * weight.t().shape[0] + x.shape[0],
    "one more than the last": lambda x: (x[x.shape[0] - 1] if x.shape[0] > 0 else x.sum(0)) * x[:1].shape[1],
}
weight = torch.ones(3, 2)

#: With as many as the decisions or numbers differ.
SOME_VERSIONS = {
    "branch": lambda x: x + 1 if x.shape[0] > 4 else x - 1,
    "chained": lambda x: x + 1 if 3 < x.shape[0] <= x.shape[1] + 1 < 9 else x - 1,
    "shapes compared": lambda x: x + 1 if x.shape == x.t().shape else x - 1,
    "tuples compared": lambda x: x + 1 if tuple(x.shape) == (4, 3) else x - int(x.shape < (4, 4)),
    "match": matched,
    "caught": caught,
    "max": lambda x: x * max(x.shape) - min(x.shape[0], 4) + sorted(x.shape)[0],
    "member": lambda x: x * (x.shape[0] in (3, 4)) + {4: 2, 6: 5}.get(x.shape[1], 9),
    "hash": lambda x: x * {torch.Size((4, 3)): 5}.get(x.shape, 2),
    "range": lambda x: sum((x[i] for i in range(x.shape[0])), torch.zeros(1)),
    "text": lambda x: x * len(f"{x.shape[0]:>3}{x.shape}"),
    "float": lambda x: x / math.sqrt(x.shape[1]) + x.shape[0] ** 0.5 + float(x.shape[0]),
    "float comparison": lambda x: x + 1 if x.shape[0] > 4.5 else x - 1,
    "complex comparison": lambda x: x + 1 if x.shape[0] == 4 + 0j else x - 1,
    "bits": lambda x: x * ((x.shape[0] & 3) | (x.shape[1] << 1)) + x.shape[0].bit_length(),
    "truth": lambda x: x + 1 if x.shape[0] - 4 else x - 1,
    "an IntEnum": lambda x: x + 1 if x.shape[0] == Four.FOUR else x - Four.FOUR * x.shape[0],
    "a cached function": lambda x: x * cached_half(x.shape[0]) + cached_half(x.shape[1]),
    "sym functions": lambda x: x * torch.sym_max(x.shape[0], 4) + torch.sym_sum([*x.shape]) - torch.sym_int(x.shape[1]),
    "sym_float": lambda x: x * torch.sym_float(x.shape[0]) + torch.sym_ite(x.shape[0] > 4, 1, 2),
    "broadcast_shapes": lambda x: x.new_ones(torch.broadcast_shapes(x.shape, (1, x.shape[1]))),
    "NumPy": lambda x: x * float(np.sqrt(x.shape[0])) + int(np.prod(x.shape)) + np.array(x.shape).dtype.itemsize,
    "one_hot": lambda x: F.one_hot(torch.arange(x.shape[0]), num_classes=x.shape[0] + 1),
    "interpolate": lambda x: F.interpolate(x[None], size=x.shape[1] * 2) if x.shape[0] else x,
    "split": lambda x: x.split(max(x.shape[0] // 2, 1))[0],
    "unfold": lambda x: x.unfold(0, x.shape[0] // 2, 1),
    "in-place squeeze": squeezed,
    "returned": lambda x: (x + 1, x.shape[0], x.shape, {"n": x.numel() // 2}),
}


def check(fn):
    compiled = dynamic(fn)
    for shape in SHAPES:
        mine, theirs = ramp(*shape), ramp(*shape)
        try:
            expected = fn(theirs)
        except (RuntimeError, IndexError, ValueError) as error:
            with pytest.raises(type(error)):
                compiled(mine)
            continue
        assert same(compiled(mine), expected), shape
        assert same(mine, theirs)
    return compiled


@pytest.mark.parametrize("name", ONE_VERSION)
def test_one_version_for_all_sizes_from_2(name):
    assert len(check(ONE_VERSION[name]).versions) <= CLASSES


@pytest.mark.parametrize("name", SOME_VERSIONS)
def test_a_version_for_each_outcome(name):
    assert len(check(SOME_VERSIONS[name]).versions) > 1


def test_a_cached_size_does_not_reach_the_next_recording():
    """``lru_cache`` hands the size of one recording to the next, where the same symbol is another size."""

    @functools.lru_cache
    def twice(n):
        return n * 2

    def fn(x, y):
        return x * twice(y.shape[0])

    def swapped(y, x):
        return y * twice(x.shape[0])

    for program in (fn, swapped):
        compiled = dynamic(program)
        for n, m in ((4, 6), (6, 4), (4, 4), (5, 6), (6, 6)):
            args = ramp(n), ramp(m)
            assert same(compiled(*args), args[0] * (2 * args[1].shape[0]))
    assert twice(6) + 0 == 12


class Remembers(torch.nn.Module):
    def forward(self, x):
        self.n = x.shape[0]
        return x * self.n


def test_a_size_kept_outside_is_refused_or_named():
    module = Remembers()
    with pytest.raises(CaptureError, match=r"changes self\.n"):
        dynamic(module)(ramp(4, 3))
    assert not hasattr(module, "n")
    kept = []

    def fn(x):
        kept.append(x.shape[0])
        return x * kept[-1]

    with pytest.warns(SideEffectWarning, match="kept was changed"):
        compiled = dynamic(fn)
        compiled(ramp(4, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert same(compiled(ramp(6, 3)), ramp(6, 3) * 6)
    assert kept[0] == 4 and kept[0] + 1 == 5


def test_the_programs_own_refusal_of_a_size_passes_through():
    def fn(x):
        if x.shape[0] > 5:
            raise ValueError(f"{x.shape[0]} rows are too many")
        return x * 2

    compiled = dynamic(fn)
    for rows in (3, 7, 5, 9, 4):
        if rows > 5:
            with pytest.raises(ValueError, match=f"{rows} rows"):
                compiled(ramp(rows))
        else:
            assert same(compiled(ramp(rows)), ramp(rows) * 2)
    assert len(compiled.versions) == 1


def test_gradients_of_programs_that_calculate_with_sizes():
    def fn(x):
        half = x[: x.shape[0] // 2] if x.shape[0] > 4 else x
        return (half * x.shape[0]).sum() / math.prod(x.shape)

    compiled = dynamic(fn)
    for rows in (6, 8, 3, 11):
        mine, theirs = ramp(rows, 2).requires_grad_(), ramp(rows, 2).requires_grad_()
        compiled(mine).backward()
        fn(theirs).backward()
        assert same(mine.grad, theirs.grad)


def test_autocast_around_sizes():
    def fn(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (x @ x.t()) * x.shape[0]

    compiled = dynamic(fn)
    for rows in (3, 5, 7):
        assert same(compiled(ramp(rows, 2)), fn(ramp(rows, 2)))
    assert len(compiled.versions) == 1


def test_example_10_4():
    def fn(x):
        return x + 1 if x.shape[0] > 4 else x * 2

    compiled = dynamic(fn)
    for n in (3, 7, 2, 9, 4, 11):
        assert same(compiled(ramp(n)), fn(ramp(n)))
    assert len(compiled.versions) == 2
    compiled = dynamic(lambda x: x * 2 + 1)
    for n in (3, 1, 0, 7, 1, 0, 11):
        compiled(ramp(n))
    assert len(compiled.versions) == 3
    compiled = dynamic(lambda x: x * 2 + 1)
    for n in (3, 4, 5):
        for x in (ramp(n, n + 1), ramp(n + 1, n).t()):
            assert same(compiled(x), x * 2 + 1)
    assert len(compiled.versions) == 2


# -- random programs with branches: as eager execution, and no more versions than guard classes -----------------------


PRIMES = (0, 1, 2, 3, 4, 5, 7, 8, 11, 13)
SIZE_ATOMS = ("n", "m", "k", "x.numel()", "(n + m)", "y.shape[0]", "x.t().shape[0]", "2", "3")
SIZE_STEPS = ("({} + {})", "({} * {})", "({} - {})", "({} // {})", "({} % {})", "max({}, {})", "min({}, {})")
CONDITIONS = ("{} > {}", "{} == {}", "{} <= {}", "{} % 2 == 0", "{} != 4", "3 < {} < 12", "x.shape[0] == y.shape[0]")
RESULTS = (
    "x * {}", "x[: {}] + 1", "F.pad(y, (0, abs({})))", "torch.full((abs({}) % 9,), {})", "x.new_ones(x.shape) - {}",
    "torch.arange(abs({}) % 17) * 2", "x.reshape(n * m)", "y.repeat(abs({}) % 4)", "x.sum(0) / (abs({}) + 1)",
    "torch.cat([y, y * {}])", "x.t() + {}", "y[max(k - 2, 0) :] * {}", "x.flatten()[: {}]",
)  # fmt: skip


@st.composite
def size_expressions(draw, depth=2):
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from(SIZE_ATOMS))
    step = draw(st.sampled_from(SIZE_STEPS))
    return step.format(draw(size_expressions(depth - 1)), draw(size_expressions(depth - 1)))


def filled(draw, templates):
    template = draw(st.sampled_from(templates))
    return template.format(*(draw(size_expressions()) for _ in range(template.count("{}"))))


@st.composite
def size_programs(draw):
    """Python source of a function of two tensors, with branches on sizes."""
    lines = ["def fn(x, y):", "    n, m = x.shape", "    k = y.size(0)", "    results = []"]
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            lines += [f"    if {filled(draw, CONDITIONS)}:", f"        results.append({filled(draw, RESULTS)})"]
            lines += ["    else:", f"        results.append({filled(draw, RESULTS)})"]
        else:
            name = draw(st.sampled_from("nmk"))
            lines += [f"    results.append({filled(draw, RESULTS)})"]
            if draw(st.booleans()):
                lines += [f"    if {filled(draw, CONDITIONS)}:", f"        results.append({name})"]
    return "\n".join([*lines, "    return results"])


calls = st.lists(st.tuples(*[st.sampled_from(PRIMES)] * 3), min_size=3, max_size=6)


def guard_class(source, shape):
    """Which sizes are 0 or 1 and how every decision comes out, by a recording of its own for this shape: two shapes of
    one class must share a version, whichever came first."""
    n, m, k = shape
    pattern = tuple(size if size < 2 else 2 for size in shape)
    if n * m == 0:
        pattern = (n, m, pattern[2])  # no elements: the shape is in the key
    capture = trace(compiled_text(source), (ramp(n, m), ramp(k)), options=Options(dynamic=True))
    guard = capture.shape_guard
    decisions = tuple(str(d.relation) for d in guard.decisions) if guard is not None else ()
    pinned = tuple(shape[:2] if capture.inputs[i].path == "x" else shape[2:] for i in capture.pinned)
    return pattern, decisions, pinned


@functools.lru_cache(maxsize=64)
def compiled_text(source):
    scope = {"torch": torch, "F": F}
    exec(compile(source, "<random program>", "exec"), scope)
    return scope["fn"]


def check_source(source, shapes):
    """The number of pairs of a program and a shape that ran."""
    fn = compiled_text(source)
    compiled = dynamic(fn, max_compilations=1000)
    classes, ran = set(), 0
    for shape in [*shapes, *shapes]:
        n, m, k = shape
        expected = outcome(fn, (ramp(n, m), ramp(k)))
        got = outcome(compiled, (ramp(n, m), ramp(k)))
        assert same(got, expected), (source, shape, got, expected)
        if not isinstance(expected, type):
            classes.add(guard_class(source, shape))
            ran += 1
    assert len(compiled.versions) <= len(classes), (source, shapes, classes)
    return ran


def search(examples):
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))


@search(30)
@given(size_programs(), calls)
def test_random_programs_over_sizes(source, shapes):
    check_source(source, shapes)


@pytest.mark.slow
@search(500)
@given(size_programs(), calls)
def test_many_random_programs_over_sizes(source, shapes):
    check_source(source, shapes)


def _factor(n):
    return 2 if type(n) == int else 3  # noqa: E721


@pytest.mark.parametrize(
    "function", [lambda x: x * 2 if type(x.shape[0]) is int else x * 3, lambda x: x * _factor(x.shape[0])]
)
def test_a_program_that_asks_for_types_is_given_numbers(function):
    compiled = staxlab.compile(function, dynamic=True, backend="eager")
    for n in (3, 5, 3):
        x = torch.randn(n)
        assert torch.equal(compiled(x), function(x))
    assert len(compiled.versions) == 2  # the shape that was read is in the key
    with pytest.raises(staxlab.ConstraintError, match="asks for the type"):
        staxlab.export(function, (torch.randn(4),), dims={"x": {0: staxlab.Dim("n")}})
