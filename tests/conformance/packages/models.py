"""Small models of packages that have no registry of them, and calls of them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable

import torch
from torch import nn

from heedful.conformance import Example
from packages.capture import Case, attentions_in

IMAGE = {
    "image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 24, "depth": 1, "heads": 3, "mlp_dim": 48,
    "dim_head": 8, "patch_height": 8, "patch_width": 8, "channels": 3, "num_register_tokens": 4,
}  # fmt: skip
"""The arguments of small models of images, by the names that vit-pytorch gives them."""
SHARED = ("num_classes", "channels")
"""Those that mean the same in models without an image size."""


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _ids(tokens: int = 71) -> torch.Tensor:
    return torch.randint(1, 90, (2, tokens), generator=torch.Generator().manual_seed(0))


def whisper() -> list[Case]:
    """Return the attentions of OpenAI's Whisper."""
    from whisper.model import ModelDimensions, Whisper

    model = Whisper(ModelDimensions(16, 71, 32, 4, 1, 99, 71, 32, 4, 1)).eval()
    return attentions_in(model, Example(_normal(2, 16, 142), _ids()), "whisper")


def x_transformers() -> list[Case]:
    """Return the attentions of x-transformers: a decoder with rotary positions, and an encoder."""
    from x_transformers import Decoder, Encoder, TransformerWrapper

    models: list[nn.Module] = [
        TransformerWrapper(
            num_tokens=99,
            max_seq_len=71,
            attn_layers=Decoder(dim=32, depth=1, heads=4, attn_dim_head=8, rotary_pos_emb=True),
        ),
        TransformerWrapper(
            num_tokens=99,
            max_seq_len=71,
            attn_layers=Encoder(dim=32, depth=1, heads=4, attn_dim_head=8, attn_kv_heads=2),
        ),
    ]
    return [
        case
        for model in models
        for case in attentions_in(model.eval(), Example(_ids()), "x_transformers")
    ]


def litgpt() -> list[Case]:
    """Return the attentions of LitGPT, and of its variants with adapters."""
    cases: list[Case] = []
    for name in ("model", "adapter", "adapter_v2", "lora"):
        variant = importlib.import_module(f"litgpt.{name}")
        config = variant.Config(
            block_size=71, vocab_size=99, padded_vocab_size=99, n_layer=3, n_head=4, n_embd=32, n_query_groups=2
        )  # fmt: skip
        cases += attentions_in(variant.GPT(config).eval(), Example(_ids()), f"litgpt.{name}")
    return cases


def torchvision() -> list[Case]:
    """Return the attentions of torchvision's smallest models."""
    from torchvision import models

    cases: dict[str, Case] = {}
    image = Example(_normal(2, 3, 224, 224))
    for make in (models.swin_t, models.swin_v2_t, models.maxvit_t):
        torch.manual_seed(0)
        for case in attentions_in(make().eval(), image, make.__name__):
            cases.setdefault(case.name, case)
    return list(cases.values())


def vit_pytorch() -> list[Case]:
    """Return the attentions of vit-pytorch, from every model whose arguments have the usual names."""
    import vit_pytorch

    cases: dict[str, Case] = {}
    for info in pkgutil.iter_modules(vit_pytorch.__path__):
        try:
            module = importlib.import_module(f"vit_pytorch.{info.name}")
        except ImportError:
            continue
        for cls in vars(module).values():
            if inspect.isclass(cls) and cls.__module__ == module.__name__:
                for case in _from_images(cls):
                    cases.setdefault(case.name, case)
    return list(cases.values())


def _from_images(cls: type) -> list[Case]:
    """Build a model of images, run it, and return its attentions; none if it wants other arguments or inputs."""
    parameters = inspect.signature(cls).parameters
    if not issubclass(cls, nn.Module) or not {"image_size", "num_classes"} & {*parameters}:
        return []
    has_size = "image_size" in parameters  # others have dimensions of their own for each stage
    values = {name: IMAGE[name] for name in (IMAGE if has_size else SHARED) if name in parameters}
    image = _normal(2, 3, 32, 32) if has_size else _normal(2, 3, 64, 64)
    torch.manual_seed(0)
    try:
        model = cls(**values).eval()
        return attentions_in(model, Example(image), f"vit_pytorch:{cls.__name__}")
    except Exception:  # noqa: BLE001 - its attentions are built alone instead
        return []


MODELS: dict[str, Callable[[], list[Case]]] = {
    make.__name__: make for make in (whisper, x_transformers, litgpt, torchvision, vit_pytorch)
}
