"""A compiled module is a module: parameters, state, modes, attributes and methods are those of the module it wraps."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch
from torch import nn

import staxlab
from staxlab.specialize.compiled_module import CompiledModule
from staxlab.specialize.dispatch import Dispatcher

X = torch.tensor([[1.0, -2.0]])


class Net(nn.Module):
    """Doubles."""

    kind = "net"

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("count", torch.zeros(()))
        self.scale = 2.0
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(self.linear(x)) * self.scale + self.count

    def doubled(self, x):
        return 2 * self(x)

    def reset(self):
        return "the module's own"


class Parent(nn.Module):
    def __init__(self, child):
        super().__init__()
        self.child = child

    def forward(self, x):
        return self.child(x) + 1


def compiled_net():
    torch.manual_seed(0)
    module = Net().eval()
    return module, staxlab.compile(module, backend="eager")


def test_it_is_a_module_of_the_same_class_with_the_same_state():
    module, compiled = compiled_net()
    assert isinstance(compiled, nn.Module) and isinstance(compiled, Net) and isinstance(compiled, CompiledModule)
    assert list(compiled.state_dict()) == list(module.state_dict())
    assert all(a is b for a, b in zip(compiled.parameters(), module.parameters(), strict=True))
    assert compiled.__doc__ == "Doubles." and compiled.kind == "net" and compiled.linear is module.linear
    assert "CompiledNet(" in repr(compiled) and compiled.fn is module and inspect.unwrap(compiled) is module


def test_a_parent_sees_its_parameters():
    module, compiled = compiled_net()
    parent = Parent(compiled)
    assert list(parent.state_dict()) == [f"child.{name}" for name in module.state_dict()]
    assert len(list(parent.parameters())) == 2
    parent.train()
    assert module.training and module.dropout.training
    parent.eval()
    assert not module.training and not module.dropout.training
    assert torch.equal(parent(X), module(X) + 1) and len(compiled.versions) == 1
    whole = staxlab.compile(parent, backend="eager")
    for _ in range(3):
        assert torch.equal(whole(X), module(X) + 1)
    assert len(compiled.versions) == 1  # the outer one is captured whole


def test_what_is_assigned_to_one_is_assigned_to_the_other():
    module, compiled = compiled_net()
    before = compiled(X)
    compiled.scale = 4.0
    assert module.scale == 4.0 and torch.equal(compiled(X), module(X)) and torch.equal(compiled(X), 2 * before)
    compiled.linear = nn.Linear(2, 2)
    assert module.linear is compiled.linear and torch.equal(compiled(X), module(X))
    compiled.extra = nn.Parameter(torch.ones(1))
    assert "extra" in dict(module.named_parameters())
    del compiled.extra
    assert not hasattr(module, "extra")
    module.note = "here"
    assert compiled.note == "here"
    with pytest.raises(AttributeError, match="nothing"):
        compiled.nothing  # noqa: B018


def test_modes_devices_and_dtypes():
    module, compiled = compiled_net()
    assert compiled.train() is compiled and module.training
    assert compiled.eval() is compiled and not module.training
    assert compiled.double() is compiled and module.linear.weight.dtype == torch.float64
    assert torch.equal(compiled(X.double()), module(X.double()))
    compiled.requires_grad_(False)
    assert not module.linear.weight.requires_grad
    state = {name: torch.zeros_like(value) for name, value in module.state_dict().items()}
    compiled.load_state_dict(state)
    assert not compiled(X.double()).any()


def test_training_through_it():
    module, compiled = compiled_net()
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
    twin = copy.deepcopy(module)
    other = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(3):
        for model, steps in ((compiled, optimizer), (twin, other)):
            steps.zero_grad()
            model(X).square().sum().backward()
            steps.step()
        assert torch.equal(module.linear.weight, twin.linear.weight)
    assert len(compiled.versions) == 1


def test_methods_call_what_is_compiled():
    module, compiled = compiled_net()
    assert torch.equal(compiled.doubled(X), module.doubled(X)) and len(compiled.versions) == 1
    assert compiled.reset() == "the module's own"
    compiled.dispatcher.reset()
    assert compiled.versions == () and compiled.cache_info().calls == 0 and "versions" in dir(compiled)


def test_hooks_of_the_module():
    module, compiled = compiled_net()
    seen = []
    handle = compiled.register_forward_hook(lambda module, args, out: seen.append(1) or out * 2)
    with pytest.warns(UserWarning, match="side effects"):
        result = compiled(X)
    handle.remove()
    assert torch.equal(result, 2 * module(X)) and torch.equal(compiled(X), module(X))


def test_containers():
    model = staxlab.compile(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), backend="eager")
    assert len(model) == 2 and isinstance(model[1], nn.ReLU) and type(model[:1]) is nn.Sequential
    assert [type(part) for part in model] == [nn.Linear, nn.ReLU]
    assert torch.equal(model(X), model.__wrapped__(X))


@pytest.mark.parametrize("remake", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_compile_anew(remake):
    module, compiled = compiled_net()
    compiled(X)
    twin = remake(compiled)
    assert type(twin) is type(compiled) and twin.versions == () and twin.linear.weight is not module.linear.weight
    assert torch.equal(twin(X), module(X))
    parent = remake(Parent(compiled))
    assert isinstance(parent.child, CompiledModule) and torch.equal(parent(X), module(X) + 1)


def test_a_shallow_copy_shares_parameters_and_not_the_attributes():
    module, compiled = compiled_net()
    twin = copy.copy(compiled)
    twin.scale = 7.0
    assert module.scale == 2.0 and twin.linear is module.linear
    assert torch.equal(twin(X), module(X) * 3.5)


def test_compiling_it_again_or_explaining_it_is_about_the_module():
    module, compiled = compiled_net()
    assert staxlab.compile(compiled).fn is module
    assert str(staxlab.trace(compiled, X).graph) == str(staxlab.trace(module, X).graph)


def test_what_no_class_can_be_derived_from_is_called_all_the_same():
    class Slotted(nn.Module):
        __slots__ = ("own",)

        def forward(self, x):
            return x * 2

    compiled = staxlab.compile(Slotted())
    assert isinstance(compiled, Dispatcher) and torch.equal(compiled(X), X * 2)


def test_classes_that_register_their_subclasses_are_not_told():
    known = []

    class Registers(nn.Module):
        def __init_subclass__(cls, **options):
            known.append(cls)

        def forward(self, x):
            return x * 2

    assert torch.equal(staxlab.compile(Registers())(X), X * 2) and known == []


def test_the_call_takes_no_python_frame_of_ours():
    module, compiled = compiled_net()
    assert compiled.__call__ is compiled.dispatcher and type(vars(CompiledModule)["__call__"]).__name__ == (
        "member_descriptor"
    )
    assert torch.equal(compiled(x=X), module(X))


def _full(module, hook):
    return module.register_full_backward_hook(lambda *args: hook())


def _before(module, hook):
    return module.register_full_backward_pre_hook(lambda *args: hook())


def _everywhere(module, hook):
    return torch.nn.modules.module.register_module_full_backward_hook(lambda *args: hook())


@pytest.mark.parametrize("register", [_full, _before, _everywhere])
def test_backward_hooks_added_later_are_refused_and_not_forgotten(register):
    module, compiled = compiled_net()
    compiled(X)
    handle = register(module, lambda: None)
    try:
        with pytest.raises(staxlab.CaptureError, match="backward hooks"):
            compiled(X)
        with torch.no_grad():
            assert torch.equal(compiled(X), module(X))
    finally:
        handle.remove()
    assert torch.equal(compiled(X), module(X))
