"""Only tensors whose memory holds their values reach kernels: the others run operator by operator or are refused."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

import staxlab
from staxlab.errors import CaptureError, FallbackWarning, GuardError, StaxError


def double(a):
    return a * 2


def zeros(a):
    return torch.zeros(2)


# -- devices and tensors without memory -------------------------------------------------------------------------------

# A null pointer in a kernel ends the process, so these run in one of their own.
CRASHES = """
import warnings, torch, staxlab
warnings.simplefilter("ignore")
x = torch.ones(2)
with torch.device("meta"):
    made = staxlab.compile(lambda a: torch.zeros(2))(x)
assert made.device.type == "meta"
f = staxlab.compile(lambda a: a * 2)
for _ in range(3):
    assert f(torch.ones(2, device="meta")).device.type == "meta"
for _ in range(3):
    assert f(torch.ones(2)).sum() == 4
try:
    f(torch._efficientzerotensor((2,)))
except staxlab.StaxError as error:
    assert "without memory" in str(error)
else:
    raise AssertionError
assert staxlab.compile(lambda a, b: a + b)(torch.ones(2), torch._efficientzerotensor((2,)).clone()).sum() == 2
assert f(torch.ones(0)).shape == (0,) and f(torch.ones(0)).shape == (0,)
"""


def test_kernels_get_no_null_pointers(repository):
    subprocess.run([sys.executable, "-c", CRASHES], check=True, cwd=repository)


def test_what_is_on_another_device_falls_back_visibly():
    with pytest.warns(FallbackWarning, match="device 'meta'"):
        compiled = staxlab.compile(double)
        assert compiled(torch.ones(2, device="meta")).shape == (2,)
    assert "meta" in compiled.versions[0].compilation.fallback_reason
    x = torch.ones(2)
    with torch.device("meta"), pytest.warns(FallbackWarning, match="%zeros is on device 'meta'"):
        assert staxlab.compile(zeros)(x).is_meta


def left_over():
    kept = []
    torch.vmap(lambda x: kept.append(x) or x)(torch.ones(2, 2))
    return kept[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "NestedTensor"),
        (lambda: torch.ones(2).to_sparse(), "layout"),
        (lambda: torch.ones(2, 2).to_sparse_csr(), "layout"),
        (lambda: torch.ones(2).to_mkldnn(), "layout"),
        (lambda: torch._efficientzerotensor((2,)), "without memory"),
        (left_over, "has ended"),
    ],
)
def test_tensors_of_other_kinds_are_refused_in_plain_words(make, what):
    for fn in (double, lambda a: a.sum()):
        with pytest.raises(StaxError, match=what) as caught:
            staxlab.compile(fn)(make())
        assert caught.value.remedy


@pytest.mark.filterwarnings("ignore")
def test_quantized_tensors_run_operator_by_operator():
    q = torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.1, 0, torch.qint8)
    assert torch.equal(staxlab.compile(lambda a: a.dequantize() * 2)(q), q.dequantize() * 2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("fn", "what"),
    [
        (lambda a: a.to_sparse_csr() @ a, "layout"),
        (lambda a: torch.nested.as_nested_tensor([a, a]).to_padded_tensor(0.0), "nested"),
    ],
)
def test_results_without_strides_are_refused_in_plain_words(fn, what):
    with pytest.raises(CaptureError, match=what) as caught:
        staxlab.compile(fn)(torch.eye(2))
    assert caught.value.where is not None and caught.value.remedy


# -- out= -------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_out_of_another_shape_is_refused_and_left_alone():
    def fn(a, o):
        return torch.add(a, 1, out=o)

    for o in (torch.empty(0), torch.zeros(3), torch.zeros(2, 2)[0, :1]):
        shape, before = o.shape, o.clone()
        with pytest.raises(CaptureError, match="out="):
            staxlab.compile(fn)(torch.ones(2), o)
        assert o.shape == shape and torch.equal(o, before)
    o = torch.zeros(2)
    assert staxlab.compile(fn)(torch.ones(2), o) is not None and torch.equal(o, torch.full((2,), 2.0))


@pytest.mark.filterwarnings("ignore")
def test_out_may_be_an_empty_tensor_made_inside():
    def fn(a):
        o = torch.empty(0)
        torch.add(a, 1, out=o)
        return o * 2

    for _ in range(2):
        assert torch.equal(staxlab.compile(fn)(torch.ones(2)), fn(torch.ones(2)))


@pytest.mark.filterwarnings("ignore")
def test_an_expanded_input_is_written_as_in_eager():
    def fn(a):
        a[0] = 5
        return a * 1

    x, y = torch.zeros(1), torch.zeros(1)
    assert torch.equal(staxlab.compile(fn)(x.expand(3)), fn(y.expand(3))) and torch.equal(x, y)


# -- copies, pickles, other tracers -----------------------------------------------------------------------------------


@staxlab.compile
def decorated(a):
    return a + 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 2)
        self.act = staxlab.compile(torch.relu)

    def forward(self, x):
        return self.act(self.body(x))


def test_a_copy_is_a_dispatcher_of_its_own():
    x = torch.ones(2)
    compiled = staxlab.compile(nn.Linear(2, 2).requires_grad_(False), options={"max_versions": 3})
    compiled(x)
    twin = copy.deepcopy(compiled)
    assert twin is not compiled and not twin.versions and twin.options == compiled.options
    assert twin.fn is not compiled.fn and torch.equal(twin(x), compiled(x))
    with torch.no_grad():
        twin.fn.weight.zero_()
        twin.fn.bias.zero_()
    assert twin(x).abs().sum() == 0 and compiled(x).abs().sum() > 0
    assert copy.copy(compiled).fn.weight is compiled.fn.weight and not copy.copy(compiled).versions
    for twin in (copy.copy(decorated), copy.deepcopy(decorated)):
        assert twin is not decorated and twin.fn is decorated.fn and torch.equal(twin(x), decorated(x))


def test_a_pickle_brings_the_function_and_the_options():
    x = torch.ones(2)
    compiled = staxlab.compile(nn.Linear(2, 2).requires_grad_(False), options={"max_versions": 3})
    compiled(x)
    twin = pickle.loads(pickle.dumps(compiled))
    assert not twin.versions and twin.options == compiled.options and torch.equal(twin(x), compiled(x))
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(staxlab.compile(lambda a: a))


def test_a_module_that_holds_a_compiled_function_can_be_copied_and_pickled():
    net, x = Net().requires_grad_(False), torch.ones(2)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(twin(x), net(x))


def test_torch_fx_is_told_what_to_trace():
    with pytest.raises(GuardError, match=r"torch\.fx") as caught:
        torch.fx.symbolic_trace(Net())
    assert "compiled.fn" in caught.value.remedy


@pytest.mark.filterwarnings("ignore")
def test_script_modules_are_refused_by_name():
    script = torch.jit.trace(nn.Linear(2, 2), torch.ones(2))
    for module in (script, nn.Sequential(script), torch.jit.script(nn.ReLU())):
        with pytest.raises(CaptureError, match="TorchScript"):
            staxlab.compile(module)(torch.ones(2))
