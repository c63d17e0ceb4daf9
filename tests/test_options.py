"""Options, device specs and decisions."""

from __future__ import annotations

import pytest

from staxlab.errors import OptionError, StaxError
from staxlab.options import GPU_SPECS, VECTOR_BYTES, Decision, Options, device_spec, host_device_spec


def test_mode_presets_come_first_and_options_override_them():
    assert Options.resolve(mode="max-autotune").autotune
    assert not Options.resolve(mode="max-autotune", options={"autotune": False}).autotune


def test_options_are_hashable_and_distinct():
    assert len({Options.resolve(), Options.resolve(strict_native=True), Options.resolve()}) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": {"acumulators": 2}}, "did you mean 'accumulators'"),
        ({"mode": "max-autotun"}, "did you mean 'max-autotune"),
        ({"options": {"backend": "eager"}}, "unknown option 'backend'"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(arguments, message):
    with pytest.raises(OptionError, match=message):
        Options.resolve(**arguments)


BAD = {
    "accumulators": ("four", -3, 2.0, True, None, 65),
    "autotune": (1, "yes"),
    "double_backward": (1, "yes"),
    "validate": (1, "yes"),
    "split_reductions": (1, "no", None),
    "fuse": (1, "no", None),
    "cuda_graphs": (1, "yes", None),
    "graph_inputs": ("move", True, None),
    "graph_outputs": ("check", 1, None),
    "matmul": ("cublas", None),
    "instruction_set": ("avx1024", 512, ["avx2"]),
    "attention": ("on", True, None),
    "max_versions": (-1, "8", 8.0),
    "max_compilations": (-1, None),
    "max_rounds": (0, False),
    "memory_budget": (-1, 1, 1.5, -0.1, float("nan"), True, "half"),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_value_of_the_wrong_kind_is_refused_and_what_is_allowed_is_said(name, value):
    for make in (lambda: Options.resolve(options={name: value}), lambda: Options(**{name: value})):
        allowed = "a whole number|True or False|None|one of|'check' or|'reuse' or"
        with pytest.raises(OptionError, match=f"{name} must be ({allowed})"):
            make()


def test_every_option_is_checked():
    import dataclasses

    checked = {*BAD, "backend", "dynamic", "strict_native"}
    assert {field.name for field in dataclasses.fields(Options)} - {"extra", "mode", "outside"} == checked
    assert Options(accumulators=4, max_versions=0, instruction_set="scalar").accumulators == 4


def test_a_budget_is_bytes_or_a_fraction():
    for value in (None, 0, 0.0, 0.25, 1.0, 2, 10**9):
        assert Options.resolve(options={"memory_budget": value}).memory_budget == value


def test_another_architecture_is_no_typing_error():
    with pytest.raises(OptionError) as error:
        device_spec("sm_120")
    assert "did you mean" not in str(error.value) and "known: cpu, cuda, sm_80, sm_90" in str(error.value)
    for given, meant in (("gpu", "cuda"), ("GPU", "cuda"), ("h100", "sm_90"), ("cdua", "cuda"), ("sm-90", "sm_90")):
        with pytest.raises(OptionError, match=f"did you mean '{meant}'"):
            device_spec(given)
    with pytest.raises(OptionError, match="a target is a name"):
        device_spec(90)


def test_targets():
    assert device_spec("sm_90") is GPU_SPECS["sm_90"]
    assert device_spec("sm_90").is_gpu
    assert device_spec("sm_90").compute_capability == 90
    spec = device_spec("cpu", Options.resolve(options={"instruction_set": "scalar"}))
    assert (spec.instruction_set, spec.vector_bytes) == ("scalar", VECTOR_BYTES["scalar"])
    with pytest.raises(OptionError, match="did you mean 'sm_90'"):
        device_spec("sm90")
    with pytest.raises(OptionError, match="unknown instruction set"):
        host_device_spec("avx1024")


def test_cuda_without_a_gpu_names_the_alternative():
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(OptionError, match="sm_90"):
        device_spec("cuda")


def test_errors_say_what_where_and_what_to_do():
    from staxlab.provenance import SourceLocation

    error = StaxError("no rule", where=SourceLocation("model.py", 3, "y = f(x)"), remedy="add one")
    assert str(error) == "no rule\n  at model.py:3: y = f(x)\n  remedy: add one"


def test_a_decision_reads_as_a_sentence():
    decision = Decision("realize", "buf0", "inline", "one user", ("inline", "realize"), (("users", 1),))
    assert str(decision) == "realize(buf0) = inline: one user [users=1]"
