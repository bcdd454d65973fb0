"""Bugs of public projects, re-created from their issues and fixes: each a module, before and after the fix.

No code is copied. A file in `bugs/` is written in the style of the project and holds both versions of the lines that
the fix changed, between the comments `# before`, `# after` and `# end`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

BUGS = Path(__file__).parent / "bugs"
Version = Literal["before", "after"]


@dataclass(frozen=True)
class Case:
    """A bug of a public project.

    Attributes:
        name: The stem of the file in `bugs/`.
        entry: The name of the class that is checked.
        reference: The issue or pull request that the bug is known from.
        bug: The name of the finding that describes the bug.
        known_as: The names of other findings that describe the bug fairly.
        options: What a user would state: the options of check().
        example: A function that returns the example of a user who gives one.
    """

    name: str
    entry: str
    reference: str
    bug: str
    known_as: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    example: Callable[[], tuple[Any, ...]] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all findings that describe the bug."""
        return self.bug, *self.known_as

    def source(self, version: Version) -> str:
        """Return the source of one version, without the comments that mark the lines of the fix."""
        return "".join(line for line, _ in self._marked(version))

    @property
    def lines(self) -> range:
        """The lines that the fix changes, in the source before the fix."""
        numbers = [n for n, (_, changed) in enumerate(self._marked("before"), 1) if changed]
        return range(numbers[0], numbers[-1] + 1)

    def check_options(self) -> dict[str, Any]:
        """Return the options of check(), with the example."""
        return self.options if self.example is None else {**self.options, "example": self.example()}

    def load(self, version: Version, folder: Path) -> ModuleType:
        """Write one version to a file in a folder and import it."""
        path = folder / f"{self.name}_{version}.py"
        path.write_text(self.source(version))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module

    def _marked(self, version: Version) -> list[tuple[str, bool]]:
        """Return the lines of one version, each with whether the fix changes it."""
        lines, region = [], ""
        for line in (BUGS / f"{self.name}.py").read_text().splitlines(keepends=True):
            marker = line.strip().removeprefix("# ")
            if line.strip().startswith("# ") and marker in ("before", "after", "end"):
                region = marker
            elif region in ("", "end", version):
                lines.append((line, region == version))
        return lines


def sizes(**arguments: Any) -> dict[str, Any]:
    """Return the option that states the arguments of the constructor."""
    return {"arguments": arguments}


def _text_and_images() -> tuple[Any, ...]:
    """Return texts of 9 tokens and 2 images of 3 patches, the first image after 2 tokens in the first text only."""
    locations = torch.zeros(2, 9, dtype=torch.bool)
    locations[0, 2] = locations[0, 6] = locations[1, 0] = locations[1, 4] = True
    return torch.randn(2, 9, 16), torch.randn(2, 2, 3, 16), locations


def _image() -> tuple[Any, ...]:
    """Return two feature maps of 4 × 4 pixels."""
    return (torch.randn(2, 16, 4, 4),)


def _signals() -> tuple[Any, ...]:
    """Return two signals with their windows, and the number of windows of the second one."""
    return torch.randn(2, 5, 12), torch.randn(2, 7, 16), torch.tensor([7, 4])


