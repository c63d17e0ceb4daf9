"""Every kind of view, written through (Section 4.9, Proposition 4.4): after it eager execution and the graph agree on
values, strides, memory, version counters and what a later write reaches."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import staxlab
from staxlab.autodiff.forward_mode import jacobian_vector_graph
from staxlab.autodiff.joint import joint_graph
from staxlab.errors import FallbackWarning
from staxlab.fallbacks import REMEDIES
from tests.loops.lowered import module_of, operators_of
from tests.transform.observation import difference, observe

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def numbers():
    return torch.arange(24.0).view(4, 6) / 4 - 2


def complex_numbers():
    return torch.complex(numbers(), numbers().flip(0) + 1)


def gappy():
    return torch.arange(96.0).view(8, 12)[::2, ::2] / 8 - 3


def gappy_complex():
    return torch.complex(gappy(), gappy().flip(1))[:, 1:]


def doubled():
    """Elements in pairs, for views that make two of one or one of two."""
    return torch.arange(48.0).view(3, 8, 2) / 4 - 5


REAL = {
    "select": lambda x: x[1],
    "select column": lambda x: x[:, -2],
    "slice": lambda x: x[1:3, 1::2],
    "narrow": lambda x: x.narrow(1, 2, 3),
    "transpose": lambda x: x.t(),
    "permute": lambda x: x.unsqueeze(1).permute(2, 0, 1),
    "movedim": lambda x: x[None].movedim(0, -1),
    "view": lambda x: x.view(2, 2, *x.shape[1:]),
    "flatten of rows": lambda x: x[:, :4].unflatten(1, (2, 2)),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "squeeze": lambda x: x[None, :, None].squeeze(2).squeeze(0),
    "diagonal": lambda x: x.diagonal(1),
    "unfold": lambda x: x.unfold(1, 2, 2),
    "unfold with gaps": lambda x: x.unfold(1, 2, 3),
    "unfold into long windows": lambda x: x.unfold(0, 4, 4),
    "split": lambda x: x.split(4, 1)[1],
    "split with sizes": lambda x: x.split([1, 3])[1],
    "chunk": lambda x: x.chunk(2, 1)[0],
    "unbind": lambda x: x.unbind(1)[3],
    "tensor_split": lambda x: x.tensor_split(3)[1],
    "one row of an expanded view": lambda x: x[None].expand(3, *x.shape)[2],
    "one window of overlapping ones": lambda x: x.unfold(1, 3, 1)[:, 2],
    "diagonal of a row": lambda x: x[0].view(1, -1).diagonal(),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "part of data": lambda x: x[1:].data[:, 0],
    "negative": lambda x: torch._neg_view(x),
    "part of the negative": lambda x: torch._neg_view(x)[1:, 2],
    "integers": lambda x: x.view(torch.int32),
    "as_strided": lambda x: x.as_strided((2, 3), (x.stride(0), x.stride(1))),
    "as_strided along the diagonal": lambda x: x.as_strided((3,), (x.stride(0) + x.stride(1),)),
    "as_strided across": lambda x: x.as_strided((6, 4), (x.stride(1), x.stride(0))),
}
DENSE = {  # for tensors without gaps
    "halves": lambda x: x.view(torch.int16),
    "bytes": lambda x: x.view(torch.uint8),
    "bytes of a part": lambda x: x[1:3].view(torch.uint8)[:, 3::4],
    "doubles": lambda x: x.view(torch.float64),
    "a column of doubles": lambda x: x[2:].view(torch.float64)[:, 1],
    "complex dtype": lambda x: x.view(torch.complex64),
    "halves of a column": lambda x: x[:, 1:2].view(torch.bfloat16),
    "as complex": lambda x: torch.view_as_complex(x.view(4, 3, 2)),
    "conjugate of as complex": lambda x: torch.view_as_complex(x.view(4, 3, 2)).conj(),
    "flat": lambda x: x.view(-1)[3:17],
    "as_strided flat": lambda x: x.as_strided((3, 2), (4, 1)),
    "as_strided column of pairs": lambda x: x.view(-1).as_strided((4, 2), (5, 2)),
}
COMPLEX = {
    "conjugate": lambda z: z.conj(),
    "conjugate twice": lambda z: z.conj()[1:].conj(),
    "part of the conjugate": lambda z: z.conj()[1:, ::2],
    "adjoint": lambda z: z.mH,
    "real": lambda z: z.real,
    "imag": lambda z: z.imag,
    "torch.real": lambda z: torch.real(z)[1],
    "real of the conjugate": lambda z: z.conj().real,
    "imag of the conjugate": lambda z: z.conj().imag,
    "part of that": lambda z: z.conj().t().imag[1:, 2],
    "as real": lambda z: torch.view_as_real(z),
    "as real, rows": lambda z: torch.view_as_real(z)[1:, :, 1],
    "diagonal": lambda z: z.diagonal(),
    "negative": lambda z: torch._neg_view(z),
    "as_strided": lambda z: z.as_strided((2, 2), z.stride()),
}
PAIRS = {
    "as complex": lambda x: torch.view_as_complex(x),
    "rows of as complex": lambda x: torch.view_as_complex(x)[1:, ::3],
    "imag of as complex": lambda x: torch.view_as_complex(x).imag[:, 2:4],
    "conjugate": lambda x: torch.view_as_complex(x).conj()[0],
    "there and back": lambda x: torch.view_as_real(torch.view_as_complex(x).t())[..., 1],
    "a larger dtype": lambda x: x.view(torch.float64).squeeze(-1),
    "a smaller dtype": lambda x: x.view(torch.float16)[..., 1::2],
}
KINDS = [
    *((f"{name}, dense", numbers, view) for name, view in (REAL | DENSE).items()),
    *((f"{name}, transposed", lambda: numbers().t().contiguous().t(), view) for name, view in REAL.items()
      if name not in ("view",)),
    *((f"{name}, with gaps", gappy, view) for name, view in REAL.items()),
    *((f"complex {name}", complex_numbers, view) for name, view in COMPLEX.items()),
    *((f"complex {name}, with gaps", gappy_complex, view) for name, view in COMPLEX.items()),
    *((f"pairs {name}", doubled, view) for name, view in PAIRS.items()),
]  # fmt: skip


def add(v):
    v.add_(1) if v.dtype != torch.uint8 else v.bitwise_xor_(1)


WRITES = {
    "add": add,
    "scale by itself": lambda v: v.mul_(v),
    "fill": lambda v: v.fill_(3),
    "copy": lambda v: v.copy_(torch.arange(v.numel(), dtype=torch.float32).view(v.shape)),
    "part": lambda v: v[..., :1].zero_(),
    "out": lambda v: torch.sub(v, v, out=v),
}


def program(view, write, own: bool, returned: str):
    def f(x):
        y = x * 1 if own else x
        early = view(y)
        write(view(y))
        if returned == "base":
            return y
        if returned == "view":
            return view(y)
        if returned == "all":
            return y, early, view(y)
        return early + early, y * 2

    return f


def outcome(function, make, signed_zero: bool = True):
    """What a first and a second call do; an exception is an outcome too."""
    seen = []
    for _ in range(2):
        try:
            seen.append(observe(function, [make()], signed_zero=signed_zero))
        except (RuntimeError, IndexError) as error:
            seen.append({"refused": type(error)})
    return seen


def agree(function, make, backends, *, strict: bool) -> None:
    """``strict``: no fallback may have been needed, if the program is one in eager execution at all."""
    # PyTorch's sign of a complex 0 that is negated depends on how many numbers lie side by side.
    signed_zero = make not in (complex_numbers, gappy_complex)
    expected = outcome(function, make, signed_zero)
    for backend in backends:
        compiled = staxlab.compile(function, backend=backend)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            actual = outcome(compiled, make, signed_zero)
        for got, wanted in zip(actual, expected, strict=True):
            found = difference(got, wanted)
            assert found is None, f"{backend}: {found}"
        if strict and "refused" not in expected[0]:
            assert compiled.versions[0].compilation.fallback_reason is None, backend


def each(kinds):
    return pytest.mark.parametrize(("make", "view"), [kind[1:] for kind in kinds], ids=[kind[0] for kind in kinds])


either = pytest.mark.parametrize("own", [False, True], ids=["input", "own"])


@either
@each(KINDS)
def test_every_view_can_be_written_through(make, view, own):
    agree(program(view, add, own, "all"), make, ("aot_eager",), strict=True)
    agree(program(view, add, own, "read"), make, ("aot_eager",), strict=True)


@pytest.mark.slow
@either
@each(KINDS)
def test_every_view_can_be_written_through_by_everything(make, view, own):
    for write in WRITES.values():
        for returned in ("base", "view", "all", "read"):
            agree(program(view, write, own, returned), make, ("aot_eager",), strict=True)


def through_kernels(make, view, own):
    """No fallback of the region where no view that kernels cannot make is returned."""
    agree(program(view, add, own, "read"), make, ("stax",), strict=True)
    agree(program(view, add, own, "all"), make, ("eager", "stax"), strict=False)


@either
@each(KINDS[::12])
def test_kernels_write_through_views(make, view, own):
    through_kernels(make, view, own)


@pytest.mark.slow
@either
@each(KINDS)
def test_kernels_write_through_every_view(make, view, own):
    through_kernels(make, view, own)


# -- chains -----------------------------------------------------------------------------------------------------------

STEPS = [*{**REAL, **DENSE, **COMPLEX, **PAIRS}.values()]


@st.composite
def chains(draw):
    """A base, views each of the one before, and the writes: into which of them, and how."""
    make = draw(st.sampled_from([numbers, gappy, complex_numbers, gappy_complex, doubled]))
    current, views = make(), []
    for _ in range(draw(st.integers(1, 4))):
        view = draw(st.sampled_from(STEPS))
        try:
            current = view(current)
        except (RuntimeError, IndexError):
            continue  # not for a tensor of this shape and dtype
        views.append(view)
    writes = st.tuples(st.integers(0, len(views)), st.sampled_from(sorted(WRITES)))
    return make, views, draw(st.lists(writes, min_size=1, max_size=3))


def chained(views, writes, own: bool, returned: bool):
    def f(x):
        made = [x * 1 if own else x]
        for view in views:
            made.append(view(made[-1]))
        for place, write in writes:
            WRITES[write](made[place])
        again = made[0]
        for view in views:
            again = view(again)
        return (made[-1], again, made[0]) if returned else (made[-1] + 0, again * 1, [v * 2 for v in made])

    return f


@given(chains(), st.booleans(), st.booleans())
def test_any_chain_of_views_can_be_written_through(chain, own, returned):
    make, views, writes = chain
    agree(chained(views, writes, own, returned), make, ("aot_eager",), strict=False)


@pytest.mark.slow
@settings(max_examples=300)
@given(chains(), st.booleans(), st.booleans())
def test_kernels_write_through_any_chain_of_views(chain, own, returned):
    make, views, writes = chain
    agree(chained(views, writes, own, returned), make, ("stax",), strict=False)


# -- what is refused, and the advice ----------------------------------------------------------------------------------


def with_offset():
    return torch.arange(10.0)[2:]


def written_in_part(a, b):
    a.add_(1)
    return b * 2


REFUSED = {
    "overlapping windows": (lambda x: x.unfold(0, 3, 1).add_(1), lambda: (numbers()[0],), "overlap"),
    "overlapping as_strided": (lambda x: x.as_strided((3, 2), (1, 1)).mul_(2), lambda: (numbers(),), "overlap"),
    "an input that overlaps itself": (
        lambda x: x.add_(1), lambda: (torch.zeros(6).as_strided((3, 4), (1, 1)),), "overlap"),
    "beyond the elements": (lambda x: x.as_strided((2,), (5,)).add_(1), lambda: (gappy()[:, :2],), "outside"),
    "from the start of the storage": (
        lambda x: x.as_strided((2,), (1,), 4).add_(1), lambda: (with_offset(),), "outside"),
    "from there, made before": (
        lambda x: (lambda w: (x.add_(1), w * 2)[1])(x.as_strided((2,), (1,), 4)), lambda: (with_offset(),), "outside"),
    "from there, made after": (
        lambda x: (x.add_(1), x.as_strided((2,), (1,), 4) * 2)[1], lambda: (with_offset(),), "outside"),
    "through another input's end": (
        lambda a, b: (lambda w: (b.add_(1), w * 2)[1])(a.as_strided((4,), (1,))),
        lambda: (lambda x: (x[:2], x[2:]))(torch.arange(4.0)), "outside"),
    "through another input's end, afterwards": (
        lambda a, b: (b.add_(1), a.as_strided((4,), (1,)) * 2)[1],
        lambda: (lambda x: (x[:2], x[2:]))(torch.arange(4.0)), "outside"),
    "twice": (lambda x: torch._foreach_add_([x, x[0]], 1), lambda: (numbers(),), "written-twice"),
    "inputs that overlap in part": (
        written_in_part, lambda: (lambda x: (x[:3], x[1:]))(numbers()), "shared-input"),
    "inputs of two dtypes": (written_in_part, lambda: (lambda x: (x, x.view(torch.int32)))(numbers()), "shared-input"),
    "a sparse tensor": (
        lambda x: (lambda s: (s.mul_(2), s.to_dense())[1])(x.to_sparse()), lambda: (numbers(),), "unsupported-tensor"),
    "a draw along strides": (lambda x: x.t().normal_(), lambda: (numbers(),), "random-layout"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_inverse_is_refused_with_advice_that_fits(name):
    function, make, kind = REFUSED[name]
    for backend in ("aot_eager", "stax"):
        compiled = staxlab.compile(function, backend=backend)
        for _ in range(2):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FallbackWarning)
                actual = observe(compiled, make())
            assert difference(actual, observe(function, make())) is None
        assert compiled.versions[0].compilation.fallback_remedy == REMEDIES[kind]


def test_a_window_of_the_storage_is_found_at_any_offset():
    """The key does not hold offsets: what as_strided reads by one counts from there at every call."""
    f = staxlab.compile(lambda x: (x.as_strided((2,), (1,), 4) * 2, x.add_(1))[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        for first in (2, 1, 2):
            x = torch.arange(10.0)[first : first + 8]
            assert f(x).tolist() == [8, 10]


# -- inputs that share memory -----------------------------------------------------------------------------------------


def sharing(a, b):
    a.add_(1)
    c = b * 2
    b.mul_(3)
    return a + 0, c, b[:1], b, a


SHARES = {
    "one tensor": lambda x: (x, x),
    "all of it": lambda x: (x, x[:]),
    "a row": lambda x: (x, x[1]),
    "the row first": lambda x: (x[1], x),
    "transposed in part": lambda x: (x, x.t()[1:]),
    "a block": lambda x: (x, x[::2, 1:4]),
    "a run": lambda x: (x, x.view(-1)[3:9]),
    "the diagonal": lambda x: (x, x.diagonal()),
    "a column of one": lambda x: (x, x[:, 2:3, None]),
    "every fifth": lambda x: (x, x.view(-1)[::5]),
    "detached": lambda x: (x, x[2].detach()),
    "data": lambda x: (x, x.data),
    "next to each other": lambda x: (x[:2], x[2:]),
    "columns": lambda x: (x[:, 0], x[:, 3]),
    "blocks": lambda x: (x[:, :3], x[:, 3:]),
}


@pytest.mark.parametrize("name", SHARES)
def test_a_write_into_one_input_is_read_through_another(name):
    def make():
        return SHARES[name](numbers())

    def turned(b, a):
        return sharing(a, b)

    for function in (sharing, turned):
        expected = observe(function, make())
        for backend in ("aot_eager", "stax"):
            compiled = staxlab.compile(function, backend=backend)
            for _ in range(2):
                assert difference(observe(compiled, make()), expected) is None, backend
            assert compiled.versions[0].compilation.fallback_reason is None
        apart = observe(function, [t.clone() for t in make()])  # another key, another program
        assert difference(observe(compiled, [t.clone() for t in make()]), apart) is None


@st.composite
def views_of_one_memory(draw):
    """Views of one base, each by up to two steps, and the order of writes into them."""
    base = draw(st.sampled_from([numbers, numbers, gappy, doubled, complex_numbers]))
    several = []
    for _ in range(draw(st.integers(2, 3))):
        current, views = base(), []
        for _ in range(draw(st.integers(0, 2))):
            view = draw(st.sampled_from(STEPS))
            try:
                current = view(current)
            except (RuntimeError, IndexError):
                continue
            views.append(view)
        several.append(views)
    writes = st.tuples(st.integers(0, len(several) - 1), st.sampled_from(sorted(WRITES)))
    return base, several, draw(st.lists(writes, min_size=1, max_size=3))


@given(views_of_one_memory(), st.integers(0, 2))
def test_writes_into_any_views_of_one_memory_are_seen_by_the_others(drawn, returned):
    base, several, writes = drawn

    def make():
        whole, made = base(), []
        for views in several:
            made.append(whole)
            for view in views:
                made[-1] = view(made[-1])
        return tuple(made)

    def f(inputs):
        seen = [x * 1 for x in inputs]
        for place, write in writes:
            WRITES[write](inputs[place])
            seen += [x * 1 for x in inputs]
        x = inputs[returned % len(inputs)]
        return seen, x, x[..., :1]

    agree(f, make, ("aot_eager",), strict=False)


def test_three_inputs_of_one_memory():
    def f(a, b, c):
        a.add_(1)
        c.mul_(2)
        return b * 1, c[1:], a

    def make():
        x = numbers()
        return x[0], x[1], x

    compiled = staxlab.compile(f)
    for _ in range(2):
        assert difference(observe(compiled, make()), observe(f, make())) is None
    operators = compiled.versions[0].compilation.operators
    assert [node.args[0].name for node in operators.write_backs] == ["c"] and operators.versions == (1, 0, 1)


def test_two_storages_on_one_memory():
    numpy = pytest.importorskip("numpy")

    def make():
        memory = numpy.arange(24, dtype="f4").reshape(4, 6)
        return torch.from_numpy(memory), torch.from_numpy(memory[1:])

    for backend in ("eager", "aot_eager"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            assert (
                difference(observe(staxlab.compile(sharing, backend=backend), make()), observe(sharing, make())) is None
            )


@pytest.mark.parametrize("make", [lambda: (numbers(), numbers() * 2), lambda: tuple(numbers()[:2])])
def test_inputs_change_places(make):
    def swap(a, b):
        kept = a.clone()
        a.copy_(b)
        b.copy_(kept)

    for backend in ("aot_eager", "stax"):
        assert difference(observe(staxlab.compile(swap, backend=backend), make()), observe(swap, make())) is None


# -- many at once -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [
        lambda x: torch._foreach_add_([x[0], x[1]], [x[2], x[3]]),
        lambda x: torch._foreach_mul_(list(x.unbind(1)), 2.0),
        lambda x: torch._foreach_mul_(list(x.unbind(1)), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        lambda x: torch._foreach_sub_([x[:, :2], x[:, 2:4]], [x[:, 4:], x[:, 4:]]),
        lambda x: torch._foreach_neg_([x[::2, ::2], x[1::2, 1::2], x[::2, 1::2]]),
        lambda x: torch._foreach_copy_([x.diagonal(), x[3, :3]], [x[0, :4] * 2, x[1, :3] * 1]),
    ],
)
def test_disjoint_parts_of_one_tensor_are_written_together(write):
    for own in (False, True):

        def f(x, own=own):
            y = x * 1 if own else x
            write(y)
            return y, y.sum()

        agree(f, numbers, ("aot_eager", "stax"), strict=True)


# -- version counters -------------------------------------------------------------------------------------------------


def test_a_recording_that_fails_leaves_no_trace_in_version_counters():
    def function(x):
        x.add_(1)
        raise ValueError("planted")

    x, tangent = torch.ones(3), torch.ones(3)
    with pytest.raises(ValueError, match="planted"):
        operators_of(function, x)
    with pytest.raises(ValueError, match="planted"):
        joint_graph(module_of(function, 1), [x])
    with pytest.raises(ValueError, match="planted"):
        jacobian_vector_graph(module_of(lambda x, t: function(x), 2), [x, tangent], {0: 1})
    assert x._version == 0 and torch.equal(x, torch.ones(3))


def counted_four_times(x, y):
    x.add_(1)
    x[0].mul_(2)
    x.t().sub_(1)
    x.data.add_(1)  # a counter of its own
    x.detach()[1:].zero_()
    y.data.mul_(2)
    return x.sum()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "stax"])
def test_version_counters_rise_as_eager_execution_raises_them(backend):
    compiled = staxlab.compile(counted_four_times, backend=backend)
    for _ in range(2):
        x, y = numbers(), numbers()
        compiled(x, y)
        assert (x._version, y._version) == (4, 0)
    with torch.inference_mode():  # tensors without a counter
        x, y, z = numbers(), numbers(), numbers()
        compiled(x, y)
        counted_four_times(z, y)
        assert torch.equal(x, z)


# -- reading at other places what is written --------------------------------------------------------------------------


def windows_added(d):
    v = d.unfold(0, 2, 1)
    v[1] += v[0]
    return d


def shifted_columns_added(d):
    d[:, 1:] += d[:, :-1]
    return d


def block_moved(d):
    d[1:, :2] = d[:-1, 1:3]
    return d


@pytest.mark.parametrize("backend", ["aot_eager", "stax"])
@pytest.mark.parametrize("function", [windows_added, shifted_columns_added, block_moved])
def test_what_is_read_at_other_places_than_it_is_written_runs_as_in_eager_execution(function, backend):
    """PyTorch refuses this for dense tensors. For others the result follows the order in which it visits elements."""
    base = torch.arange(32.0).reshape(4, 8)
    expected, given = base.clone(), base.clone()
    function(expected[:, ::2])
    with pytest.warns(FallbackWarning, match="at other places than it writes"):
        staxlab.compile(function, backend=backend)(given[:, ::2])
    assert torch.equal(given, expected)


@pytest.mark.parametrize("backend", ["aot_eager", "stax"])
def test_what_is_read_at_the_same_places_or_apart_is_compiled(backend):
    def function(d):
        d += d.sum(0)
        d[0] *= d[1]
        d.t()[0].add_(d[:, 1])
        d.t().mul_(d.t())
        return d

    base = torch.arange(32.0).reshape(4, 8)
    expected, given = base.clone(), base.clone()
    function(expected[:, ::2])
    compiled = staxlab.compile(function, backend=backend)
    compiled(given[:, ::2])
    assert torch.equal(given, expected) and compiled.versions[0].compilation.fallback_reason is None


# -- random numbers in memory order -----------------------------------------------------------------------------------

DRAWS = {
    "bernoulli_": (0.3,), "uniform_": (), "exponential_": (), "random_": (0, 9), "geometric_": (0.4,), "cauchy_": (),
    "log_normal_": (),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["aot_eager", "stax"])
@pytest.mark.parametrize("name", DRAWS)
def test_draws_into_a_tensor_that_is_contiguous_in_another_order(name, backend):
    def function(x):
        y = getattr(torch.empty_like(x.permute(1, 0, 2)), name)(*DRAWS[name])
        return y, y * 1 + x.permute(1, 0, 2), torch.nn.functional.dropout(x.permute(2, 1, 0), 0.5)

    x = torch.randn(7, 3, 40)
    compiled = staxlab.compile(function, backend=backend)
    for _ in range(2):
        torch.manual_seed(3)
        expected = function(x)
        torch.manual_seed(3)
        torch.testing.assert_close(compiled(x), expected, check_stride=True, rtol=0, atol=0)
    assert compiled.versions[0].compilation.fallback_reason is None


def test_where_the_order_of_draws_is_not_the_memorys_the_region_runs_as_in_eager_execution():
    def function(x):
        return torch.empty_like(x.t()).normal_()

    x = torch.randn(40, 30)
    torch.manual_seed(3)
    expected = function(x)
    torch.manual_seed(3)
    with pytest.warns(FallbackWarning, match="the order in which it draws"):
        assert torch.equal(staxlab.compile(function)(x), expected)


def test_a_transformer_layer_trains_without_a_fallback():
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    x = torch.randn(3, 5, 16)
    results = []
    for call in (layer, staxlab.compile(layer)):
        layer.zero_grad()
        torch.manual_seed(1)
        y = call(x)
        y.pow(2).sum().backward()
        results.append((y.detach(), [p.grad.clone() for p in layer.parameters()]))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
    assert call.versions[0].compilation.fallback_reason is None
