"""A value that is read outside the arguments and then changed: the next call computes with the new one, or the function
has been refused by name. Each case makes a function and a change; a twin runs eagerly beside it."""

from __future__ import annotations

import argparse
import array
import builtins
import collections
import contextvars
import dataclasses
import enum
import functools
import io
import operator
import queue
import random
import sys
import threading
import types
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import staxlab
from staxlab.specialize.bytecode import reads
from tests.specialize.regions import dispatcher

X = torch.tensor([1.0, 2.0])
MODULE = types.ModuleType("stale_values_module")
MODULE.k, MODULE.inner = 2.0, types.SimpleNamespace(z=2.0)
sys.modules["stale_values_module"] = MODULE
UNIT = {"scale": 2.0}


class Holder:
    k = 2.0

    def __init__(self, **values):
        vars(self).update(values)


class OtherHolder(Holder):
    k = 3.0


class Scale:
    k = 2.0

    def __call__(self, x):
        return x * self.k


class WithScale(nn.Module):
    scale = Scale()

    def forward(self, x):
        return self.scale(x)


class Doubles(nn.Module):
    def forward(self, x):
        return x * 2


class Positional:
    __match_args__ = ("first",)

    def __init__(self, first):
        self.first = first


class Text(str):
    k = 2.0


class Numbers(list):
    k = 2.0


class Table(dict):
    k = 2.0


class Real(float):
    pass


class Describes:
    """A descriptor with a state of its own."""

    def __init__(self):
        self.k = 2.0

    def __get__(self, instance, owner):
        return self.k


class Described:
    value = Describes()


class Lazy:
    factor = 2.0

    @functools.cached_property
    def twice(self):
        return 2 * self.factor

    @property
    def thrice(self):
        return 3 * self.factor


@dataclasses.dataclass
class Config:
    k: float = 2.0


CASES = {}


def case(make):
    CASES[make.__name__] = make
    return make


def attribute(owner, name="k", value=3.0):
    return lambda: setattr(owner, name, value)


@case
def argparse_namespace():
    n = argparse.Namespace(k=2.0)
    return lambda x: x * n.k, attribute(n)


@case
def namespace_inside_an_object():
    o = Holder(n=argparse.Namespace(k=2.0))
    return lambda x: x * o.n.k, attribute(o.n)


@case
def namespace_gains_an_attribute():
    n = argparse.Namespace()
    return lambda x: x * getattr(n, "k", 2.0), attribute(n)


@case
def numpy_array():
    z = np.array([2.0])
    return lambda x: x * float(z[0]), lambda: z.__setitem__(0, 3.0)


@case
def long_numpy_array():
    z = np.full(1000, 2.0)
    return lambda x: x * float(z[999]), lambda: z.__setitem__(999, 3.0)


@case
def numpy_array_rebound():
    o = Holder(z=np.array([2.0]))
    return lambda x: x * float(o.z[0]), attribute(o, "z", np.array([3.0]))


@case
def byte_array():
    b = bytearray([2])
    return lambda x: x * b[0], lambda: b.__setitem__(0, 3)


@case
def memory_view():
    b = bytearray([2])
    m = memoryview(b)
    return lambda x: x * m[0], lambda: b.__setitem__(0, 3)


@case
def array_of_the_standard_library():
    b = array.array("d", [2.0])
    return lambda x: x * b[0], lambda: b.__setitem__(0, 3.0)


@case
def text_buffer():
    s = io.StringIO("ab")
    return lambda x: x * len(s.getvalue()), lambda: (s.seek(0, 2), s.write("c"))


@case
def user_dict():
    d = collections.UserDict(k=2.0)
    return lambda x: x * d["k"], lambda: d.__setitem__("k", 3.0)


@case
def user_dict_gains_a_key():
    d = collections.UserDict(k=2.0)
    return lambda x: x * len(d), lambda: d.__setitem__("other", 3.0)


@case
def user_list():
    d = collections.UserList([2.0])
    return lambda x: x * d[0], lambda: d.__setitem__(0, 3.0)


@case
def chain_map():
    d = collections.ChainMap({}, {"k": 2.0})
    return lambda x: x * d["k"], lambda: d.__setitem__("k", 3.0)


@case
def mapping_proxy():
    d = {"k": 2.0}
    p = types.MappingProxyType(d)
    return lambda x: x * p["k"], lambda: d.__setitem__("k", 3.0)