KNOWN = (
    Case(
        "vit_pytorch_65",
        "Attention",
        "lucidrains/vit-pytorch#65",
        "scale-wrong",
        options=sizes(dim=32, heads=4, dim_head=16),
    ),
    Case(
        "ng_video_lecture_6",
        "MultiHeadAttention",
        "karpathy/ng-video-lecture#6",
        "scale-wrong",
        options={"causal": True, **sizes(num_heads=4, head_size=8)},
    ),
    Case("vit_1", "MultiHeadAttention", "FrancescoSaverioZuppichini/ViT#1", "scale-wrong"),
    Case(
        "labml_146",
        "AttentionBlock",
        "labmlai/annotated_deep_learning_paper_implementations#146",
        "softmax-wrong-dim",
        options=sizes(n_channels=16, n_heads=2, d_k=8),
    ),
    Case("fastnlp_254", "MultiHeadAttention", "FudanNLP/fastNLP#254", "softmax-wrong-dim"),
    Case("pytorch_nlp_2", "Attention", "PetrochukM/PyTorch-NLP#2", "softmax-wrong-dim"),
    Case("fuxictr_30", "MultiHeadSelfAttention", "reczoo/FuxiCTR#30", "heads-mixed-split"),
    Case(
        "transformer_from_scratch_6",
        "MultiHeadAttention",
        "jsbaan/transformer-from-scratch#6",
        "heads-mixed-merge",
    ),
    Case(
        "opacus_825",
        "DPMultiheadAttention",
        "meta-pytorch/opacus#825",
        "heads-mixed-merge",
        options=sizes(embed_dim=24, num_heads=4, batch_first=True),
    ),
    Case(
        "positional_encodings_1",
        "MultiHeadAttention",
        "gazelle93/Transformer-Various-Positional-Encoding#1",
        "heads-mixed-merge",
        known_as=("batch-mixed",),
    ),
    Case(
        "timm_1978",
        "Attention",
        "huggingface/pytorch-image-models#1978",
        "dropout-in-eval",
        options=sizes(dim=32, num_heads=4, attn_drop=0.1),
    ),
    Case(
        "nanogpt_240",
        "CausalSelfAttention",
        "karpathy/nanoGPT#240",
        "dropout-in-eval",
        options={"causal": True},
    ),
    Case(
        "pytorch_fm_21",
        "AttentionalFactorizationMachine",
        "rixwew/pytorch-fm#21",
        "dropout-in-eval",
        options=sizes(embed_dim=16, attn_size=8),
    ),
    Case(
        "timm_2236",
        "EvaAttention",
        "huggingface/pytorch-image-models#2236",
        "mask-after-softmax",
        known_as=("output-not-finite",),
    ),
    Case(
        "flamingo_10",
        "MaskedCrossAttention",
        "lucidrains/flamingo-pytorch#10",
        "mask-unused",
        options=sizes(dim=16, dim_head=8, heads=2),
        example=_text_and_images,
    ),
    Case(
        "halonet_4",
        "HaloAttention",
        "lucidrains/halonet-pytorch#4",
        "mask-inverted",
        options=sizes(dim=16, block_size=2, halo_size=1),
        example=_image,
    ),
    Case(
        "memory_compressed_attention_2",
        "MemoryCompressedAttention",
        "lucidrains/memory-compressed-attention#2",
        "mask-fill-positive",
        known_as=("output-not-finite", "mask-inverted"),
        options={"causal": True},
    ),
    Case(
        "ribonanza_5",
        "MultiHeadAttention",
        "Shujun-He/RibonanzaNet#5",
        "mask-fill-too-small",
    ),
    Case("gluonts_1401", "SelfAttention", "awslabs/gluonts#1401", "mask-fill-too-small"),
    Case(
        "transformer_10", "MultiHeadAttention", "hyunwoongko/transformer#10", "mask-fill-too-small"
    ),
    Case("transformer_40", "EncoderSelfAttention", "hyunwoongko/transformer#40", "mask-broadcast"),
    Case(
        "transformers_35162",
        "DebertaSelfAttention",
        "huggingface/transformers#35162",
        "mask-unused",
    ),
    Case(
        "qwen_933",
        "QWenAttention",
        "QwenLM/Qwen#933",
        "mask-unused",
        known_as=("future-leak",),
        options={"causal": True},
    ),
    Case("clip4clip_22", "ResidualAttentionBlock", "ArrowLuo/CLIP4Clip#22", "mask-broadcast"),
    Case(
        "attention_keras_36",
        "MultiHeadAttention",
        "lsdefine/attention-is-all-you-need-keras#36",
        "mask-broadcast",
    ),
    Case("omdet_19", "TransformerLayer", "om-ai-lab/OmDet#19", "batch-mixed"),
    Case(
        "rotary_embedding_torch_11",
        "Attention",
        "lucidrains/rotary-embedding-torch#11",
        "stale-state",
        known_as=("rotary-offset", "cache-mismatch"),
        options={"causal": True},
    ),
    Case(
        "executorch_2010",
        "Attention",
        "pytorch/executorch#2010",
        "rotary-offset",
        known_as=("cache-mismatch",),
        options={"causal": True},
    ),
    Case(
        "x_transformers_187",
        "Attention",
        "lucidrains/x-transformers#187",
        "causal-alignment",
        known_as=("cache-mismatch",),
        options={"causal": True},
    ),
    Case(
        "gpt_neox_1003",
        "ParallelSelfAttention",
        "EleutherAI/gpt-neox#1003",
        "rotary-precision",
        options={"causal": True},
    ),
    Case(
        "modalities_462",
        "CausalSelfAttention",
        "Modalities/modalities#462",
        "rotary-precision",
        options={"causal": True, **sizes(n_head_q=4, n_head_kv=2, n_embd=32)},
    ),
    Case(
        "train_your_gpt_6",
        "MultiHeadAttention",
        "raiyanyahya/how-to-train-your-gpt#6",
        "rotary-mismatch",
        options={"causal": True},
    ),
    Case("ark_nlp_47", "RoPEAttention", "xiangking/ark-nlp#47", "rotary-mismatch"),
    Case(
        "transformers_39408",
        "MistralAttention",
        "huggingface/transformers#39408",
        "window-off-by-one",
        options={"causal": True, "window": 4},
    ),
    Case(
        "mlx_lm_390",
        "Attention",
        "ml-explore/mlx-lm#390",
        "window-off-by-one",
        options={"causal": True, "window": 5},
    ),
    Case(
        "unsloth_8253",
        "MistralAttention",
        "unslothai/unsloth#8253",
        "window-missing",
        options={"causal": True},
    ),
    Case(
        "transformers_29583",
        "GPT2Attention",
        "huggingface/transformers#29583",
        "left-padding-positions",
        options={"causal": True},
    ),
    Case(
        "nisqa_17",
        "Alignment",
        "gabrielmittag/NISQA#17",
        "mask-after-softmax",
        known_as=("output-not-finite",),
        options=sizes(query_dim=12, y_dim=16),
        example=_signals,
    ),
    Case(
        "informer_97",
        "AttentionLayer",
        "zhouhaoyi/Informer2020#97",
        "dropout-unused",
        options={"causal": True},
    ),
    Case(
        "decision_transformer_2",
        "MaskedCausalAttention",
        "nikhilbarhate99/min-decision-transformer#2",
        "dropout-misplaced",
        options={"causal": True},
    ),
    Case("lanmt_11", "TransformerCrossEncoderLayer", "zomux/lanmt#11", "projection-unused"),
    Case("a_gcn_4", "AttentionGraphConvolution", "queenie88/A-GCN#4", "gradient-wrong"),
    Case(
        "pytorch_nlp_90",
        "Attention",
        "PetrochukM/PyTorch-NLP#90",
        "stride-dependent",
        known_as=("crashes",),
    ),
    Case(
        "xformers_66",
        "ScaledDotProduct",
        "facebookresearch/xformers#66",
        "length-dependent",
        known_as=("crashes",),
        options={"causal": True},
    ),
    Case(
        "opennmt_240",
        "TransformerDecoderLayer",
        "OpenNMT/OpenNMT-py#240",
        "mask-not-a-buffer",
        options={"causal": True},
    ),
    Case(
        "machine_learning_13",
        "MultiHeadAttention",
        "ethen8181/machine-learning#13",
        "scale-missing",
    ),
    Case(
        "perceiver_io_9",
        "MultiHeadAttention",
        "esceptico/perceiver-io#9",
        "scale-wrong",
        options=sizes(kv_dim=20, q_dim=32),
    ),
    Case(
        "good_features_1",
        "AttentionMIL",
        "georg-wolflein/good-features#1",
        "mask-fill-too-small",
        options=sizes(feature_size=16),
    ),
    Case("rendezvous_3", "MHMA", "CAMMA-public/rendezvous-in-time#3", "softmax-wrong-dim"),
    Case(
        "text_classifiers_92",
        "LabelAttentionClassifier",
        "InseeFrLab/torchTextClassifiers#92",
        "mask-inverted",
    ),
    Case("torch_brain_74", "RotaryCrossAttention", "neuro-galaxy/torch_brain#74", "mask-inverted"),
    Case(
        "apex_1105",
        "SelfAttention",
        "NVIDIA/apex#1105",
        "mask-fill-overflow",
        known_as=("crashes",),
    ),
    Case(
        "transformer_lens_366",
        "Attention",
        "TransformerLensOrg/TransformerLens#366",
        "mask-fill-too-small",
        options={"causal": True},
    ),
    Case(
        "onnx_7274",
        "GroupedQueryAttention",
        "onnx/onnx#7274",
        "group-order",
        options={"causal": True},
    ),
    Case(
        "audiolm_265",
        "TransformerBlock",
        "lucidrains/audiolm-pytorch#265",
        "projection-unused",
        options={"causal": True},
    ),
    Case(
        "open_transformer_25",
        "MultiHeadedSelfAttentionWithRelPos",
        "ZhengkunTian/OpenTransformer#25",
        "relative-shift-wrong",
    ),
)
"""The bugs that may guide changes of the check; `held_out.py` lists those that may not."""
