"""Running a function on fresh inputs, and comparing everything a caller can tell with eager execution."""

from __future__ import annotations

import torch

import staxlab

BACKENDS = ("eager", "aot_eager", "stax")


def leaf(*values):
    return torch.tensor(values or (1.0, -2.0, 0.5, 3.0), requires_grad=True)


def described(value):
    """What a caller can tell of an output."""
    if isinstance(value, (tuple, list)):
        return [described(part) for part in value]
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone(), value.requires_grad, value.grad_fn is not None, value.is_inference()


def outcome(fn, make, *, backward=True):
    """Outputs and gradients of one call on fresh inputs; type and text of the exception if it raises."""
    inputs = make()
    torch.manual_seed(0)
    try:
        result = fn(*inputs)
        outputs = result if isinstance(result, (tuple, list)) else [result]
        seen = described(outputs)
        if backward:
            parts = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
            if parts:
                sum((k + 1) * (part * part + part).sum() for k, part in enumerate(parts)).backward()
    except RuntimeError as error:
        return type(error).__name__, str(error)
    grads = [t.grad for t in inputs if isinstance(t, torch.Tensor) and t.is_leaf]
    return seen, grads, [described(t)[:3] for t in inputs if isinstance(t, torch.Tensor)]


def same(a, b):
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
    if isinstance(a, tuple) and a[:1] == ("RuntimeError",):
        return isinstance(b, tuple) and b[:1] == a[:1]
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def check(fn, make=lambda: (leaf(),), backends=BACKENDS, **kwargs):
    expected = outcome(fn, make, **kwargs)
    for backend in backends:
        compiled = staxlab.compile(fn, backend=backend)
        for call in range(3):  # compiled, found, found by the entry
            found = outcome(compiled, make, **kwargs)
            assert same(found, expected), f"{backend}, call {call}: {found}, eager {expected}"
