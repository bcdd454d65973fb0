"""Tiny models of every architecture of transformers, and examples of their arguments."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from heedful.conformance import Example
from packages.shrinking import shrink

BATCH, TOKENS = 2, 71


class NotAModelError(Exception):
    """A configuration describes a part of a model only."""


def tiny_model(model_type: str) -> nn.Module:
    """Return a tiny random model of a type of transformers, in eval mode."""
    from transformers import CONFIG_MAPPING, AutoModel

    config = CONFIG_MAPPING[model_type]()
    if type(config) not in AutoModel._model_mapping:
        raise NotAModelError(f"{model_type} is a part of another model")
    shrink(config)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    return AutoModel.from_config(config, attn_implementation="eager").eval()


def example_of(model: nn.Module) -> Example:
    """Return random inputs of the kinds that a model of transformers takes."""
    parameters = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    inputs: dict[str, Any] = {}
    wanted = {main, "input_ids", "pixel_values", "decoder_input_ids"} & set(parameters)
    needs_more = {"bbox", "image_grid_thw", "image_sizes"} & set(parameters)
    if main == "input_ids" and needs_more:
        wanted.discard("pixel_values")
    if main not in ("input_ids", "pixel_values"):
        wanted -= {"input_ids", "pixel_values"}
    for name in wanted:
        inputs[name] = _input(model, name)
    if "use_cache" in parameters:
        inputs["use_cache"] = False
    return Example(**inputs)


def _input(model: nn.Module, name: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    config: Any = model.config
    if name in ("input_ids", "decoder_input_ids"):
        return torch.randint(4, 90, (BATCH, TOKENS), generator=generator)
    if name == "input_values":
        return torch.randn(BATCH, 4000, generator=generator)
    if name == "input_features":
        bins = getattr(config, "num_mel_bins", 16)
        return torch.randn(
            BATCH, bins, 2 * getattr(config, "max_source_positions", 64), generator=generator
        )
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", 32)
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = getattr(vision, "num_channels", 3)
    return torch.randn(BATCH, channels, height, width, generator=generator)
