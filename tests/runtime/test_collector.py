"""Garbage collection during a compilation: what was there before is left alone, what is made is collected."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import staxlab
from staxlab.errors import SideEffectWarning
from staxlab.runtime.collector import only_new_objects


class Ring:
    """An object that refers to itself, so that only the collector frees it."""

    def __init__(self):
        self.itself = self


def dropped() -> weakref.ref:
    return weakref.ref(Ring())


@pytest.fixture(autouse=True)
def nothing_set_aside():
    assert gc.get_freeze_count() == 0
    yield
    assert gc.get_freeze_count() == 0


def test_only_what_is_new_is_collected():
    gc.disable()
    try:
        before = dropped()
        with only_new_objects():
            new = dropped()
            gc.collect()
            assert new() is None and before() is not None
        gc.collect()
        assert before() is None
    finally:
        gc.enable()


def test_objects_come_back_after_an_error():
    with pytest.raises(ZeroDivisionError), only_new_objects():
        assert gc.get_freeze_count() > 0
        raise ZeroDivisionError


def test_what_somebody_else_has_set_aside_stays_there():
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with only_new_objects():
            kept = [Ring() for _ in range(10)]
        assert gc.get_freeze_count() >= count - len(kept) > 0
    finally:
        gc.unfreeze()


def test_a_compilation_sets_objects_aside_and_gives_them_back():
    seen = []

    def f(x):
        seen.append(gc.get_freeze_count() > 0)
        return x + 1

    with pytest.warns(SideEffectWarning):
        staxlab.compile(f)(torch.ones(3))
    assert seen == [True]
