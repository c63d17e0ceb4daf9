"""Library or template by measurement (Section 9.8): with made-up clocks, on regions that Triton's interpreter runs."""

from __future__ import annotations

import pytest
import torch

import staxlab
from staxlab.errors import BuildError
from staxlab.options import GPU_SPECS, Options
from staxlab.runtime.artifact import load
from staxlab.runtime.autotune_products import CHOICES, choices_for, fastest

pytest.importorskip("triton")

from staxlab.codegen.triton.interpreter import interpret

SM90 = GPU_SPECS["sm_90"]
SEARCHING = Options.resolve(options={"autotune": True})
A, B, C = (torch.randn(s, generator=torch.Generator().manual_seed(0)) for s in ((40, 24), (24, 56), (56,)))


def relu_of_sum(a, b, c):
    return torch.relu(a @ b + c)


def explained(function, *inputs, **options):
    return staxlab.explain(function, *inputs, target="sm_90", options=options)


def runs() -> dict:
    """The region in every way, as Triton's interpreter and PyTorch run it here."""
    found = {}
    for choice in CHOICES:
        compilation = explained(relu_of_sum, A, B, C, matmul=choice)
        launchers = {
            kernel.name: lambda *tensors, kernel=kernel: interpret(kernel, tensors)
            for kernel in compilation.kernels
            if kernel.language == "triton"
        }
        found[choice] = load(compilation.wrapper, launchers).call
    return found


def clock(seconds: dict[str, float], named: dict):
    """Readings that say which run was asked for: each run is called once, and counts itself."""
    called: list[str] = []
    noted = {
        name: lambda given, name=name, run=run: (called.append(name), run(given))[1] for name, run in named.items()
    }

    def timer(launch, tensors):
        launch(*tensors)
        return seconds[called[-1]]

    return noted, timer, called


@pytest.mark.parametrize("winner", CHOICES)
def test_the_fastest_is_kept_and_the_decision_has_the_seconds(winner):
    seconds = dict.fromkeys(CHOICES, 2e-5) | {winner: 1e-5}
    noted, timer, called = clock(seconds, runs())
    chosen, decision, search = fastest(noted, (A, B, C), timer, subject="f", readings=3)
    assert chosen == winner == decision.choice and set(called) == set(CHOICES)
    assert dict(decision.inputs) == {f"seconds, {name}": value for name, value in seconds.items()}
    assert search.complete and decision.candidates == CHOICES


def test_in_doubt_the_library_stays():
    noted, timer, _ = clock(dict.fromkeys(CHOICES, 1e-5), runs())
    assert fastest(noted, (A, B, C), timer, subject="f", readings=3)[0] == "library"


def test_what_cannot_be_built_is_out():
    named = runs()

    def broken(given):
        raise BuildError("no machine code")

    named["template"] = broken
    noted, timer, _ = clock({"library": 3e-5, "template": 1e-9, "template-tma": 2e-5}, named)
    assert fastest(noted, (A, B, C), timer, subject="f", readings=3)[0] == "template-tma"
    noted["library"] = broken
    with pytest.raises(BuildError):
        fastest(noted, (A, B, C), timer, subject="f", readings=3)


def given(function, *inputs, options=SEARCHING, device=SM90, **more):
    compilation = explained(function, *inputs, **more)
    return choices_for(compilation.operators, compilation.loops, options, device)


def test_when_there_is_something_to_choose():
    assert given(relu_of_sum, A, B, C) == CHOICES
    assert given(relu_of_sum, A, B, C, device=GPU_SPECS["sm_80"]) == CHOICES[:2]
    assert given(lambda a: a.exp(), A) == ()
    assert given(relu_of_sum, A, B, C, options=Options()) == ()
    assert given(relu_of_sum, A, B, C, options=Options.resolve(options={"autotune": True, "matmul": "template"})) == ()
    assert given(torch.mm, A.double(), B.double()) == ()


def test_what_must_not_run_twice_is_not_measured():
    def writes(a, b, c):
        a.add_(1)
        return torch.relu(a @ b + c)

    assert given(writes, A.clone(), B, C) == ()
    assert given(lambda a, b, c: torch.nn.functional.dropout(a @ b), A, B, C) == ()