@case
def context_variable():
    v = contextvars.ContextVar("v", default=2.0)
    return lambda x: x * v.get(), lambda: v.set(3.0)


@case
def context_variable_without_default():
    v = contextvars.ContextVar("v")
    return lambda x: x * v.get(2.0), lambda: v.set(3.0)


@case
def thread_local():
    d = threading.local()
    d.k = 2.0
    return lambda x: x * d.k, attribute(d)


@case
def event():
    e = threading.Event()
    return lambda x: x * (3 if e.is_set() else 2), e.set


@case
def queue_length():
    q = queue.Queue()
    q.put(1)
    return lambda x: x * q.qsize(), lambda: q.put(2)


@case
def bound_method_of_a_library_object():
    d = collections.UserDict(k=2.0)
    read = d.get
    return lambda x: x * read("k"), lambda: d.__setitem__("k", 3.0)


@case
def bound_builtin_method():
    d = bytearray([2])
    read = d.__getitem__
    return lambda x: x * read(0), lambda: d.__setitem__(0, 3)


@case
def getattr_with_a_global_name():
    o, name = Holder(k=2.0), "k"
    return lambda x: x * getattr(o, name), attribute(o)


@case
def getattr_with_a_computed_name():
    o, name = Holder(key=2.0), "ke"
    return lambda x: x * getattr(o, name + "y"), attribute(o, "key")


@case
def getattr_on_a_class():
    class Local:
        key = 2.0

    name = "ke"
    return lambda x: x * getattr(Local, name + "y"), attribute(Local, "key")


@case
def match_by_attribute():
    o = Holder(k=2.0)

    def f(x):
        match o:
            case Holder(k=found):
                return x * found

    return f, attribute(o)


@case
def match_by_position():
    o = Positional(2.0)

    def f(x):
        match o:
            case Positional(found):
                return x * found

    return f, attribute(o, "first")


@case
def vars_of_an_object():
    o = Holder(key=2.0)
    return lambda x: x * vars(o)["ke" + "y"], attribute(o, "key")


@case
def dict_of_an_object():
    o, name = Holder(key=2.0), "key"
    return lambda x: x * o.__dict__[name], attribute(o, "key")


@case
def attrgetter_made_outside():
    o, get = Holder(inner=Holder(key=2.0)), operator.attrgetter("inner.key")
    return lambda x: x * get(o), attribute(o.inner, "key")


@case
def attrgetter_made_inside():
    o, name = Holder(key=2.0), "key"
    return lambda x: x * operator.attrgetter(name)(o), attribute(o, "key")


@case
def asdict():
    config = Config()
    return lambda x: x * dataclasses.asdict(config)["k"], attribute(config)


@case
def globals_by_subscript():
    globals()["STALE_GLOBAL"] = 2.0
    return lambda x: x * globals()["STALE_GLOBAL"], lambda: globals().update(STALE_GLOBAL=3.0)


@case
def globals_by_get():
    globals().pop("STALE_LATER", None)
    return lambda x: x * globals().get("STALE_LATER", 2.0), lambda: globals().update(STALE_LATER=3.0)


@case
def globals_by_membership():
    globals().pop("STALE_MEMBER", None)
    return lambda x: x * (3 if "STALE_MEMBER" in globals() else 2), lambda: globals().update(STALE_MEMBER=3.0)


@case
def import_of_a_module():
    MODULE.k = 2.0

    def f(x):
        import stale_values_module

        return x * stale_values_module.k

    return f, attribute(MODULE)


@case
def import_of_a_name():
    MODULE.k = 2.0

    def f(x):
        from stale_values_module import k

        return x * k

    return f, attribute(MODULE)


@case
def import_under_another_name():
    MODULE.inner.z = 2.0

    def f(x):
        import stale_values_module as m

        return x * m.inner.z

    return f, attribute(MODULE.inner, "z")


@case
def import_by_function():
    MODULE.k = 2.0

    def f(x):
        import importlib

        return x * importlib.import_module("stale_values_module").k

    return f, attribute(MODULE)


@case
def global_bound_later():
    globals().pop("STALE_UNBOUND", None)

    def f(x):
        try:
            return x * STALE_UNBOUND
        except NameError:
            return x * 2

    return f, lambda: globals().update(STALE_UNBOUND=3.0)


