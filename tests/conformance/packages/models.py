"""Small models of packages that have no registry of them, and calls of them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from heedful.conformance import Example
from packages.capture import Case, attentions_in

IMAGE_SIZES: dict[str, Any] = {
    "image_size": 64, "patch_size": 8, "num_classes": 5, "dim": 24, "depth": 1, "heads": 3, "mlp_dim": 48,
    "dim_head": 8,
}  # fmt: skip
IMAGE = {
    "image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 24, "depth": 1, "heads": 3, "mlp_dim": 48,
    "dim_head": 8, "patch_height": 8, "patch_width": 8, "channels": 3, "num_register_tokens": 4,
}  # fmt: skip
"""The arguments of small models of images, by the names that vit-pytorch gives them."""
SHARED = ("num_classes", "channels")
"""Those that mean the same in models without an image size."""
OTHERS: dict[str, tuple[int, dict[str, Any]]] = {
    "twins_svt.TwinsSVT": (64, {"num_classes": 5, "s1_emb_dim": 24, "s2_emb_dim": 32, "s3_emb_dim": 40,
                                "s4_emb_dim": 48, "s3_depth": 1, "s4_depth": 1, "s1_patch_size": 8,
                                "s1_local_patch_size": 4, "s1_global_k": 4, "s2_local_patch_size": 4,
                                "s2_global_k": 2, "s3_local_patch_size": 2, "s3_global_k": 2,
                                "s4_local_patch_size": 1, "s4_global_k": 1}),
    "crossformer.CrossFormer": (64, {"num_classes": 5, "dim": (32, 64, 96, 128), "depth": (1, 1, 1, 1),
                                     "local_window_size": (4, 4, 2, 1), "global_window_size": (4, 2, 2, 1)}),
    "max_vit.MaxViT": (64, {"num_classes": 5, "dim_conv_stem": 16, "dim": 24, "dim_head": 8, "depth": (1, 1),
                            "window_size": 4}),
    "mobile_vit.MobileViT": (64, {"image_size": (64, 64), "dims": [24, 32, 40], "num_classes": 5,
                                  "channels": [16, 16, 24, 24, 48, 48, 64, 64, 80, 80, 96]}),
    "scalable_vit.ScalableViT": (64, {"num_classes": 5, "dim": 24, "heads": (2, 4), "depth": (2, 2),
                                      "reduction_factor": (4, 2), "window_size": (8, None)}),
    "jet_vit.JetViT": (64, {**IMAGE_SIZES, "window_size": 4, "depth": 2, "attn_layers": ["WA", "LA"]}),
    "looped_vit.LoopedViT": (32, {"image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 24, "heads": 3,
                                  "dim_head": 8, "mlp_dim": 48, "adaptive_loop": True}),
    "vit_with_patch_merger.ViT": (64, {**IMAGE_SIZES, "depth": 2, "patch_merge_layer": 1,
                                       "patch_merge_num_tokens": 5}),
    "wwt.WWT": (64, {**IMAGE_SIZES, "num_slots": 5}),
}  # fmt: skip
"""The size of an image and the arguments of models of vit-pytorch that need others, by file and class."""


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
    cases: dict[str, Case] = {}
    for model in models:
        for case in attentions_in(model.eval(), Example(_ids()), "x_transformers"):
            cases.setdefault(case.name, case)
    return list(cases.values())


def litgpt() -> list[Case]:
    """Return the attentions of LitGPT, and of its variants with adapters."""
    cases: list[Case] = []
    for name in ("model", "adapter", "adapter_v2", "lora"):
        variant = importlib.import_module(f"litgpt.{name}")
        config = variant.Config(
            block_size=71, vocab_size=99, padded_vocab_size=99, n_layer=3, n_head=4, n_embd=32, n_query_groups=2
        )  # fmt: skip
        cases += attentions_in(variant.GPT(config).eval(), Example(_ids()), f"litgpt.{name}")
    from litgpt.model import GPT, Config

    ranks = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 4}
    ranks |= {"qk_nope_head_dim": 8, "v_head_dim": 8}
    latent = Config(
        block_size=71, vocab_size=99, padded_vocab_size=99, n_layer=1, n_head=4, n_embd=32, latent_attention=ranks
    )  # fmt: skip
    return cases + attentions_in(GPT(latent).eval(), Example(_ids()), "litgpt.model:latent")


def torchvision() -> list[Case]:
    """Return the attentions of torchvision's smallest models."""
    from torchvision import models
    from torchvision.models.video import mvit, swin_transformer

    image, video = Example(_normal(2, 3, 224, 224)), Example(_normal(2, 3, 8, 32, 32))
    block = mvit.MSBlockConfig(2, 24, 24, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 2, 2])
    makers: dict[str, tuple[Callable[[], nn.Module], Example]] = {
        "swin_t": (models.swin_t, image),
        "swin_v2_t": (models.swin_v2_t, image),
        "maxvit_t": (models.maxvit_t, image),
        "MViT": (
            lambda: mvit.MViT((32, 32), 8, [block, block], True, True, True, True),
            video,
        ),
        "SwinTransformer3d": (
            lambda: swin_transformer.SwinTransformer3d([2, 4, 4], 24, [2], [3], [2, 4, 4]),
            video,
        ),
    }
    cases: dict[str, Case] = {}
    for name, (make, example) in makers.items():
        torch.manual_seed(0)
        for case in attentions_in(make().eval(), example, name):
            cases.setdefault(case.name, case)
    return list(cases.values())


