"""The sources of attention modules: models of each package in which they run, and classes that are built alone."""

from __future__ import annotations

from packages.arguments import ARGUMENTS
from packages.capture import Case, attentions_in
from packages.discovery import find_attentions
from packages.models import MODELS
from packages.timm_models import cases_of_family, families

SKIPPED = r"convert|conversion|tokenization|__main__|onnx|benchmark|pipelines|experiment|\.tests?\b|\.train\b|examples"
"""Modules of packages that are scripts, or hold no modules of torch."""

CLASSES = (
    *(
        "vit_pytorch",
        "x_transformers",
        "open_clip",
        "torchvision",
        "labml_nn",
        "timm",
        "whisper",
    ),
    *("litgpt", "linear_attention_transformer", "local_attention", "axial_attention"),
    "memory_efficient_attention_pytorch",
    *("performer_pytorch", "linformer", "reformer_pytorch", "sinkhorn_transformer", "conformer"),
    *("colt5_attention", "MEGABYTE_pytorch", "tab_transformer_pytorch", "kornia", "esm"),
    *("perceiver_pytorch", "perceiver_ar_pytorch", "x_clip", "iTransformer", "slot_attention"),
    *("taylor_series_linear_attention", "infini_transformer_pytorch", "x_metaformer"),
    *("agent_attention_pytorch", "bottleneck_transformer_pytorch", "segmentation_models_pytorch"),
    "recurrent_memory_transformer_pytorch",
)
"""The packages whose attention modules are built alone, if no model runs them."""

PACKAGES = ("transformers", *CLASSES, "diffusers.models")
"""The packages whose modules are listed.

Built alone, half of diffusers' attentions cannot be called, because their inputs come from the models around them; they
are left out until small models of ours run them.
"""

NOT_INSTALLED = {
    "torchtune": "0.6.1 needs torchao.dtypes.nf4tensor, which torchao for torch 2.13 no longer has",
    "fairseq2": "its compiled part, fairseq2n, is built for older versions of torch only",
    "torchscale": "it needs timm 0.6.13",
    "audiolm-pytorch": "it needs torchaudio, whose build for torch 2.13 on CPUs is not on PyPI",
}
"""The packages that cannot be installed beside the others, with the reasons."""


def all_sources() -> list[str]:
    """Return the names of all sources."""
    from transformers import CONFIG_MAPPING

    return [
        *(f"transformers:{name}" for name in CONFIG_MAPPING),
        *(f"timm:{name}" for name in families()),
        *(f"models:{name}" for name in MODELS),
        *(f"classes:{name}" for name in CLASSES),
    ]


def cases_of(source: str, seen: frozenset[str] = frozenset()) -> list[Case]:
    """Return the cases of one source, without the classes that are built alone although they were captured."""
    kind, _, name = source.partition(":")
    if kind == "transformers":
        from packages.transformers_models import example_of, tiny_model

        model = tiny_model(name)
        own = type(model).__module__.rpartition(".")[
            0
        ]  # what it borrows is checked where it comes from
        return [
            case
            for case in attentions_in(model, example_of(model), source)
            if case.name.startswith(own)
        ]
    if kind == "timm":
        return cases_of_family(name)
    if kind == "models":
        return MODELS[name]()
    found = find_attentions(name, SKIPPED)
    return [
        Case(full, source, cls, arguments=ARGUMENTS.get(full, {}))
        for full, cls in found.classes.items()
        if full not in seen
    ]
