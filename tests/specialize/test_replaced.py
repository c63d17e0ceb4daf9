"""What ordinary code does to objects between calls, and values that are known by what they are."""

from __future__ import annotations

import functools
import types

import numpy
import pytest
import torch

import staxlab
from staxlab.specialize.signature import signature


class Block(torch.nn.Module):
    def forward(self, x):
        return x + 1


@pytest.mark.parametrize("wrap", [lambda f: f, functools.partial, lambda f: types.MethodType(lambda self, x: f(x), 0)])
def test_forward_may_be_replaced_on_an_instance_again_and_again(wrap):
    for already in (False, True):
        block = torch.nn.Sequential(Block())
        if already:
            block[0].forward = wrap(lambda x: x * 7)
        compiled = staxlab.compile(block)
        x = torch.ones(3)
        for factor in (2, 5, 9):
            for _ in range(3):
                assert torch.equal(compiled(x), block(x))
            block[0].forward = wrap(lambda x, factor=factor: x * factor)
            for _ in range(3):
                assert torch.equal(compiled(x), x * factor)


class Config(dict):
    __getattr__ = dict.__getitem__


def test_an_object_that_answers_every_attribute_can_be_named():
    config = Config(k=2.0)
    compiled = staxlab.compile(lambda x: x * config.k)
    x = torch.ones(2)
    for value in (2.0, 2.0, 3.0, 4.0, 4.0):
        config["k"] = value
        assert torch.equal(compiled(x), x * value)


def test_numpy_scalars_are_known_by_value():
    compiled = staxlab.compile(lambda x, k: x * k)
    x = torch.ones(2)
    for k in (2, 2, 3, 2, 3):
        assert torch.equal(compiled(x, numpy.float32(k)), x * k)
    assert len(compiled.versions) == 2
    assert signature(numpy.float32(0.0)) != signature(numpy.float32(-0.0)) != signature(numpy.float64(-0.0))
    assert signature(numpy.float64("nan")) == signature(numpy.float64("nan"))
    assert signature(numpy.bool_(True)) != signature(1)


class Counter:
    count = 0
    seen: list = []

    @classmethod
    def note(cls):
        cls.count = 7

    def own(self):
        type(self).count = 8


@pytest.mark.parametrize("way", ["name", "new", "setattr", "classmethod", "type", "module"])
def test_a_class_attribute_that_is_assigned_is_refused_and_put_back(way):
    counter = Counter()

    def f(x):
        if way == "name":
            Counter.count = 7
        elif way == "new":
            Counter.other = 7
        elif way == "setattr":
            setattr(Counter, "count", 9)  # noqa: B010
        elif way == "classmethod":
            Counter.note()
        elif way == "type":
            counter.own()
        else:
            Layer.calls = Layer.calls + 1
        return x + 1

    with pytest.raises(staxlab.CaptureError, match="count|other|calls"):
        staxlab.compile(f)(torch.ones(2))
    assert Counter.count == 0 and not hasattr(Counter, "other") and Layer.calls == 0


class Layer(torch.nn.Module):
    calls = 0