def open_clip() -> list[Case]:
    """Return the attention that pools the features of OpenCLIP's residual network."""
    from open_clip.modified_resnet import ModifiedResNet

    model = ModifiedResNet([1, 1, 1, 1], output_dim=24, heads=4, image_size=64, width=8).eval()
    return attentions_in(model, Example(_normal(2, 3, 64, 64)), "open_clip")


def labml_nn() -> list[Case]:
    """Return the attentions of labml's Feedback Transformer, and of RETRO, which retrieves neighbors of each chunk."""
    from labml_nn.transformers.feed_forward import FeedForward
    from labml_nn.transformers.feedback import (
        FeedbackAttention,
        FeedbackTransformer,
        FeedbackTransformerLayer,
    )
    from labml_nn.transformers.retro.model import NearestNeighborEncoder, RetroModel

    layer = FeedbackTransformerLayer(
        d_model=24,
        attn=FeedbackAttention(4, 24),
        feed_forward=FeedForward(24, 48),
        dropout_prob=0.25,
    )
    encoder = NearestNeighborEncoder(4, 2, {1}, 24, 4, 6, 48)
    retro = RetroModel(99, 24, 3, {1}, 4, 4, 6, 48, encoder=encoder)
    neighbors = _ids(2 * 3 * 8).view(
        2, 2, 3, 8
    )  # 2 chunks of 4 tokens, each with 3 neighbors of 8 tokens
    return [
        *attentions_in(FeedbackTransformer(layer, 1).eval(), Example(_normal(7, 2, 24)), "labml:feedback"),
        *attentions_in(retro.eval(), Example(_ids(9), neighbors), "labml:retro"),
    ]  # fmt: skip


def vit_pytorch() -> list[Case]:
    """Return the attentions of vit-pytorch, from every model whose arguments have the usual names."""
    import vit_pytorch

    cases: dict[str, Case] = {}
    for name, (size, values) in OTHERS.items():
        file, cls = name.split(".")
        torch.manual_seed(0)
        model = getattr(importlib.import_module(f"vit_pytorch.{file}"), cls)(**values).eval()
        for case in attentions_in(model, Example(_normal(2, 3, size, size)), f"vit_pytorch:{name}"):
            cases.setdefault(case.name, case)
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
    make.__name__: make
    for make in (whisper, x_transformers, litgpt, torchvision, open_clip, labml_nn, vit_pytorch)
}
