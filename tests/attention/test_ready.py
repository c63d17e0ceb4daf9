"""A call whose like was accepted before: what it does not do again, and everything that may have changed meanwhile."""

from __future__ import annotations

import functools
import gc
import types
import weakref

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from staxlab import create_block_mask, omni_attention
from staxlab.attention import omni, operator, reads, ready, tracing
from staxlab.attention.reference import reference_attention
from staxlab.errors import OptionError, StaxError, SubscriptError

B, H, N, D = 1, 2, 24, 8
CAP = 2.0
MATRICES = {"BACKEND": "reference"}  # evaluates what was traced, with nothing to compile


@pytest.fixture(autouse=True)
def anew():
    operator.clear()
    reads.clear()


def operands(seed: int = 0, dtype: torch.dtype = torch.float32, requires_grad: bool = False) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(B, H, N, D, generator=generator).to(dtype) for _ in range(3)]
    return [tensor.requires_grad_(requires_grad) for tensor in made]


@pytest.fixture
def work(monkeypatch):
    """How often functions were traced or asked what they read since the list was last emptied."""
    done: list[str] = []

    def counted(module, name):
        function = getattr(module, name)

        @functools.wraps(function)
        def counting(*args, **kwargs):
            done.append(name)
            return function(*args, **kwargs)

        monkeypatch.setattr(module, name, counting)

    counted(omni, "modification")
    counted(omni, "register")
    counted(reads, "collect")
    return done


def agrees(score_mod=None, block_mask=None, given=None) -> torch.Tensor:
    """The result, which is the specification's."""
    query, key, value = given or operands()
    found = omni_attention(query, key, value, score_mod=score_mod, block_mask=block_mask, kernel_options=MATRICES)
    wanted, _ = reference_attention(query, key, value, score_mod, block_mask and block_mask.mask_mod)
    torch.testing.assert_close(found, wanted.to(found.dtype), rtol=1e-4, atol=1e-5)
    return found


def tanh_of(cap):
    return lambda score, b, h, q_idx, kv_idx: torch.tanh(score / cap) * cap


def by_head(slopes):
    return lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx)


def causal(**options):
    return create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, N, N, BLOCK_SIZE=8, **options)


def documents(ids):
    return create_block_mask(lambda b, h, q_idx, kv_idx: ids[q_idx] == ids[kv_idx], None, None, N, N, BLOCK_SIZE=8)


