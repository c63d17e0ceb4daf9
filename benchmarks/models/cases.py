"""Which steps of which models are run, in which sizes: data for :mod:`benchmarks.whole_models` and the tests.

A step is one call of a module: a forward pass, or a loss whose gradients are taken after it. ``smoke`` sizes compile in
seconds and say nothing about speed, ``cpu`` sizes suit a few cores, ``cuda`` sizes a large GPU in half precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.models.decoder import Decoder, DecoderConfig, generate
from benchmarks.models.recurrence import Recurrence, RecurrenceConfig
from benchmarks.models.resnet import ResNet18, ResNetConfig
from benchmarks.models.vision_transformer import VisionConfig, VisionTransformer

INFERENCE, TRAINING, GENERATION = "inference", "training", "generation"


@dataclass(frozen=True)
class Size:
    """The configuration of a model, the batch, and for decoders the tokens of the prompt and those to be generated."""

    config: Any
    batch: int
    prompt: int = 0
    count: int = 0


@dataclass(frozen=True)
class Step:
    """``make(config)`` gives the module and ``inputs(size, module)`` what it is called with. ``loss`` of its result and
    the inputs is what is differentiated in training."""

    name: str
    title: str
    kind: str
    make: Callable[[Any], nn.Module]
    inputs: Callable[[Size, nn.Module], tuple[Any, ...]]
    sizes: Mapping[str, Size]
    loss: Callable[..., torch.Tensor] | None = None

    def module(self, size: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> nn.Module:
        """The module with the same weights every time, as a region: with its loss inside where it is trained."""
        torch.manual_seed(0)
        model = self.make(self.sizes[size].config).to(device=device, dtype=dtype)
        return WithLoss(model, self.loss).train() if self.kind == TRAINING else model.eval()

    def arguments(self, size: str, module: nn.Module) -> tuple[Any, ...]:
        """The same inputs every time, of the module's device and dtype."""
        torch.manual_seed(1)
        return self.inputs(self.sizes[size], module)

    def call(self, size: str, compiled: Callable[..., Any], module: nn.Module, arguments: tuple[Any, ...]) -> Any:
        """One step: logits, tokens, or a loss whose gradients then stand in the parameters of ``module``."""
        if self.kind == GENERATION:
            return generate(compiled, module, arguments[0], self.sizes[size].count)
        if self.kind == INFERENCE:
            with torch.no_grad():
                return compiled(*arguments)
        for parameter in module.parameters():
            parameter.grad = None
        loss = compiled(*arguments)
        loss.backward()
        return loss.detach()


class WithLoss(nn.Module):
    """A model and its loss as one module, so that one region is the whole step."""

    def __init__(self, model: nn.Module, loss: Callable[..., torch.Tensor]):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *inputs: Any) -> torch.Tensor:
        return self.loss(self.model, *inputs)


# --- Inputs and losses ------------------------------------------------------------------------------------------------


def _like(module: nn.Module) -> torch.Tensor:
    return next(module.parameters())


def _tokens(size: Size, module: nn.Module, length: int) -> torch.Tensor:
    return torch.randint(size.config.vocabulary, (size.batch, length)).to(_like(module).device)


def _prefill(size: Size, module: nn.Module) -> tuple[Any, ...]:
    tokens = _tokens(size, module, size.prompt)
    return tokens, torch.arange(size.prompt, device=tokens.device), module.new_cache(size.batch)


def _decode(size: Size, module: nn.Module) -> tuple[Any, ...]:
    """The step after the prompt, with a cache of random keys and values."""
    tokens = _tokens(size, module, 1)
    cache = module.new_cache(size.batch)
    for part in (part for pair in cache for part in pair):
        part.copy_(torch.randn(part.shape))
    return tokens, torch.tensor([size.prompt], device=tokens.device), cache


def _prompt(size: Size, module: nn.Module) -> tuple[Any, ...]:
    return (_tokens(size, module, size.prompt),)


def _sequence(size: Size, module: nn.Module) -> tuple[Any, ...]:
    tokens = _tokens(size, module, size.prompt + 1)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), torch.arange(size.prompt, device=tokens.device)


