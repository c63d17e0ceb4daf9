"""Free variables: what a function reads outside its arguments is lifted or guarded, and read anew at each call."""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from staxlab.specialize.free_variables import collect
from tests.specialize.regions import dispatcher

GLOBAL_SCALE = 2.0
GLOBAL_TENSOR = torch.ones(8)
CONFIG = types.SimpleNamespace(k=1.0, inner=types.SimpleNamespace(z=2.0))
NUMBERS = [2.0, 3.0]
TENSORS = [torch.ones(8)]
TABLE = {"a": 1.0}
MEMBERS = {1, 2}
QUEUE = collections.deque([1.0, 2.0])
USER_MODULE = types.ModuleType("user_module")
USER_MODULE.K = 2.0


class Settings:
    scale = 2.0


class Slotted:
    __slots__ = ("k",)

    def __init__(self):
        self.k = 2.0


@dataclasses.dataclass
class Record:
    k: float = 1.0


class Net(nn.Module):
    slope = 0.1

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.activation = F.relu
        self.mask = None
        self.repeats = 2
        self.view_shape = (4, 8)

    def forward(self, x):
        for _ in range(self.repeats):
            x = self.activation(self.linear(x))
        if self.mask is not None:
            x = x * self.mask
        if hasattr(self, "extra"):
            x = x + self.extra
        return F.leaky_relu(x, self.slope).view(self.view_shape)


def helper(x):
    return x + 1


def uses_helper(x):
    return helper(x) * 2


def with_default(x, k=2.0):
    return x * k


def with_attribute(x):
    return x * with_attribute.k


with_attribute.k = 2.0


def closure():
    k = 2.0

    def fn(x):
        return x * k

    def change(i):
        nonlocal k
        k = 3.0 + i

    return fn, change


def replace_global(name, make):
    def change(i):
        globals()[name] = make(i)

    return change


def scenario_table():
    """(name, function, change, versions expected or None): the change is made between calls."""
    closed, change_closure = closure()
    settings, slotted, record, net = Settings(), Slotted(), Record(), Net()
    module = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8)).eval()

    def set_data(i):
        module[0].weight.data = module[0].weight.data.t()

    def set_key(i):
        TABLE.clear()
        TABLE[f"k{i}"] = 3.0 + i

    def set_members(i):
        MEMBERS.clear()
        MEMBERS.update({3 + i, 2})

    def rotate(i):
        QUEUE.popleft()
        QUEUE.append(5.0 + i)

    def add_to(tensor, i):
        with torch.no_grad():
            tensor.add_(i + 1)

    return [
        ("global number", lambda x: x * GLOBAL_SCALE, replace_global("GLOBAL_SCALE", lambda i: 3.0 + i), 4),
        ("global tensor rebound", lambda x: x * GLOBAL_TENSOR, replace_global("GLOBAL_TENSOR",
         lambda i: torch.full((8,), 2.0 + i)), 1),
        ("global tensor in place", lambda x: x * GLOBAL_TENSOR, lambda i: add_to(GLOBAL_TENSOR, i), 1),
        ("global tensor data", lambda x: x * GLOBAL_TENSOR,
         lambda i: setattr(GLOBAL_TENSOR, "data", torch.full((8,), 5.0 + i)), 1),
        ("nested namespace", lambda x: x * CONFIG.k * CONFIG.inner.z,
         lambda i: setattr(CONFIG.inner, "z", 5.0 + i), 4),
        ("namespace replaced", lambda x: x * CONFIG.inner.z,
         lambda i: setattr(CONFIG, "inner", types.SimpleNamespace(z=9.0 + i)), 4),
        ("list item", lambda x: x * NUMBERS[0], lambda i: NUMBERS.__setitem__(0, 7.0 + i), 4),
        ("list grows", lambda x: x * sum(NUMBERS), lambda i: NUMBERS.append(7.0 + i), 4),
        ("tensor list grows", lambda x: sum(x * t for t in TENSORS),
         lambda i: TENSORS.append(torch.full((8,), 2.0 + i)), 4),
        ("tensor list item", lambda x: sum(x * t for t in TENSORS),
         lambda i: TENSORS.__setitem__(-1, torch.full((8,), 20.0 + i)), 1),
        ("dict keys", lambda x: x * sum(TABLE.values()), set_key, 4),
        ("set members", lambda x: x * (1 if 3 in MEMBERS else 2), set_members, 4),
        ("deque", lambda x: x * sum(QUEUE), rotate, 4),
        ("class attribute", lambda x: x * Settings.scale, lambda i: setattr(Settings, "scale", 3.0 + i), 4),
        ("class attribute by instance", lambda x: x * settings.scale,
         lambda i: setattr(Settings, "scale", 30.0 + i), 4),
        ("instance shadows class", lambda x: x * settings.scale, lambda i: setattr(settings, "scale", 10.0 + i), 4),
        ("slot", lambda x: x * slotted.k, lambda i: setattr(slotted, "k", 3.0 + i), 4),
        ("dataclass", lambda x: x * record.k, lambda i: setattr(record, "k", 3.0 + i), 4),
        ("getattr with default", lambda x: x * getattr(record, "maybe", 1.0),
         lambda i: setattr(record, "maybe", 3.0 + i), 4),
        ("user module", lambda x: x * USER_MODULE.K, lambda i: setattr(USER_MODULE, "K", 3.0 + i), 4),
        ("closure", closed, change_closure, 4),
        ("default value", with_default, lambda i: setattr(with_default, "__defaults__", (3.0 + i,)), 4),
        ("function attribute", with_attribute, lambda i: setattr(with_attribute, "k", 3.0 + i), 4),
        ("helper redefined", uses_helper, replace_global("helper", lambda i: eval(f"lambda x: x + {i + 5}")), 4),
        ("helper edited in place", uses_helper,
         lambda i: setattr(helper, "__code__", eval(f"lambda x: x - {i + 1}").__code__), 4),
        ("weight in place", module, lambda i: add_to(module[0].weight, i), 1),
        ("weight transposed", module, set_data, 2),
        ("weight replaced", module, lambda i: setattr(module[0], "weight", nn.Parameter(torch.randn(8, 8))), None),
        ("layer replaced", module, lambda i: module.__setitem__(0, nn.Linear(8, 8)), 4),
        ("layer added", module, lambda i: module.append(nn.Linear(8, 8)), 4),
        ("bias removed", module, lambda i: setattr(module[0], "bias", None), 2),
        ("hook added", module, lambda i: module[0].register_forward_hook(lambda m, a, out: out + 1), 4),
        ("eps", module, lambda i: setattr(module[2], "eps", 1e-3 * (i + 1)), 4),
        ("activation", net, lambda i: setattr(net, "activation", [F.gelu, torch.tanh, F.silu][i]), 4),
        ("optional tensor", net,
         lambda i: setattr(net, "mask", [torch.full((8,), 2.0), None, torch.full((8,), 3.0)][i]), 2),
        ("loop count", net, lambda i: setattr(net, "repeats", i + 1), None),
        ("class constant of a module", net, lambda i: setattr(Net, "slope", 0.2 + i), 4),
        ("attribute appears", net, lambda i: setattr(net, "extra", 1.0 + i), 4),
        ("object argument", lambda o, x: x * o.k, lambda i: setattr(record, "k", 100.0 + i), 4, record),
        ("function argument", lambda f, x: f(x), lambda i: change_closure(50 + i), 4, closed),
    ]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("index", range(len(scenario_table())), ids=[row[0] for row in scenario_table()])