def watching(seen: list[str]):
    """A mode under which the names of operators are noted down."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    return Watching()


# -- what is not done again --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["plain", "cap", "slopes", "causal", "both", "documents"])
def test_the_second_call_traces_nothing_and_dispatches_only_what_makes_memory(which, work):
    score = {"cap": tanh_of(3.0), "slopes": by_head(torch.tensor([0.5, 0.25])), "both": tanh_of(3.0)}.get(which)
    masks = {"causal": causal, "both": causal, "documents": lambda: documents(torch.arange(N) // 7)}
    mask = masks[which]() if which in masks else None
    query, key, value = operands()
    first = omni_attention(query, key, value, score_mod=score, block_mask=mask)
    assert "register" in work
    omni_attention(query, key, value, score_mod=score, block_mask=mask)
    work.clear()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        second = omni_attention(query, key, value, score_mod=score, block_mask=mask)
    assert not work and torch.equal(first, second)
    assert {event.name for event in profiled.events()} <= {"aten::empty", "aten::empty_strided"}
    agrees(score, mask)


def test_other_tensors_of_the_same_metadata_are_served():
    score = tanh_of(3.0)
    results = [agrees(score, given=operands(seed)) for seed in range(3)]
    assert not torch.equal(results[0], results[1])


def test_an_equal_call_under_other_metadata_is_another(work):
    score = tanh_of(3.0)
    agrees(score)
    other_order = lambda t: t.transpose(1, 2).contiguous().transpose(1, 2)  # noqa: E731
    for change in (lambda t: t[:, :, :-1], other_order, torch.Tensor.double):
        work.clear()
        agrees(score, given=[change(tensor) for tensor in operands()])
        assert "modification" in work


def gradients(score, mask, given, **options) -> list[torch.Tensor]:
    output, lse = omni_attention(*given, score_mod=score, block_mask=mask, return_lse=True)
    return list(torch.autograd.grad(output.sin().sum() + lse.cos().sum(), given, **options))


def test_training_calls_no_operator_the_second_time(work):
    score, mask, given = tanh_of(3.0), causal(), operands(requires_grad=True)
    first = gradients(score, mask, given)
    gradients(score, mask, given)
    work.clear()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        second = gradients(score, mask, given)
    names = {event.name for event in profiled.events()}
    assert not work and "aten::sin" in names and not any("staxlab" in name for name in names)
    output, lse = reference_attention(*given, score, mask.mask_mod)
    wanted = torch.autograd.grad(output.sin().sum() + lse.cos().sum(), given)
    for one, other, right in zip(first, second, wanted, strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, right, rtol=1e-3, atol=1e-5)


def test_what_watches_a_backward_pass_sees_the_operator():
    given = operands(requires_grad=True)
    for _ in range(2):
        output = omni_attention(*given, kernel_options=MATRICES)
    seen: list[str] = []
    with watching(seen):
        torch.autograd.grad(output.sum(), given)
    assert any("attention_backward" in name for name in seen)


def test_a_second_derivative_is_refused_as_ever():
    given = operands(requires_grad=True)
    for _ in range(3):
        output = omni_attention(*given, kernel_options=MATRICES)
        (gradient,) = torch.autograd.grad(output.square().sum(), given[:1], create_graph=True)
        with pytest.raises(StaxError, match="second time"):
            torch.autograd.grad(gradient.sum(), given)


def test_gradients_that_are_negated_lazily():
    given = operands(requires_grad=True)
    upstream = torch.randn(B, H, N, D, dtype=torch.complex64).conj().imag
    for _ in range(3):
        output = omni_attention(*given, kernel_options=MATRICES)
        lazy = torch.autograd.grad(output, given, upstream, retain_graph=True)
        plain = torch.autograd.grad(output, given, upstream.resolve_neg())
        assert upstream.is_neg() and all(map(torch.equal, lazy, plain))


# -- what may have changed ---------------------------------------------------------------------------------------------


def test_a_closure_that_is_bound_anew():
    cap = 2.0

    def score(s, b, h, q_idx, kv_idx):
        return torch.tanh(s / cap) * cap

    results = []
    for cap in (2.0, 2.0, 0.5, 2.0):  # noqa: B007
        results.append(agrees(score))
        results.append(agrees(score))
    assert torch.equal(results[0], results[-1]) and not torch.equal(results[0], results[4])


def test_a_global_that_is_bound_anew(monkeypatch):
    def score(s, b, h, q_idx, kv_idx):
        return torch.tanh(s / CAP) * CAP

    before = agrees(score), agrees(score)
    monkeypatch.setitem(score.__globals__, "CAP", 0.5)
    after = agrees(score), agrees(score)
    assert torch.equal(*before) and torch.equal(*after) and not torch.equal(before[0], after[0])


def test_a_name_that_comes_to_hide_a_builtin(monkeypatch):
    def score(s, b, h, q_idx, kv_idx):
        return s * max(1, 2)

    before = agrees(score), agrees(score)
    monkeypatch.setitem(score.__globals__, "max", min)
    assert torch.equal(*before) and not torch.equal(agrees(score), before[0])


def test_values_of_a_captured_tensor_are_read_anew_and_nothing_is_traced(work):
    slopes = torch.tensor([0.5, 0.25])
    score = by_head(slopes)
    before = agrees(score), agrees(score)
    work.clear()
    slopes.mul_(3)
    query, key, value = operands()
    after = omni_attention(query, key, value, score_mod=score, kernel_options=MATRICES)
    assert not work and torch.equal(*before) and not torch.equal(after, before[0])
    agrees(score)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda t: torch.cat([t, t]), id="longer"),
        pytest.param(lambda t: torch.stack([t, t], -1)[..., 0], id="with gaps"),
        pytest.param(lambda t: t.double(), id="another dtype"),
        pytest.param(lambda t: t * 2, id="another tensor"),
        pytest.param(lambda t: t.view(-1), id="the same memory"),
    ],
)
@pytest.mark.parametrize("how", ["bound anew", "in place"])
def test_a_captured_tensor_of_other_metadata(change, how, work):
    slopes = torch.tensor([0.5, 0.25])

    def score(s, b, h, q_idx, kv_idx):
        return s + slopes[h] * (kv_idx - q_idx)

    agrees(score)
    agrees(score)
    work.clear()
    changed = change(slopes)
    if how == "in place":
        same = changed.data_ptr() == slopes.data_ptr()
        slopes.data = changed
    else:
        same, slopes = False, changed
    del changed
    agrees(score)
    assert bool(work) != same
    agrees(score)


def test_a_captured_tensor_that_has_become_too_short():
    slopes = torch.tensor([0.5, 0.25])
    score = by_head(slopes)
    agrees(score)
    agrees(score)
    slopes.data = slopes[:1].clone()
    for _ in range(2):
        with pytest.raises(SubscriptError):
            omni_attention(*operands(), score_mod=score, kernel_options=MATRICES)


def test_a_captured_tensor_that_comes_to_require_grad():
    slopes = torch.tensor([0.5, 0.25])
    score = by_head(slopes)
    assert not agrees(score).requires_grad and not agrees(score).requires_grad
    slopes.requires_grad_()
    for _ in range(2):
        slopes.grad = None
        agrees(score).sum().backward()
        assert slopes.grad is not None and slopes.grad.abs().sum() > 0


def test_a_function_that_is_changed_itself():
    def score(s, b, h, q_idx, kv_idx, cap=2.0, *, factor=1.0):
        return torch.tanh(s / cap) * cap * factor

    def other(s, b, h, q_idx, kv_idx, cap=2.0, *, factor=1.0):
        return s * 0

    found = [agrees(score), agrees(score)]
    score.__defaults__ = (0.5,)
    found.append(agrees(score))
    score.__kwdefaults__["factor"] = 3.0
    found.append(agrees(score))
    score.__kwdefaults__ = {"factor": 0.25}
    found.append(agrees(score))
    score.__code__ = other.__code__
    found.append(agrees(score))
    assert torch.equal(found[0], found[1]) and len({tuple(one.flatten().tolist()) for one in found}) == 5


def test_attributes_of_a_function():
    def score(s, b, h, q_idx, kv_idx):
        return s * getattr(score, "factor", 1.0)

    before = agrees(score), agrees(score)
    score.factor = 3.0
    assert torch.equal(*before) and not torch.equal(agrees(score), before[0])


def test_a_function_that_comes_to_have_attributes_is_looked_at_again(work):
    score = tanh_of(2.0)
    agrees(score)
    agrees(score)
    work.clear()
    score.note = "any"
    agrees(score)
    assert work


def test_identities_that_are_given_out_again(monkeypatch):
    """What is found under an identity has to be what it was kept for."""
    monkeypatch.setattr(ready, "id", lambda thing: 0, raising=False)
    both = lambda b, h, q_idx, kv_idx: q_idx >= kv_idx  # noqa: E731
    masks = [create_block_mask(both, None, None, N, N, BLOCK_SIZE=size) for size in (8, (8, 12), 12)]
    masks.append(create_block_mask(lambda b, h, q_idx, kv_idx: q_idx <= kv_idx, None, None, N, N, BLOCK_SIZE=12))
    scores = [tanh_of(2.0), tanh_of(0.5)]
    for _ in range(2):
        for score in scores:
            for mask in masks:
                agrees(score, mask)


def test_functions_that_a_function_calls():
    inner = tanh_of(2.0)

    def score(s, b, h, q_idx, kv_idx):
        return inner(s, b, h, q_idx, kv_idx) * 2

    before = agrees(score), agrees(score)
    inner = tanh_of(0.5)
    after = agrees(score), agrees(score)
    assert torch.equal(*before) and torch.equal(*after) and not torch.equal(before[0], after[0])


def test_attributes_of_objects():
    holder = types.SimpleNamespace(cap=2.0, slopes=torch.tensor([0.5, 0.25]))

    def score(s, b, h, q_idx, kv_idx):
        return torch.tanh(s / holder.cap) * holder.cap + holder.slopes[h]

    found = [agrees(score), agrees(score)]
    holder.cap = 0.5
    found.append(agrees(score))
    holder.slopes = torch.tensor([0.5, 0.25, 0.125])
    found.append(agrees(score))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[1], found[2]) and torch.equal(found[2], found[3])


def test_what_a_mask_reads():
    ids = torch.arange(N) // 7
    limit = 5
    mask = create_block_mask(
        lambda b, h, q_idx, kv_idx: ((q_idx - kv_idx).abs() <= limit) & (ids[q_idx] == ids[kv_idx]), None, None, N, N,
        BLOCK_SIZE=N,
    )  # fmt: skip
    found = [agrees(None, mask), agrees(None, mask)]
    limit = 2
    found.append(agrees(None, mask))
    ids.fill_(0)
    found.append(agrees(None, mask))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[1], found[2])
    assert not torch.equal(found[2], found[3])


def test_two_block_masks():
    one, other = causal(), documents(torch.arange(N) // 7)
    assert not torch.equal(agrees(None, one), agrees(None, other)) and torch.equal(agrees(None, one), agrees(None, one))


def test_gradient_mode(work):
    score = by_head(torch.tensor([0.5, 0.25]))
    given = operands(requires_grad=True)
    for _ in range(2):
        with torch.no_grad():
            assert not omni_attention(*given, score_mod=score, kernel_options=MATRICES).requires_grad
        with torch.inference_mode():
            assert omni_attention(*given, score_mod=score, kernel_options=MATRICES).is_inference()
        result = omni_attention(*given, score_mod=score, kernel_options=MATRICES)
        (gradient,) = torch.autograd.grad(result.sum(), given[:1])
        assert gradient.abs().sum() > 0
    work.clear()
    omni_attention(*given, score_mod=score, kernel_options=MATRICES)
    assert not work


def test_autocast():
    score = tanh_of(3.0)
    for _ in range(2):
        assert omni_attention(*operands(), score_mod=score, kernel_options=MATRICES).dtype == torch.float32
        with torch.autocast("cpu", torch.bfloat16):
            assert omni_attention(*operands(), score_mod=score, kernel_options=MATRICES).dtype == torch.bfloat16
        with torch.autocast("cpu", torch.float16):
            assert omni_attention(*operands(), score_mod=score, kernel_options=MATRICES).dtype == torch.float16


def test_a_tensor_that_is_negated_lazily():
    parts = torch.randn(B, H, N, D, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    lazy, plain = parts.conj().imag, -parts.imag.clone()
    rest = operands()[1:]
    made = torch.empty_strided(plain.shape, lazy.stride()).copy_(plain)
    for _ in range(2):
        torch.testing.assert_close(omni_attention(lazy, *rest), omni_attention(made, *rest))


def test_function_transforms_and_modes_are_seen():
    score = tanh_of(3.0)
    query, key, value = operands()
    omni_attention(query, key, value, score_mod=score)
    gradient = torch.func.grad(lambda q: omni_attention(q, key, value, score_mod=score).sum())(query)
    query.requires_grad_()
    (wanted,) = torch.autograd.grad(omni_attention(query, key, value, score_mod=score).sum(), query)
    torch.testing.assert_close(gradient, wanted)
    seen: list[str] = []
    with watching(seen):
        omni_attention(query.detach(), key, value, score_mod=score)
    assert any("staxlab.attention" in name for name in seen)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ({"scale": 1.0}, {"scale": True}),
        ({"enable_gqa": True}, {"enable_gqa": 1}),
        ({"kernel_options": MATRICES | {"FETCH": True}}, {"kernel_options": MATRICES | {"FETCH": 1}}),
        ({"kernel_options": MATRICES | {"BLOCK_M": 1}}, {"kernel_options": MATRICES | {"BLOCK_M": True}}),
    ],
    ids=str,
)
def test_what_is_refused_is_refused_after_a_call_that_compares_equal(right, wrong):
    """True is 1 to a dictionary."""
    for _ in range(2):
        omni_attention(*operands(), **right)
    for _ in range(2):
        with pytest.raises(OptionError):
            omni_attention(*operands(), **wrong)


def test_scales_that_are_equal_and_not_the_same():
    q, k, v = operands()
    scales = (0.5, 2.0, 0.0, -0.0, 1, 1.0)
    for _ in range(2):
        for scale in scales:
            wanted, _ = reference_attention(q, k, v, scale=scale)
            torch.testing.assert_close(omni_attention(q, k, v, scale=scale), wanted.float())


def test_tensors_without_memory():
    """Shapes are known without a kernel, whatever was called before."""
    for device in ("cpu", "meta", "meta", "cpu"):
        found = omni_attention(*(tensor.to(device) for tensor in operands()))
        assert found.device.type == device and found.shape == (B, H, N, D)


# -- what goes when ----------------------------------------------------------------------------------------------------


def test_a_function_takes_its_tensors_along_when_it_goes():
    gc.disable()
    try:
        slopes = torch.tensor([0.5, 0.25])
        gone = weakref.ref(slopes)
        score = by_head(slopes)
        agrees(score)
        omni_attention(*operands(), score_mod=score)
        assert reads._kept
        del slopes, score
        assert gone() is None and not reads._kept
    finally:
        gc.enable()


def test_a_block_mask_takes_its_lists_along_when_it_goes():
    gc.collect()
    gc.disable()
    try:
        mask = documents(torch.arange(N) // 7)
        gone = weakref.ref(mask.kv_indices)
        omni_attention(*operands(), block_mask=mask)
        omni_attention(*operands(), block_mask=mask)
        del mask
        assert gone() is None
    finally:
        gc.enable()


def test_a_function_that_refers_to_itself_does_not_live_for_ever():
    class Layer:
        def __init__(self):
            self.slopes = torch.tensor([0.5, 0.25])
            self.score = lambda s, b, h, q_idx, kv_idx: s + self.slopes[h]

    layer = Layer()
    gone = weakref.ref(layer)
    for _ in range(3):
        agrees(layer.score)
    del layer
    gc.collect()
    assert gone() is None


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(ready, "LARGEST", 4)
    monkeypatch.setattr(reads, "LARGEST", 4)
    scores = [tanh_of(float(cap)) for cap in range(1, 8)]
    for score in scores:
        agrees(score)
    assert len(ready._ready) == 4 == len(reads._kept)
    agrees(scores[0])


def test_a_function_that_is_made_anew_in_every_call_is_traced_once(monkeypatch):
    traced = []
    original = tracing.trace_modification
    monkeypatch.setattr(
        "staxlab.attention.modification.trace_modification", lambda *args: traced.append(1) or original(*args)
    )
    from staxlab.attention import modification

    modification.clear()
    slopes = torch.tensor([0.5, 0.25])
    for _ in range(4):
        agrees(by_head(slopes))
    assert len(traced) == 1