@case
def cell_bound_later():
    def f(x):
        try:
            return x * later
        except NameError:
            return x * 2

    def bind():
        nonlocal later
        later = 3.0

    later = 1.0
    del later
    return f, bind


@case
def shadowed_builtin():
    globals().pop("abs", None)
    return lambda x: x * abs(-2.0), lambda: globals().update(abs=lambda value: 3.0)


@case
def method_replaced_on_its_class():
    class Local(nn.Module):
        def forward(self, x):
            return x * 2

    def other(self, x):
        return x * 3

    return Local(), attribute(Local, "forward", other)


@case
def static_method_replaced():
    class Local:
        @staticmethod
        def scale(x):
            return x * 2

    return lambda x: Local.scale(x), attribute(Local, "scale", staticmethod(lambda x: x * 3))


@case
def helper_replaced_on_a_base_class():
    class Base:
        def scale(self):
            return 2

    class Derived(Base):
        pass

    o = Derived()
    return lambda x: x * o.scale(), attribute(Base, "scale", lambda self: 3)


@case
def method_overridden_later():
    class Base:
        def scale(self):
            return 2

    class Derived(Base):
        pass

    o = Derived()
    return lambda x: x * o.scale(), attribute(Derived, "scale", lambda self: 3)


@case
def library_module_patched():
    before = nn.Identity.forward
    model = nn.Sequential(nn.Identity())

    def change():
        nn.Identity.forward = lambda self, x: x * 3

    def undo():
        nn.Identity.forward = before

    return model, change, undo


@case
def callable_object_on_a_class():
    WithScale.scale = Scale()
    return WithScale(), lambda: setattr(WithScale.scale, "k", 3.0)


@case
def descriptor_on_a_class():
    o = Described()
    vars(Described)["value"].k = 2.0
    return lambda x: x * o.value, lambda: setattr(vars(Described)["value"], "k", 3.0)


@case
def state_behind_a_property():
    o = Lazy()
    return lambda x: x * o.thrice, attribute(o, "factor")


@case
def attribute_of_a_tensor():
    t = torch.ones(2)
    t.k = 2.0
    return lambda x: x * t.k, attribute(t)


@case
def attribute_of_a_tensor_set_later():
    t = torch.ones(2)
    return lambda x: x * getattr(t, "k", 2.0), attribute(t)


@case
def attribute_of_a_parameter():
    module = nn.Linear(2, 2)
    module.weight.k = 2.0
    return lambda x: x * module.weight.k, attribute(module.weight)


@case
def attribute_of_text():
    o = Text("ab")
    o.k = 2.0
    return lambda x: x * o.k, attribute(o)


@case
def attribute_of_a_list():
    o = Numbers([1.0])
    return lambda x: x * o[0] * o.k, attribute(o)


@case
def attribute_of_a_dict():
    o = Table(a=1.0)
    return lambda x: x * o["a"] * o.k, attribute(o)


@case
def equal_number_of_another_kind():
    o = Holder(n=Real(1.0))
    o.n.k = 2.0

    def change():
        o.n = Real(1.0)
        o.n.k = 3.0

    return lambda x: x * o.n.k, change


@case
def class_assigned():
    o = Holder()
    return lambda x: x * o.k, lambda: setattr(o, "__class__", OtherHolder)


@case
def class_of_a_module_assigned():
    class Triples(Doubles):
        def forward(self, x):
            return x * 3

    module = Doubles()
    return lambda x: module(x), lambda: setattr(module, "__class__", Triples)


@case
def attribute_of_a_function():
    def g(x):
        return x * getattr(g, "k", 2.0)

    return g, attribute(g)


@case
def module_dict_in_another_order():
    d = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Threshold(0.0, -1.0)})

    def f(x):
        for name in d:
            x = d[name](-x)
        return x

    return f, lambda: d.update({"a": d.pop("a")})


@case
def key_of_another_type():
    d = {1: 0}

    def f(x):
        for key in d:
            x = x.long() * key
        return x

    def change():
        d.clear()
        d[1.0] = 0

    return f, change


@case
def hook_replaced():
    module = nn.Linear(2, 2)
    handle = module.register_forward_hook(lambda module, args, out: out * 2)

    def change():
        handle.remove()
        module.register_forward_hook(lambda module, args, out: out * 3)

    return module, change


@case
def global_hook_added():
    module = nn.Linear(2, 2)
    handles = []

    def change():
        hook = torch.nn.modules.module.register_module_forward_hook(lambda module, args, out: out * 3)
        handles.append(hook)

    return module, change, lambda: handles.pop().remove()


