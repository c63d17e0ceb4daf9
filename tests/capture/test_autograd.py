"""Training regions run through autograd and have to give eager's gradients, or refuse."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import staxlab
from staxlab.capture.autograd import call_without_grad
from staxlab.capture.tracer import trace
from staxlab.errors import CaptureError, FallbackWarning
from tests.capture.training import BACKENDS, check, described, leaf

pytestmark = pytest.mark.filterwarnings("ignore::staxlab.errors.FallbackWarning")


# -- modes inside the function ----------------------------------------------------------------------------------------


def written_under_no_grad(a):
    b = a * 1
    with torch.no_grad():
        b.clamp_(max=2.0)
    return b * 2, b


def leaf_written_under_no_grad(a):
    with torch.no_grad():
        a.clamp_(max=2.0)
    return a * 2 + a.detach()


def view_under_no_grad(a):
    b = a * 2
    with torch.no_grad():
        v = b.view(2, 2)
        w = v + 1
    return v, w, v * 3, b


def view_under_no_grad_then_written(a):
    b = a * 2
    with torch.no_grad():
        v = b[:2]
    b.mul_(a)
    return v + 1


def fresh_view_under_no_grad_then_written(a):
    b = torch.zeros(4)
    with torch.no_grad():
        v = b[:2]
    b.add_(a)
    return v + 1


def written_through_a_view(a):
    b = torch.zeros(4)
    v, w = b[:2], b[2:]
    v.mul_(2)
    v.add_(a[:2])
    return b, v, w * 2, b.detach()


def assigned(a):
    b = torch.zeros(4)
    b[1:3] = a[:2]
    return b, b.requires_grad


def returned_as_they_are(a):
    with torch.no_grad():
        same = a.contiguous()
    return same * 2, same.requires_grad


def enabled_inside_disabled(a):
    with torch.no_grad():
        b = a * 2
        with torch.enable_grad():
            c = a * 3
    return b, c


def switched_by_a_flag(a):
    with torch.set_grad_enabled(False):
        b = a * 2
    with torch.set_grad_enabled(True):
        c = b * a
    return b, c


@torch.no_grad()
def decorated(a):
    return a * 2, a.detach()


def detached_and_written(a):
    b = a * 2
    d = b.detach()
    with torch.no_grad():
        d.mul_(2)
    return b * a, d


def statistics(a):
    mean, var = torch.zeros(2), torch.ones(2)
    y = F.batch_norm(a.view(2, 2), mean, var, training=True)
    return y, mean, var, mean.requires_grad


def other_argument_is_not_written(a):
    b, c = a * 1, torch.ones(4)
    b.add_(c)
    return b, c * 2, c.requires_grad


def several_views(a):
    p, q = (a * 2).chunk(2)
    return p * q, p.requires_grad


def integers_and_comparisons(a):
    return a > 0, a.argmax(), a.to(torch.int64), a.sign(), torch.zeros_like(a), a.floor()


def complex_parts(a):
    z = torch.complex(a, a * 2)
    return z.real, z.imag.sum(), torch.view_as_real(z)


def sorted_under_no_grad(a):
    with torch.no_grad():
        values, indices = a.sort()
        values.mul_(2)
    return a[indices] * values, indices


def data_written(a):
    b = a * 2
    b.data.mul_(3)
    return b * b


def saved_value_written_through_its_detached_self(a):
    b = a * 2
    c = b.sin()
    b.detach().mul_(3)
    return c


def leaf_made_and_written(a):
    w = torch.zeros(4, requires_grad=True)
    with torch.no_grad():
        w.add_(a)
    return w * a


def written_through_a_chunk_under_no_grad(a):
    b = a * 2
    first, _ = b.chunk(2)
    with torch.no_grad():
        first.mul_(3)
    return b


MODES = [
    sorted_under_no_grad, data_written, saved_value_written_through_its_detached_self, leaf_made_and_written,
    written_through_a_chunk_under_no_grad,
    written_under_no_grad, leaf_written_under_no_grad, view_under_no_grad, view_under_no_grad_then_written,
    fresh_view_under_no_grad_then_written, written_through_a_view, assigned, returned_as_they_are,
    enabled_inside_disabled, switched_by_a_flag, decorated, detached_and_written, statistics,
    other_argument_is_not_written, several_views, integers_and_comparisons, complex_parts,
]  # fmt: skip


@pytest.mark.parametrize("fn", MODES, ids=lambda fn: fn.__name__)
def test_modes_inside_leave_eagers_values_and_gradients(fn):
    check(fn)


@pytest.mark.parametrize("fn", MODES, ids=lambda fn: fn.__name__)
def test_the_same_without_gradients(fn):
    check(fn, lambda: (leaf().detach(),), backward=False)


def test_a_write_under_no_grad_keeps_its_mode_in_the_graph():
    graph = trace(written_under_no_grad, (leaf(),)).graph
    assert any(n.target is call_without_grad and n.val.requires_grad for n in graph)
    assert not any(node.target is call_without_grad for node in trace(written_under_no_grad, (torch.ones(4),)).graph)


# -- tensors made inside ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(
    "fn",
    [
        lambda a: torch.zeros(4, requires_grad=True) + a,
        lambda a: torch.zeros(4, requires_grad=True),
        lambda a: (torch.ones(4, requires_grad=True) * a).detach(),
        lambda a: torch.zeros_like(a, requires_grad=True).view(2, 2) + 1,
    ],
)
def test_a_tensor_made_inside_may_require_grad(fn, grad):
    with torch.set_grad_enabled(grad):
        check(fn, lambda: (torch.ones(4),), backward=False)


def test_the_warning_names_the_tensor_made_inside():
    with pytest.warns(FallbackWarning, match="%zeros requires grad"):
        staxlab.compile(lambda a: torch.zeros(2, requires_grad=True) + a)(torch.ones(2))


# -- inputs that are returned as they are or detached -----------------------------------------------------------------

RETURNED = {
    "detach": lambda a: a.detach(), "data": lambda a: a.data, "detached slice": lambda a: a.detach()[:2],
    "slice of detached chunk": lambda a: a.chunk(2)[1].detach()[:1], "view": lambda a: a.view(2, 2),
    "slice": lambda a: a[:], "chunk": lambda a: a.chunk(2)[0], "itself": lambda a: a,
    "contiguous": lambda a: a.contiguous(), "copy": lambda a: a.detach().clone(), "used": lambda a: a.detach() * 2,
}  # fmt: skip


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("name", RETURNED)
def test_returned_inputs_require_grad_as_in_eager(name, mode):
    fn, parameter = RETURNED[name], nn.Parameter(torch.ones(4))
    for backend in BACKENDS:
        compiled = staxlab.compile(fn, backend=backend)
        for _ in range(3):
            with mode():
                found, expected = compiled(parameter), fn(parameter)
            assert (found is parameter) == (expected is parameter)
            assert described(found)[1:] == described(expected)[1:] and torch.equal(found, expected)
            assert (found.data_ptr() == parameter.data_ptr()) == (expected.data_ptr() == parameter.data_ptr())


# -- inference mode ---------------------------------------------------------------------------------------------------


def inferred(a):
    with torch.inference_mode():
        return a * 2, a.view(2, 2)


def inferred_inside(a):
    with torch.inference_mode():
        b = a * 2
    return b + 1, b.is_inference()


def inferred_and_viewed(a):
    with torch.inference_mode():
        b = a * 2
    return b[:2], b


def inferred_and_detached(a):
    with torch.inference_mode():
        b = a * 2
    return b.detach()[:2], b.data, (b > 0).view(2, 2)


@pytest.mark.parametrize("fn", [inferred, inferred_inside, inferred_and_viewed, inferred_and_detached])
def test_inference_mode_inside_makes_inference_tensors(fn):
    check(fn, backward=False)
    check(fn, lambda: (torch.ones(4),), backward=False)
    with torch.no_grad():
        check(fn, lambda: (torch.ones(4),), backward=False)


# -- derivatives of rewritten operations ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fn", [F.selu, F.elu, F.leaky_relu, F.relu6, F.hardsigmoid, F.hardswish, F.softsign, F.tanhshrink, F.hardtanh]
)
def test_rewriting_keeps_derivatives_at_their_corners(fn):
    check(fn, lambda: (leaf(100.0, -100.0, 0.0, -0.0, 6.0, 3.0, -3.0, 1.0, -1.0),))


# -- what no graph holds ----------------------------------------------------------------------------------------------


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a * 2

    @staticmethod
    def backward(ctx, g):
        return g * 100


def tensor_hook(a):
    b = a * 2
    b.register_hook(lambda g: g * 10)
    return b


def retained(a):
    b = a * 2
    b.retain_grad()
    return b


def packed(a):
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x * 2, lambda x: x):
        return a * a


def detached_in_place(a):
    b = a * 2
    return b.detach_() * a


def derived(a):
    return torch.autograd.grad((a * a).sum(), a)[0]


def forward_mode(a):
    import torch.autograd.forward_ad as forward

    with forward.dual_level():
        return forward.unpack_dual(forward.make_dual(a, torch.ones_like(a)).sin()).tangent


@torch.jit.script
def scripted(a):
    return a * 2


@pytest.mark.parametrize(
    ("fn", "what"),
    [
        (lambda a: Scaled.apply(a * 3) + a, "autograd.Function Scaled"),
        (functools.partial(Scaled.apply), "autograd.Function Scaled"),
        (lambda a: checkpoint(torch.sin, a * 2, use_reentrant=True), "use_reentrant"),
        (tensor_hook, "autograd state"),
        (retained, "autograd state"),
        (packed, "saved for backward"),
        (detached_in_place, "requires_grad changes"),
        (derived, "computes gradients"),
    ],
)
def test_what_has_a_backward_of_its_own_is_refused(fn, what):
    for backend in BACKENDS:
        with pytest.raises(CaptureError, match=what) as caught:
            staxlab.compile(fn, backend=backend)(leaf())
        assert caught.value.remedy


@pytest.mark.parametrize(
    ("fn", "what"),
    [
        (lambda a: torch.func.jvp(torch.sin, (a,), (torch.ones_like(a),)), "transform"),
        (lambda a: torch.func.grad(lambda x: x.sin().sum())(a), "transform"),
        (lambda a: torch.func.vjp(torch.sin, a)[1](a), "transform"),
        (lambda a: torch.vmap(torch.sin)(a), "transform"),
        (forward_mode, "forward mode"),
        (lambda a: scripted(a) + 1, "TorchScript"),
        (scripted, "TorchScript"),
    ],
)
def test_transforms_and_scripts_are_refused_in_plain_words(fn, what):
    x = torch.ones(4)
    with pytest.raises(CaptureError, match=what) as caught:
        staxlab.compile(fn)(x)
    assert caught.value.remedy and torch.equal(x, torch.ones(4))


def test_a_custom_function_is_an_ordinary_one_without_gradients():
    def fn(a):
        return Scaled.apply(a * 3) + a

    check(fn, lambda: (torch.ones(4),))
    with torch.no_grad():
        check(fn, backward=False)

    def inside(a):
        with torch.no_grad():
            b = Scaled.apply(a)
        return a * b

    check(inside)


@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_full_backward_pre_hook",
                                      "register_backward_hook"])  # fmt: skip
def test_backward_hooks_of_modules_are_refused(register):
    module = nn.Linear(4, 4)
    getattr(module, register)(lambda *args: None)
    with pytest.raises(CaptureError):
        staxlab.compile(module)(leaf())


def test_checkpoint_that_does_not_reenter_gives_its_gradients():
    check(lambda a: checkpoint(lambda x: x.sin().exp(), a * 2, use_reentrant=False))


def test_a_second_derivative_goes_through_the_region():
    def second(fn):
        x = leaf()
        (first,) = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    def fn(a):
        return a**3 * a.sin()

    for backend in BACKENDS:
        compiled = staxlab.compile(fn, backend=backend, options={"double_backward": True})
        assert torch.allclose(second(compiled), second(fn))


def test_a_refusal_is_not_lost_in_another_exception():
    def fn(a):
        try:
            return a * float(a.numpy().sum())
        except Exception as error:
            raise KeyError("mine") from error

    with pytest.raises(CaptureError, match="outside PyTorch"):
        staxlab.compile(fn)(torch.ones(2))


# -- modules that are trained -----------------------------------------------------------------------------------------

MODULES = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.3)), (8, 4)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.SELU()), (2, 1, 6, 6)),
    "recurrent": (lambda: nn.GRU(4, 3), (5, 2, 4)),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 3, 8)),
    "spectral norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)), (8, 4)),
    "mobile": (lambda: nn.Sequential(nn.Linear(4, 8), nn.Hardswish(), nn.Linear(8, 8), nn.ReLU6()), (8, 4)),
}


@pytest.mark.parametrize("name", MODULES)
def test_training_steps_leave_the_same_weights_as_in_eager(name):
    make, shape = MODULES[name]
    torch.manual_seed(0)
    plain, x = make(), torch.randn(shape)
    trained = copy.deepcopy(plain)

    def steps(module, call):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            y = call(x)
            (y if isinstance(y, torch.Tensor) else y[0]).square().mean().backward()
            optimizer.step()
        return module.state_dict()

    expected, found = steps(plain, plain), steps(trained, staxlab.compile(trained))
    for key, value in expected.items():
        assert torch.allclose(found[key], value, 1e-4, 1e-6), key


@torch.library.custom_op("staxlab_test::scaled", mutates_args=())
def scaled(a: torch.Tensor) -> torch.Tensor:
    return a * 2


scaled.register_autograd(lambda ctx, g: g * 100)


def test_custom_operators_keep_their_backward():
    check(lambda a: scaled(a * 3) + a)