def test_changes_between_calls_are_seen(index, monkeypatch):
    for name in ("GLOBAL_SCALE", "helper"):
        monkeypatch.setitem(globals(), name, globals()[name])
    monkeypatch.setitem(globals(), "GLOBAL_TENSOR", torch.ones(8))
    monkeypatch.setattr(helper, "__code__", helper.__code__)
    monkeypatch.setattr(with_default, "__defaults__", (2.0,))
    for owner in (Settings, Net):
        for name in ("scale", "slope"):
            if hasattr(owner, name):
                monkeypatch.setattr(owner, name, getattr(owner, name))
    _, fn, change, versions, *first = scenario_table()[index]
    compiled = dispatcher(fn, max_versions=50)
    x = torch.randn(4, 8)
    with torch.no_grad():
        for call in range(4):
            for _ in range(3):  # the same state several times: every level of dispatch gets its turn
                assert torch.equal(compiled(*first, x), fn(*first, x))
            if call < 3:
                change(call)
    if versions is not None:
        assert len(compiled.versions) == versions


@pytest.mark.filterwarnings("ignore")
def test_training_and_evaluation_are_two_versions():
    module = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    compiled = dispatcher(module)
    x = torch.randn(4, 8)
    for mode in (True, False, True, False):
        module.train(mode)
        torch.manual_seed(1)
        expected = module(x)
        torch.manual_seed(1)
        assert torch.equal(compiled(x), expected)
    assert len(compiled.versions) == 2
    assert "self.training" in str(compiled.recompiles[0])


def test_half_precision_parameters_are_another_version():
    module = nn.Linear(8, 8)
    compiled = dispatcher(module)
    x = torch.randn(4, 8)
    assert compiled(x).dtype is torch.float32
    module.double()  # assigns .data of the same Parameter objects
    assert torch.equal(compiled(x.double()), module(x.double()))


def test_example_2_2_an_in_place_change_needs_no_new_version():
    scale = torch.ones(128)
    compiled = dispatcher(lambda x: x * scale)
    x = torch.randn(4, 128)
    assert torch.equal(compiled(x), x)
    scale.mul_(2)
    assert torch.equal(compiled(x), 2 * x)
    assert len(compiled.versions) == 1


def test_paths_read_like_the_program():
    net = Net()
    environment = collect(net)
    assert {"self.linear.weight", "self.linear.bias"} <= {place.path for place in environment.tensors}
    assert {"self.repeats", "self.training", "self.slope"} <= {place.path for place in environment.scalars}
    assert {"self.linear", "self.activation"} <= {place.path for place in environment.structure}
    partial = functools.partial(lambda w, x: x @ w, torch.ones(2, 2))
    assert [place.path for place in collect(partial).tensors] == ["partial.args[0]"]


def test_a_tensor_reached_by_two_names_is_lifted_once():
    net = Net()
    places = collect(net).tensors
    assert len({(id(p.holder), p.key) for p in places}) == len(places)


def test_library_functions_are_not_walked_into():
    environment = collect(lambda x: F.layer_norm(torch.relu(x), (8,)))
    assert not environment.tensors and not environment.scalars
    assert all("torch" not in place.path for place in environment.structure)


def test_a_function_of_main_is_the_users_whatever_runs_it(monkeypatch):
    """Under ``python -m pytest`` the file of ``__main__`` is installed software; a function made there is not."""
    installed = os.path.join(os.path.dirname(os.__file__), "runner.py")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", installed, raising=False)
    scope = {"__name__": "__main__", "table": torch.ones(3)}
    exec(compile("def reads(x):\n    return x + table\n", "<a cell>", "exec"), scope)
    found = collect(scope["reads"])
    assert len(found.tensors) == 1 and found.tensors[0].read() is scope["table"]
