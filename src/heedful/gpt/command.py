"""The command `heedful generate`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heedful.errors import ArgumentError
from heedful.gpt import checkpoint, pretrained
from heedful.gpt.generation import Sampling, generate, stream
from heedful.gpt.model import GPT
from heedful.gpt.tokenizer import TextStream, Tokenizer, load_tokenizer
from heedful.screen import without_controls

SEPARATOR = "\n---\n"  # between the texts of several prompts
STDIN = "-"


def print_continuations(
    folder: Path, prompts: Sequence[str], *, tokens: int, sampling: Sampling
) -> None:
    """Print each prompt with its continuation: token by token for one prompt, all at the end for several.

    Args:
        folder: a folder that `heedful train` wrote, or a transformers model of GPT-2's or Llama's family with its
            tokenizer.json.
        prompts: texts; "-" stands for the text in stdin, and an empty prompt begins a new text.
        tokens: the maximum number of new tokens for each prompt.
        sampling: how tokens are chosen.

    Raises:
        ArgumentError: the folder holds no supported model, or a prompt is not valid text.
        MissingExtraError: the extra "train" is not installed.
    """
    texts = [_read_stdin() if prompt == STDIN else prompt for prompt in prompts]
    model, tokenizer = load_model(folder)
    ids = [_encode(tokenizer, text) for text in texts]
    streams = [_stream_after(tokenizer, prompt) for prompt in ids]
    options: dict[str, Any] = {
        "tokens": tokens,
        "sampling": sampling,
        "stop": tokenizer.end_of_text,
    }
    if len(texts) == 1:
        _print(texts[0])
        for (id,) in stream(model, ids, **options):
            assert id is not None  # the end of the only text ends the stream
            _print(streams[0].push(id))
        _print(streams[0].end() + "\n")
    else:
        for number, continuation in enumerate(generate(model, ids, **options)):
            pieces = [streams[number].push(id) for id in continuation]
            texts[number] += "".join(pieces) + streams[number].end()
        _print(SEPARATOR.join(texts) + "\n")


def load_model(folder: Path) -> tuple[GPT, Tokenizer]:
    """Load the model and the tokenizer in a folder that heedful or transformers wrote.

    Raises:
        ArgumentError: one of them is missing, damaged or not supported.
        MissingExtraError: the extra "train" is not installed.
    """
    model_type = checkpoint.read_json(folder / checkpoint.CONFIG).get("model_type")
    load = checkpoint.load if model_type == checkpoint.MODEL_TYPE else pretrained.from_folder
    return load(folder), load_tokenizer(folder)


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a prompt; an empty one becomes the end of a text, which precedes each text in training."""
    ids = tokenizer.encode(text)
    if not ids and tokenizer.end_of_text is not None:
        return [tokenizer.end_of_text]
    return ids


def _stream_after(tokenizer: Tokenizer, prompt: Sequence[int]) -> TextStream:
    """Return a decoder that has read the prompt, because some tokenizers strip the space from the first token."""
    text_stream = tokenizer.stream()
    for id in prompt:
        text_stream.push(id)
    return text_stream


def _read_stdin() -> str:
    """Return the text in stdin, without the final newline that `echo` adds."""
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise ArgumentError(
            "--prompt",
            expected="UTF-8 text in stdin",
            received=str(error),
            remedy="Convert it first: iconv -t UTF-8.",
        ) from error


def _print(text: str) -> None:
    """Print without a newline and without delay; a character that stdout cannot encode becomes a question mark.

    A terminal gets no control characters: what a model writes is not to be obeyed.
    """
    encoding = sys.stdout.encoding
    if sys.stdout.isatty():
        text = without_controls(text)
    print(text.encode(encoding, "replace").decode(encoding), end="", flush=True)
