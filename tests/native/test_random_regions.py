"""Random programs through C and through the generated Python wrapper: nothing a caller can tell is different."""

from __future__ import annotations

import random
import warnings

import pytest
import torch

import staxlab
from staxlab import native
from staxlab.runtime import program as runtime_program
from tests.transform import programs
from tests.transform.bit_identity import numbers
from tests.transform.observation import difference, observe

pytestmark = pytest.mark.skipif(not native.available, reason=f"no extension: {native.reason}")

CALLS = 3


def compiled_both_ways(program, monkeypatch):
    """The program compiled to enter C, and the same compiled to run its Python wrapper, with what ran of the first."""
    in_c = staxlab.compile(program.function)
    with monkeypatch.context() as patched:
        patched.setattr(runtime_program, "program_of", lambda *_: (None, "a test says so"))
        in_python = staxlab.compile(program.function)
        observe(in_python, program.arguments(0), seed=0)  # compiles
    return in_c, in_python


def check(program, monkeypatch):
    """What differs, or None; and whether a program was entered."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            observe(program.function, program.arguments(0), seed=0)
        except Exception:
            return None, False
        in_c, in_python = compiled_both_ways(program, monkeypatch)
        before = native.counters()["entries"]
        for call in range(CALLS):
            expected = observe(in_python, program.arguments(call), seed=call)
            found = difference(observe(in_c, program.arguments(call), seed=call), expected)
            if found is not None:
                return f"call {call}: {found}", True
        return None, native.counters()["entries"] > before


def campaign(count, seed, monkeypatch):
    generator = random.Random(seed)
    entered, failures = 0, []
    for number in range(count):
        program = programs.write(numbers(generator), seed=number % 2)
        if program is None:
            continue
        found, ran = check(program, monkeypatch)
        entered += ran
        if found is not None:
            failures.append(f"{found}\n{program.source}")
    assert not failures, "\n\n".join(failures)
    return entered


def test_a_few_programs(monkeypatch):
    assert campaign(8, 1, monkeypatch) > 4


@pytest.mark.slow
def test_many_programs(monkeypatch):
    assert campaign(150, 2, monkeypatch) > 75