@case
def weak_reference():
    o = Holder(k=2.0)
    reference = weakref.ref(o)
    return lambda x: x * reference().k, attribute(o)


@case
def object_as_a_key():
    o = Holder(k=2.0)
    d = {o: 1}
    return lambda x: x * next(iter(d)).k, attribute(o)


@case
def object_in_a_set():
    o = Holder(k=2.0)
    s = {o}
    return lambda x: x * sum(member.k for member in s), attribute(o)


@case
def property_of_a_metaclass():
    class Meta(type):
        @property
        def double(cls):
            return 2 * cls.k

    class Local(metaclass=Meta):
        k = 1.0

    return lambda x: x * Local.double, attribute(Local, "k", 1.5)


@case
def cached_property():
    o = Lazy()

    def change():
        o.factor = 3.0
        del o.twice

    return lambda x: x * o.twice, change


@case
def enum_member_with_state():
    class Kind(enum.Enum):
        ONE = 1

        def factor(self):
            return UNIT["scale"]

    UNIT["scale"] = 2.0
    kind = Kind.ONE
    return lambda x: x * kind.factor(), lambda: UNIT.__setitem__("scale", 3.0)


@pytest.mark.parametrize("name", CASES)
def test_a_value_that_changes_is_read_anew(name):
    fn, change, *undo = CASES[name]()
    compiled = dispatcher(fn)
    try:
        with torch.no_grad():
            for _ in range(3):
                assert torch.equal(compiled(X), before := fn(X))
            change()
            for _ in range(3):
                now = fn(X)
                assert now.dtype != before.dtype or not torch.equal(now, before), "the change changes nothing"
                assert compiled(X).dtype == now.dtype and torch.equal(compiled(X), now)
    finally:
        for restore in undo:
            restore()
        globals().pop("abs", None)


@pytest.mark.parametrize("name", ["argparse_namespace", "shadowed_builtin", "method_replaced_on_its_class"])
def test_and_it_costs_no_level_of_dispatch(name):
    fn, _ = CASES[name]()
    compiled = dispatcher(fn)
    for _ in range(4):
        compiled(X)
    assert compiled.last_level == 1


# -- arguments ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    rate = 2.0

    def scaled(self):
        return self.x * self.rate * UNIT["scale"]


class Pair(collections.namedtuple("Pair", "x y")):
    rate = 2.0

    def scaled(self):
        return self.x * self.rate * UNIT["scale"]


class Named(dict):
    rate = 2.0

    def scaled(self):
        return self["x"] * self.rate * UNIT["scale"]


class Label(str):
    rate = 2.0

    def scaled(self):
        return X * self.rate * UNIT["scale"]


ARGUMENTS = {
    "dataclass": lambda: Batch(X),
    "named tuple": lambda: Pair(X, 1.0),
    "dict": lambda: Named(x=X),
    "text": lambda: Label("a"),
    "inside a list": lambda: [Batch(X)],
}


def _scaled(argument):
    return (argument[0] if type(argument) is list else argument).scaled()


@pytest.mark.parametrize("name", ARGUMENTS)
def test_what_the_methods_of_an_argument_read(name):
    make = ARGUMENTS[name]
    kind = type(make()[0] if type(make()) is list else make())
    compiled = dispatcher(_scaled)
    UNIT["scale"] = 2.0
    assert torch.equal(compiled(make()), X * 4)
    assert torch.equal(compiled(make()), X * 4) and len(compiled.versions) == 1
    UNIT["scale"] = 3.0
    assert torch.equal(compiled(make()), X * 6)
    try:
        kind.rate = 5.0
        assert torch.equal(compiled(make()), X * 15)
    finally:
        kind.rate, UNIT["scale"] = 2.0, 2.0


@pytest.mark.parametrize("make", [lambda: Batch(X), lambda: Named(x=X), lambda: Label("a")])
def test_an_attribute_of_an_argument_that_is_no_part_of_it(make):
    argument = make()
    compiled = dispatcher(lambda b: X * b.extra)
    argument.extra = 2.0
    assert torch.equal(compiled(argument), X * 2)
    argument.extra = 3.0
    assert torch.equal(compiled(argument), X * 3)


