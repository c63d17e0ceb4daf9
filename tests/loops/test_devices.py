"""One region, one device its kernels run on; what lives elsewhere is PyTorch's business."""

import dataclasses

import torch

from staxlab.loops.ir import ExternBuffer
from staxlab.loops.lowering import lower
from staxlab.options import Options

from .lowered import GPU, operators_of


def recorded(function, *inputs, on_gpu=()):
    """The operators of a function, in which the named nodes are said to be on a GPU."""
    operators = operators_of(function, *inputs)
    for node in operators.graph:
        if node.name in on_gpu:
            node.meta["val"] = dataclasses.replace(node.val, device=torch.device("cuda", 0))
    return operators


def both(x, y):
    return x * 2, y + 1


def test_home_is_the_processor_until_a_value_is_on_a_gpu():
    x = torch.ones(8)
    assert recorded(both, x, x.clone()).home == torch.device("cpu")
    names = [node.name for node in recorded(both, x, x.clone()).graph if node.op == "placeholder"]
    assert recorded(both, x, x.clone(), on_gpu=names[1:]).home == torch.device("cuda", 0)


def test_what_is_on_another_device_is_no_kernel_of_the_region():
    x = torch.ones(8)
    plain = recorded(both, x, x.clone())
    calls = [node.name for node in plain.graph if node.op == "call_function"]
    inputs = [node.name for node in plain.graph if node.op == "placeholder"]
    assert not any(isinstance(b, ExternBuffer) for b in lower(plain, GPU, Options()).buffers)

    mixed = recorded(both, x, x.clone(), on_gpu=(inputs[1], calls[1]))
    program = lower(mixed, GPU, Options())
    externs = [b.name for b in program.buffers if isinstance(b, ExternBuffer)]
    assert len(externs) == 1 and len(program.buffers) == 2
    reasons = [d.reason for d in program.decisions if "kernels run on cuda:0" in d.reason]
    assert len(reasons) == 1 and "tensors on cpu" in reasons[0]
