"""`heedful generate` as the command line gives it: prompts in, the texts that they grow into out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heedful.errors import ArgumentError
from heedful.gpt import checkpoint, foreign
from heedful.gpt import tokenizer as tokenizers
from heedful.gpt.sampling import Choice
from heedful.gpt.generation import generate, stream
from heedful.gpt.model import GPT
from heedful.gpt.tokenizer import TextStream, Tokenizer

SEPARATOR = "\n---\n"  # between the texts of several prompts
STDIN = "-"


def speak(folder: Path, prompts: Sequence[str], *, tokens: int, choice: Choice) -> None:
    """Print each prompt and what the model says after it; of one prompt token by token, of several once all are done.

    Args:
        folder: what `heedful train` wrote, or a transformers model of GPT-2's or Llama's kind with its tokenizer.json.
        prompts: texts; "-" is what stands in stdin, an empty one begins a new text.
        tokens: the most new ones for each; a text may end before.
        choice: how they are chosen.

    Raises:
        ArgumentError: the folder holds no model, or one that ours cannot be; a prompt is no text.
        MissingExtraError: the extra "train" is not installed.
    """
    texts = [_read_stdin() if prompt == STDIN else prompt for prompt in prompts]
    model, tokenizer = open_model(folder)
    ids = [_encode(tokenizer, text) for text in texts]
    growing = [_text_after(tokenizer, prompt) for prompt in ids]
    options: dict[str, Any] = {"tokens": tokens, "choice": choice, "stop": tokenizer.end_of_text}
    if len(texts) == 1:
        _say(texts[0])
        for (id,) in stream(model, ids, **options):
            assert id is not None  # a single text that has ended ends the stream
            _say(growing[0].push(id))
        _say(growing[0].end() + "\n")
    else:
        for number, end in enumerate(generate(model, ids, **options)):
            texts[number] += "".join(map(growing[number].push, end)) + growing[number].end()
        _say(SEPARATOR.join(texts) + "\n")


def open_model(folder: Path) -> tuple[GPT, Tokenizer]:
    """The model and the tokenizer in a folder, our own or of transformers.

    Raises:
        ArgumentError: one of them is missing, damaged, or of a kind that ours cannot be.
        MissingExtraError: the extra "train" is not installed.
    """
    kind = checkpoint.read_json(folder / checkpoint.CONFIG).get("model_type")
    load = checkpoint.load if kind == checkpoint.KIND else foreign.from_folder
    return load(folder), tokenizers.load(folder)


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    ids = tokenizer.encode(text)
    if not ids and tokenizer.end_of_text is not None:
        return [tokenizer.end_of_text]  # what stands before a text's beginning in training
    return ids


def _text_after(tokenizer: Tokenizer, prompt: Sequence[int]) -> TextStream:
    """For what follows the prompt: some tokenizers take a space from whatever they decode first."""
    following = tokenizer.stream()
    for id in prompt:
        following.push(id)
    return following


def _read_stdin() -> str:
    """What was piped in, without the line's end that `echo` adds."""
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise ArgumentError(
            "--prompt",
            expected="UTF-8 text in stdin",
            received=str(error),
            remedy="Convert it first: iconv -t UTF-8.",
        ) from error


def _say(text: str) -> None:
    """Print at once, with what stdout's encoding has not as question marks."""
    encoding = sys.stdout.encoding
    print(text.encode(encoding, "replace").decode(encoding), end="", flush=True)
