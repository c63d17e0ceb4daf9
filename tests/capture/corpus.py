"""A corpus of small functions from ordinary PyTorch code.

Each case makes a fresh callable and argument tuples. A case is run twice side by side: one twin eagerly, one through
capture; results, in-place effects, module state and random draws must agree bit for bit. ``refused`` cases must end in
a CaptureError (or GuardError) that names the user's line.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import random
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], Callable]
    args: Callable[[], tuple]
    kwargs: Callable[[], dict]
    refused: str | None = None  # part of the expected message
    grad: bool = False  # run with gradient recording on
    versions: int | None = None  # versions expected after the calls


CASES: list[Case] = []


def _matrix() -> tuple:
    return (torch.randn(4, 8),)


def _pair() -> tuple:
    return torch.randn(4, 8), torch.randn(4, 8)


def case(
    args: Callable[[], tuple] = _matrix,
    *,
    kwargs: Callable[[], dict] = dict,
    refused: str | None = None,
    factory: bool = False,
    grad: bool = False,
    versions: int | None = None,
) -> Callable:
    """Register a function (or, with ``factory=True``, a function that makes the callable)."""

    def register(fn: Callable) -> Callable:
        CASES.append(Case(fn.__name__, fn if factory else lambda: fn, args, kwargs, refused, grad, versions))
        return fn

    return register


# -- arithmetic, methods, functions -----------------------------------------------------------------------------------


@case(_pair)
def example_1_1(x, w):
    return (torch.relu(x + w) * 2).sum(-1)


@case()
def reflected_operators(x):
    return 1 - x, 2 / (x.abs() + 1), 2 ** x.clamp(-2, 2), 3 + x, 5 * x, 7 // (x.abs() + 1), -x, abs(x)


@case(_pair)
def comparisons(x, y):
    return x > y, x == y, x != 0, 1 >= x, ~(x < y), (x > 0) & (y > 0) | (x < -1)


@case(_pair)
def matrix_products(x, y):
    return x @ y.T, torch.mm(x, y.t()), torch.einsum("ij,kj->ik", x, y), F.linear(x, y)


@case()
def reductions(x):
    values, indices = x.max(dim=1)
    return (
        values,
        indices,
        x.mean(),
        x.std(0),
        x.sum((0, 1)),
        torch.logsumexp(x, 1),
        x.argmax(),
        x.prod(-1, keepdim=True),
    )


@case()
def named_results(x):
    return torch.max(x, 0), x.sort(descending=True), torch.topk(x, 2).values


@case()
def method_chain(x):
    return x.view(-1).unsqueeze(0).expand(3, -1).contiguous().transpose(0, 1).reshape(4, 8, 3).permute(2, 0, 1)


@case()
def dtype_casts(x):
    return (
        x.double().sum().float(),
        x.to(torch.int32),
        x.half().float(),
        x.bool(),
        x.type(torch.float64),
        x.type_as(x.int()),
    )


@case(_pair)
def joining_and_splitting(x, y):
    a, b = torch.cat([x, y]).chunk(2)
    c, *rest = torch.stack((x, y), dim=1).unbind(0)
    return a * b, c, rest, x.split([3, 5], dim=1), torch.tensor_split(y, 3)


@case(_pair)
def where_and_masks(x, y):
    return torch.where(x > 0, x, y), x.masked_fill(y > 0, -math.inf), torch.where(x > 0, x, 0.0)


@case()
def activations(x):
    return [f(x) for f in (F.gelu, F.silu, F.selu, F.elu, torch.tanh, F.softplus, F.hardswish, F.leaky_relu, F.mish)]


@case()
def normalizations(x):
    return F.layer_norm(x, (8,)), F.softmax(x, dim=-1), F.log_softmax(x, 0), F.normalize(x), F.group_norm(x, 2)


@case(lambda: (torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)))
def convolution(x, w):
    return F.max_pool2d(F.conv2d(x, w, padding=1), 2), F.interpolate(x, scale_factor=2), F.pad(x, (1, 1, 2, 0))


@case(lambda: (torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 8)))
def attention(q, k, v):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v, F.scaled_dot_product_attention(
        q, k, v, is_causal=True
    )


@case(lambda: (torch.randn(6, 5), torch.randint(0, 5, (6,))))
def losses(x, t):
    return F.cross_entropy(x, t), F.nll_loss(F.log_softmax(x, 1), t), F.mse_loss(x, x * 2), F.smooth_l1_loss(x, x + 1)


@case(lambda: (torch.randn(3, 3), torch.randint(0, 9, (5,))))
def embedding_lookup(table, idx):
    return (
        F.embedding(idx % 3, table),
        table[idx % 3],
        table.index_select(0, idx % 3),
        table.gather(1, idx[:3, None] % 3),
    )


@case()
def operators_as_functions(x):
    import operator

    return operator.add(x, 1), sum([x, x, x]), list(map(torch.exp, [x, -x])), functools.reduce(torch.mul, [x, x, x])


@case(lambda: (torch.randn(3, 4, dtype=torch.complex64),))
def complex_numbers(z):
    return z.real + z.imag, z.abs(), z * 2j, z.conj() @ z.T


@case(lambda: (torch.randint(-5, 5, (4, 4)),))
def integers(i):
    return i // 2, i % 3, i << 1, i & 3, i ^ 1, ~i, i / 2, i + 0.0, i * True


@case()
def property_getters(x):
    return x.T @ x, x.mT, x.shape[0] * x, x.ndim + x, x.dtype == torch.float32


# -- indexing ---------------------------------------------------------------------------------------------------------


@case(lambda: (torch.randn(4, 6, 8),))
def basic_indexing(x):
    return x[0], x[-1, 2:], x[..., 0], x[:, None], x[1:3, ::2, 4], x[:, 1, ...], x[True]


@case(lambda: (torch.randn(4, 6), torch.tensor([0, 3, 1])))
def tensor_indexing(x, i):
    return x[i], x[:, i], x[i, i], x[[0, 2]], x[i[0]] if False else x[i, 1:3]


@case(lambda: (torch.randn(5, 3),), versions=None)
def boolean_mask(x):
    return x[x > 0], x[x[:, 0] > 0].sum(0)


@case()
def index_assignment(x):
    y = torch.zeros_like(x)
    y[0] = x[1]
    y[:, 2] = 5.0
    y[y > 4] = -1
    y[1, 1:3] += x[0, 1:3]
    return y


@case(lambda: (torch.randn(4, 8), torch.tensor(2)))
def scalar_tensor_index(x, i):
    return x[i], x[:, i]


@case(lambda: (torch.randn(4, 4),))
def scatter_and_gather(x):
    i = torch.tensor([[0, 1, 2, 0]])
    return torch.zeros(3, 4).scatter_(0, i, x), torch.zeros(4, 4).scatter_add(0, i, x), x.take_along_dim(i, 0)


# -- control flow ------------------------------------------------------------------------------------------------------


@case(versions=2)
def branch_on_data(x):
    if x.sum() > 0:
        return x * 2
    return x - 1


@case()
def branch_on_shape(x):
    if x.shape[0] > 3 and len(x) == 4 and x.size(1) % 2 == 0 and x.dim() == 2:
        return x.sum(0)
    return x.sum(1)


@case()
def early_return(x):
    for row in x:
        if row.sum() > 1:
            return row
    return x[0] * 0


@case()
def while_on_data(x):
    count = 0
    y = x.abs().sum()
    while y > 1:
        y = y / 2
        count += 1
    return y, count


@case()
def loop_over_shape(x):
    total = torch.zeros(())
    for i in range(x.shape[0]):
        total = total + x[i].sum() * i
    return total


@case(lambda: (torch.tensor([3, 1, 2]), torch.randn(4)))
def range_of_tensor(n, x):
    for _ in range(n[0]):
        x = x * 2
    return x


@case()
def int_of_tensor(x):
    return x * int(x.abs().max() > 2)


@case()
def float_of_tensor(x):
    return x / float((x > 0).sum())


@case()
def item_and_tolist(x):
    n = (x > 0).sum().item()
    return x * n, (x > 1).sum(1).tolist()


@case()
def membership(x):
    return x + 1 if 0.0 in x.relu() else x


@case(_pair)
def equal_and_allclose(x, y):
    return x if torch.equal(x, y) else y if torch.allclose(x, y) else x + y


@case()
def recursion(x):
    def power(t, n):
        return t if n == 0 else power(t * 0.5, n - 1)

    return power(x, 5)


@case()
def recursion_on_data(x):
    def halve(t, depth=0):
        return (t, depth) if t.abs().max() < 1 else halve(t / 2, depth + 1)

    return halve(x)


@case()
def assertion_and_try(x):
    assert x.shape[-1] == 8
    assert (x.abs() >= 0).all()
    try:
        return {}["missing"]
    except KeyError:
        return x


@case()
def conditional_expression_and_boolean_operators(x):
    y = x.mean()
    return x if y > 0 and y < 10 or not x.any() else -x


@case()
def max_of_tensors(x):
    return max(x[0, 0], x[0, 1]), min(x[:, 0]), sorted([x[1, 1], x[2, 2]]), any(r.sum() > 0 for r in x)


@case()
def math_function(x):
    return x * math.sqrt(x.abs().sum().round())


# -- Python structure -------------------------------------------------------------------------------------------------


@case()
def comprehensions(x):
    return [r * 2 for r in x], {i: c.sum() for i, c in enumerate(x.unbind(1))}, tuple(t + 1 for t in x.split(2))


@case()
def generator(x):
    def rows():
        for i in range(x.shape[0]):
            yield x[i] * i

    return torch.stack(list(rows())), sum(rows())


@case(lambda: ({"a": torch.randn(3), "b": [torch.randn(3), (torch.randn(3), 2.0)]},))
def nested_input(d):
    return {"sum": d["a"] + d["b"][0], "parts": [d["b"][1][0] * d["b"][1][1], None, "text", 3]}


class Point(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@dataclasses.dataclass
class Batch:
    data: torch.Tensor
    mask: torch.Tensor
    scale: float = 1.0


@case(lambda: (Point(torch.randn(3), torch.randn(3)),))
def named_tuple(p):
    return Point(p.y, p.x + p.y), p._replace(x=p.x * 2)


@case(lambda: (Batch(torch.randn(3), torch.ones(3) > 0, 2.0),))
def data_class(b):
    return Batch(b.data * b.scale, ~b.mask, b.scale + 1)


@case(lambda: (torch.randn(3),), kwargs=lambda: {"other": torch.randn(3), "alpha": 0.5})
def keyword_arguments(x, *, other, alpha=1.0, beta=2.0):
    return torch.add(x, other, alpha=alpha) * beta


@case(lambda: (torch.randn(3), torch.randn(3), torch.randn(3)), kwargs=lambda: {"p": torch.randn(3)})
def variadic(first, *rest, **named):
    return first + sum(rest), {key: value * 2 for key, value in named.items()}


@case()
def returns_input(x):
    return x, x + 1, x


@case()
def returns_nothing(x):
    x + 1


@case()
def returns_same_twice(x):
    y = x + 1
    return y, y, [y]


@case()
def string_and_formatting(x):
    name = f"{x.shape[0]}x{x.shape[1]}"
    return x.sum(), name, "{}".format(x.dtype)  # noqa: UP032


@case()
def ordered_dict(x):
    return collections.OrderedDict(a=x, b=x * 2)


@case()
def lambda_and_partial(x):
    add = functools.partial(torch.add, alpha=3)
    return add(x, x), (lambda t: t * 2)(x)


@case(factory=True)
def closure_tensor():
    w = torch.full((8,), 0.5)

    def fn(x):
        return x * w

    return fn


SCALE = torch.full((8,), 1.5)


@case()
def global_tensor(x):
    return x * SCALE


@case()
def default_tensor(x, w=torch.full((8,), 3.0)):  # noqa: B008
    return x * w


@case(factory=True)
def partial_with_tensor():
    return functools.partial(lambda w, x: x @ w, torch.full((8, 2), 0.25))


def _helper(x):
    return x * SCALE + OFFSET


OFFSET = 2.5


@case()
def helper_function(x):
    return _helper(x) - OFFSET


@case(factory=True)
def bound_method():
    class Scaler:
        def __init__(self):
            self.w = torch.full((8,), 0.75)
            self.k = 3

        def scale(self, x):
            return x * self.w + self.k

    return Scaler().scale


@case(factory=True)
def callable_object():
    class Affine:
        def __init__(self):
            self.a, self.b = torch.full((8,), 2.0), {"bias": torch.ones(8)}

        def __call__(self, x):
            return x * self.a + self.b["bias"]

    return Affine()


# -- modules ----------------------------------------------------------------------------------------------------------


@case(factory=True)
def sequential_module():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 3)).eval()


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.norms = nn.ModuleDict({"pre": nn.LayerNorm(8)})
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.register_buffer("shift", torch.ones(8))
        self.steps = 2

    def forward(self, x, flip=False):
        for _ in range(self.steps):
            for layer in self.layers:
                x = x + self.scale * F.gelu(layer(self.norms["pre"](x)))
        return -x if flip else x + self.shift


@case(factory=True)
def residual_module():
    return Residual()


@case(kwargs=lambda: {"flip": True}, factory=True)
def module_with_keyword():
    return Residual()


@case(factory=True)
def batch_norm_training():
    return nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))


@case(factory=True)
def batch_norm_eval():
    return nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)).eval()


@case(factory=True)
def dropout_module():
    return nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 4), nn.Dropout(0.1))


@case(lambda: (torch.randn(5, 2, 8),), factory=True)
def lstm_module():
    lstm = nn.LSTM(8, 4, 2).eval()
    return lambda x: lstm(x)


@case(lambda: (torch.randn(2, 5, 8),), factory=True)
def multihead_attention():
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    return lambda x: attention(x, x, x)


@case(lambda: (torch.randn(2, 5, 8),), factory=True, grad=True)
def transformer_layer():
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)


@case(lambda: (nn.Linear(8, 3), torch.randn(2, 8)))
def module_argument(layer, x):
    return layer(x).relu()


@case(factory=True)
def shared_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 8)
            self.b = nn.Linear(8, 8)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    return Tied()


@case(factory=True)
def module_with_hook():
    layer = nn.Linear(8, 8)
    layer.register_forward_hook(lambda module, args, out: out * 2)
    return layer


@case(lambda: (torch.randint(0, 10, (2, 6)),), factory=True)
def embedding_module():
    return nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 8), nn.Softmax(-1))


@case(lambda: (torch.randn(2, 3, 8, 8),), factory=True)
def small_convnet():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 2),
    )


# -- in-place operations ----------------------------------------------------------------------------------------------


@case()
def in_place_on_intermediate(x):
    x = x + 1
    x.relu_()
    x.mul_(2).add_(1)
    return x


@case()
def in_place_on_input(x):
    x.mul_(2)
    return x + 1


@case(_pair)
def in_place_on_view_of_input(x, y):
    y[0].add_(1)
    x.t()[0].zero_()
    return x + y


@case()
def in_place_through_view(x):
    y = x * 1
    v = y[0]
    v += 10
    w = y.view(-1)
    w[3] = 0
    return y, v, w


@case()
def value_before_and_after_in_place(x):
    y = x * 2
    before = y.sum()
    y.add_(1)
    after = y.sum()
    return before, after


@case()
def augmented_assignment(x):
    y = x.clone()
    y += 1
    y *= x
    y -= 3
    y /= 2
    return y


@case()
def out_argument(x):
    result = torch.empty(4, 8)
    torch.add(x, 1, out=result)
    torch.mul(result, 2, out=result)
    return result


@case(lambda: (torch.randn(4, 4),))
def in_place_metadata(x):
    y = x.clone()
    y.t_()
    y.unsqueeze_(0)
    return y


@case(factory=True)
def module_buffer_update():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.register_buffer("average", torch.zeros(8))

        def forward(self, x):
            self.count += 1
            self.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
            return x - self.average, self.count.clone()

    return Counter()


@case(lambda: (torch.zeros(3), torch.ones(3)))
def mutate_then_branch(x, y):
    x.add_(y)
    if x.sum() > 2:
        return x * 10
    return x


@case(lambda: (lambda t: (t, t[1:]))(torch.randn(4, 8)))
def overlapping_inputs(x, tail):
    tail.zero_()
    return x.sum(), tail + 1


@case(lambda: (lambda t: (t, t))(torch.randn(4, 8)))
def same_input_twice(x, y):
    x.add_(1)
    return y * 2


# -- randomness -------------------------------------------------------------------------------------------------------


@case()
def random_noise(x):
    return x + torch.randn(4, 8), torch.rand_like(x), torch.randint(0, 5, (3,)), F.dropout(x, 0.3)


@case()
def random_in_place(x):
    y = torch.empty(5).uniform_()
    return x * torch.bernoulli(torch.full((8,), 0.5)), y.normal_(), torch.randperm(6)


@case()
def branch_on_random(x):
    unused = torch.rand(3)  # noqa: F841
    if torch.rand(()) > 0.5:
        return x
    return -x


@case(lambda: (torch.randn(3), torch.Generator().manual_seed(3)))
def given_generator(x, g):
    return x + torch.randn(3, generator=g), torch.rand(2, generator=g)


@case(refused="random number generator")
def reseeds(x):
    torch.manual_seed(0)
    return x + torch.randn(8)


@case(refused="Python's random")
def python_random(x):
    return x * random.random()


@case(refused="numpy.random")
def numpy_random(x):
    import numpy

    return x * float(numpy.random.rand())


# -- modes ------------------------------------------------------------------------------------------------------------


@case(lambda: (torch.randn(3, requires_grad=True),), grad=True)
def no_grad_inside(x):
    y = x * 2
    with torch.no_grad():
        z = y + 1
    return y, z, z * x, y.detach()


@case(lambda: (torch.randn(3, requires_grad=True),), grad=True)
def no_grad_decorated(x):
    @torch.no_grad()
    def inner(t):
        return t * 2

    return inner(x) + x, x.requires_grad, inner(x).requires_grad


@case()
def inference_mode_inside(x):
    with torch.inference_mode():
        y = x * 2
    return y + 1


@case(lambda: (torch.randn(4, 8), torch.randn(8, 4)))
def autocast_inside(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
        z = y.softmax(-1)
    return y, z, x @ w


@case(lambda: (torch.randn(3, requires_grad=True),), grad=True)
def requires_grad_reads(x):
    y = x * 2
    return (y if y.requires_grad else -y), y.is_leaf, (x > 0).requires_grad


# -- factories --------------------------------------------------------------------------------------------------------


@case()
def factories(x):
    n = x.shape[0]
    return (
        torch.zeros(n), torch.ones(2, 3), torch.full((2,), 7.0), torch.arange(n), torch.linspace(0, 1, 5), torch.eye(n),
        torch.tensor([1, 2, 3]), torch.tensor(3.5), torch.zeros_like(x), x.new_ones(2), torch.empty(0),
        torch.as_tensor([1.0]),
    )  # fmt: skip


@case()
def constant_table(x):
    table = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    return x[:, :2] @ table


@case()
def tensor_from_tensor_values(x):
    return torch.stack([x[0, 0], x[1, 1]]), torch.tensor([1.0, 2.0]) + x[0, :2]


@case()
def meshgrid_and_cartesian(x):
    a, b = torch.meshgrid(torch.arange(3), torch.arange(2), indexing="ij")
    return a + b, x[a, b], torch.cumsum(x, 1), torch.tril(x), torch.roll(x, 1)


@case()
def positional_encoding(x):
    position = torch.arange(x.size(0)).unsqueeze(1)
    div = torch.exp(torch.arange(0, x.size(1), 2) * (-math.log(10000.0) / x.size(1)))
    pe = torch.zeros(x.size(0), x.size(1))
    pe[:, 0::2] = torch.sin(position * div)
    pe[:, 1::2] = torch.cos(position * div)
    return x + pe


# -- data-dependent shapes --------------------------------------------------------------------------------------------


@case()
def nonzero_shape(x):
    i = (x > 0).nonzero()
    return i, i.shape[0]


@case(lambda: (torch.randint(0, 4, (10,)),))
def unique_and_bincount(i):
    return torch.unique(i), torch.bincount(i), F.one_hot(i), i.unique(return_counts=True)


@case(lambda: (torch.randn(3), torch.tensor([1, 2, 3])))
def repeat_interleave(x, n):
    return torch.repeat_interleave(x, n), torch.masked_select(x, x > 0)


# -- what cannot be recorded ---------------------------------------------------------------------------------------


@case(refused="outside PyTorch")
def to_numpy(x):
    return torch.as_tensor(x.numpy() * 2)


@case(refused="outside PyTorch")
def numpy_function(x):
    import numpy

    return torch.tensor(float(numpy.asarray(x).sum()))


@case(refused="outside the tracer's sight")
def legacy_constructor(x):
    return x + torch.Tensor([1.0] * 8)


@case(refused="outside the tracer's sight")
def from_numpy(x):
    import numpy

    return x + torch.from_numpy(numpy.ones(8, dtype=numpy.float32))


@case(refused="NumPy array")
def numpy_constant(x):
    import numpy

    return x * torch.as_tensor(numpy.ones(8, dtype=numpy.float32))


@case(refused="default dtype changes")
def default_dtype_inside(x):
    torch.set_default_dtype(torch.float64)
    try:
        return x + torch.ones(8)
    finally:
        torch.set_default_dtype(torch.float32)


@case(lambda: (torch.randn(3), {}), refused="changes d")
def argument_container_changed(x, d):
    d["last"] = x * 2
    return x


@case(refused="leaves gradient mode")
def leaves_mode_changed(x):
    torch.set_grad_enabled(not torch.is_grad_enabled())
    return x


@case(lambda: (torch.sparse_coo_tensor(torch.tensor([[0], [1]]), torch.tensor([1.0]), (2, 2)),), refused="layout")
def sparse_input(x):
    return x * 2


@case(refused="memory behind")
def data_pointer(x):
    return x * (x.data_ptr() % 2)


@case(lambda: (torch.randn(3, requires_grad=True),), refused="autograd", grad=True)
def backward_inside(x):
    y = (x * x).sum()
    y.backward()
    return x.grad


@case(lambda: (torch.randn(3, requires_grad=True),), refused="gradients", grad=True)
def grad_inside(x):
    return torch.autograd.grad((x * x).sum(), x)


@case(refused="caught an exception")
def exception_as_control_flow(x):
    try:
        y = torch.linalg.cholesky(x[:, :4])
    except RuntimeError:
        y = x
    return y


@case(refused="requires_grad")
def requires_grad_inside(x):
    x.requires_grad_()
    return x * 2


@case(refused="rebinds")
def assigns_data(x):
    x.data = x * 2
    return x


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


@case(lambda: (torch.randn(3, requires_grad=True),), refused="autograd.Function", grad=True)
def custom_function(x):
    return Straight.apply(x) * 2


@case()
def custom_function_without_grad(x):
    return Straight.apply(x) * 2


@case(lambda: (torch.randn(4, 4),), refused="changes the shape")
def in_place_metadata_on_input(x):
    x.t_()
    return x


@case(refused="vmap")
def vmapped(x):
    return torch.vmap(torch.sin)(x)


@case(refused="returns a")
def returns_object(x):
    class Result:
        def __init__(self, value):
            self.value = value

    return Result(x * 2)


@case(refused="turned into text")
def returns_text_of_data(x):
    return x, f"{x.sum():.3f}"


@case(factory=True, refused="changes self.last")
def module_attribute_rebound():
    class Remember(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = None

        def forward(self, x):
            self.last = x * 2
            return x + 1

    return Remember()


@case(factory=True, refused="changes self.calls")
def module_counter():
    class Count(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.calls

    return Count()


COUNT = 0


@case(refused="changes COUNT")
def global_counter(x):
    global COUNT
    COUNT += 1
    return x * COUNT


@case(factory=True, refused="changes seen")
def nonlocal_rebinding():
    seen = None

    def fn(x):
        nonlocal seen
        seen = x * 2
        return x

    return fn


@case(factory=True, refused="reads from the iterator")
def iterator_in_closure():
    numbers = iter(range(100))

    def fn(x):
        return x * next(numbers)

    return fn


@case(lambda: ({torch.tensor(1.0)},), refused="set")
def set_argument(s):
    return [t * 2 for t in s]


@case(lambda: (iter([torch.ones(2)]),), refused="used it up|use it up")
def iterator_argument(it):
    return next(it) * 2