def _next_token(model: nn.Module, tokens: torch.Tensor, following: torch.Tensor, positions: torch.Tensor):
    return F.cross_entropy(model(tokens, positions).float().flatten(0, 1), following.flatten())


def _images(size: Size, module: nn.Module) -> tuple[Any, ...]:
    like = _like(module)
    return (torch.randn(size.batch, 3, size.config.image, size.config.image).to(like),)


def _series(size: Size, module: nn.Module) -> tuple[Any, ...]:
    like = _like(module)
    return (torch.randn(size.batch, size.config.steps, size.config.inputs).to(like),)


def _labelled(inputs: Callable[[Size, nn.Module], tuple[Any, ...]]) -> Callable[[Size, nn.Module], tuple[Any, ...]]:
    def with_labels(size: Size, module: nn.Module) -> tuple[Any, ...]:
        given = inputs(size, module)
        return (*given, torch.randint(size.config.classes, (size.batch,)).to(given[0].device))

    return with_labels


def _classification(model: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x).float(), labels)


# --- Sizes ------------------------------------------------------------------------------------------------------------

DECODER = {
    "smoke": Size(DecoderConfig(), batch=2, prompt=12, count=6),
    "cpu": Size(DecoderConfig(4096, 256, 4, 8, 2, 704, 256), batch=1, prompt=128, count=32),
    "cuda": Size(DecoderConfig(32_000, 2048, 16, 32, 8, 5632, 2048), batch=8, prompt=1024, count=64),
}
VISION = {
    "smoke": Size(VisionConfig(), batch=2),
    "cpu": Size(VisionConfig(64, 8, 192, 4, 3, 100), batch=4),
    "cuda": Size(VisionConfig(224, 16, 768, 12, 12, 1000), batch=64),
}
RESNET = {
    "smoke": Size(ResNetConfig(), batch=4),
    "cpu": Size(ResNetConfig(64, 64, 4, 100), batch=4),
    "cuda": Size(ResNetConfig(224, 64, 4, 1000), batch=128),
}
RECURRENCE = {
    "smoke": Size(RecurrenceConfig(), batch=3),
    "cpu": Size(RecurrenceConfig(64, 128, 2, 16, 10), batch=16),
    "cuda": Size(RecurrenceConfig(256, 512, 2, 32, 10), batch=256),
}


def _trained(sizes: Mapping[str, Size], **batch: int) -> dict[str, Size]:
    """The same sizes with another batch where one is given."""
    return {name: replace(size, batch=batch.get(name, size.batch)) for name, size in sizes.items()}


STEPS: tuple[Step, ...] = (
    Step("decoder_prefill", "Decoder, prefill", INFERENCE, Decoder, _prefill, DECODER),
    Step("decoder_decode", "Decoder, one token with a cache", INFERENCE, Decoder, _decode, DECODER),
    Step("decoder_generate", "Decoder, greedy generation", GENERATION, Decoder, _prompt, DECODER),
    Step("decoder_training", "Decoder, a training step", TRAINING, Decoder, _sequence, _trained(DECODER, cuda=4),
         _next_token),
    Step("vision", "Vision transformer", INFERENCE, VisionTransformer, _images, VISION),
    Step("vision_training", "Vision transformer, a training step", TRAINING, VisionTransformer, _labelled(_images),
         VISION, _classification),
    Step("resnet", "ResNet-18", INFERENCE, ResNet18, _images, RESNET),
    Step("resnet_training", "ResNet-18, a training step", TRAINING, ResNet18, _labelled(_images), RESNET,
         _classification),
    Step("recurrence", "Gated recurrence, a Python loop", INFERENCE, Recurrence, _series, RECURRENCE),
    Step("recurrence_training", "Gated recurrence, a training step", TRAINING, Recurrence, _labelled(_series),
         RECURRENCE, _classification),
)  # fmt: skip


def select(names: str) -> list[Step]:
    """Steps by names separated by commas, or "all". KeyError names the unknown one."""
    by_name = {step.name: step for step in STEPS}
    if names == "all":
        return list(STEPS)
    chosen = []
    for name in (part.strip() for part in names.split(",")):
        if name not in by_name:
            raise KeyError(f"no step named {name!r}; steps: {', '.join(by_name)}")
        chosen.append(by_name[name])
    return chosen