def test_an_attribute_of_an_argument_tensor_is_refused():
    x = torch.ones(2)
    x.k = 2.0
    with pytest.raises(staxlab.CaptureError, match="attribute 'k' of the tensor a"):
        staxlab.compile(lambda a: a * a.k)(x)
    assert torch.equal(staxlab.compile(lambda a: a * 2)(x), x * 2)


@pytest.mark.parametrize("fn", [lambda a: a * (3 if hasattr(a, "tag") else 2), lambda a: a * getattr(a, "tag", 2)])
def test_an_attribute_that_an_argument_tensor_gets_later(fn):
    compiled, x = dispatcher(fn), torch.ones(2)
    for _ in range(3):
        assert torch.equal(compiled(x), x * 2)
    x.tag = 3
    with pytest.raises(staxlab.CaptureError, match="attribute 'tag' of the tensor a"):
        compiled(x)
    del x.tag
    assert torch.equal(compiled(x), x * 2) and len(compiled.versions) == 1


# -- what is refused ---------------------------------------------------------------------------------------------------


HIDDEN = [functools.lru_cache(lambda: random.Random(0))]
HIDDEN[0]()


def _refused_cases():
    big, objects, storage = np.zeros(1 << 20), np.array([None]), torch.ones(2).untyped_storage()
    name = "STALE" + "_GLOBAL"
    generator, made = random.Random(0), np.random.default_rng(0)
    return {
        "reads big, a numpy.ndarray of": lambda x: x * float(big[0]),
        "content cannot be compared": lambda x: x * (objects[0] or 2),
        "state cannot be compared": lambda x: x * storage[0],
        r"globals\(\) with a name that is computed": lambda x: x * globals()[name],
        r"eval\(\)": lambda x: x * eval("2.0"),
        "draws from generator;": lambda x: x * generator.random(),
        "draws from made;": lambda x: x * float(made.random()),
        "fresh randomness": lambda x: x * float(np.random.default_rng().random()),
        "fresh randomness .*Random": lambda x: x * random.Random().random(),
        "moves a random number generator": lambda x: x * HIDDEN[0]().random(),
    }


@pytest.mark.parametrize("message", _refused_cases())
def test_what_cannot_be_described_is_refused(message):
    with pytest.raises(staxlab.CaptureError, match=message) as caught:
        staxlab.compile(_refused_cases()[message])(X)
    assert caught.value.remedy


@pytest.mark.parametrize("number", [np.float32(2.5), np.float64(2.5), np.int64(2), np.bool_(True)])
def test_a_number_of_numpy_is_a_number(number):
    compiled = staxlab.compile(lambda x, s: x * s, backend="eager")
    assert torch.equal(compiled(X, number), X * number)
    assert torch.equal(staxlab.compile(lambda x: x * number, backend="eager")(X), X * number)


def test_a_computed_name_does_not_refuse_what_nobody_names():
    o = Holder(key=2.0, numbers=iter([1]), table=np.zeros(1 << 20), storage=torch.ones(1).untyped_storage())
    MODULE.numbers, name = iter([1]), "ke"
    try:
        fn = lambda x: x * getattr(o, name + "y") * MODULE.k  # noqa: E731
        assert torch.equal(dispatcher(fn)(X), fn(X))
    finally:
        del MODULE.numbers


# -- the bytecode ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "attributes", "everything"),
    [
        (lambda o: getattr(o, "k"), {"k"}, False),  # noqa: B009
        (lambda o: getattr(o, "k", None), {"k"}, False),
        (lambda o, s: getattr(o.p, "k", o.f(1, 2)), {"p", "k", "f"}, False),
        (lambda o, s: getattr(getattr(o, "k"), "j").m(1), {"k", "j", "m"}, False),  # noqa: B009
        (lambda o, s: getattr(o[s], "k", [1, 2, *s]), {"k"}, False),
        (lambda o, s: getattr(o, s), set(), True),
        (lambda o, s: getattr(o, "k" + s), set(), True),
        (lambda o, s: map(getattr, o, s), set(), True),
        (lambda o, s: vars(o), set(), True),
        (lambda o, s: [a.k for a in o], {"k"}, False),
    ],
)
def test_names_in_the_bytecode(fn, attributes, everything):
    found = reads(fn.__code__)
    assert found.attributes == attributes and found.all_attributes is everything


def test_builtins_are_known_by_name():
    assert "abs" in vars(builtins) and "abs" in reads((lambda x: abs(x)).__code__).globals
