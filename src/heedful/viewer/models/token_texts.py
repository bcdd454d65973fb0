"""What is written beside a token: its text, also if it is a part of a character."""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"  # what decoding puts in place of bytes that are no whole character
LONGEST = 4  # bytes of a character in UTF-8, and so tokens that it is split into


def token_texts(ids: Sequence[int], decode: Callable[[list[int]], str]) -> list[str]:
    """Return a text for each token. Parts of one character are numbered.

    Args:
        ids: The tokens.
        decode: Returns the text of some tokens.

    Examples:
        >>> token_texts([104, 226, 130, 172, 255], lambda ids: bytes(ids).decode(errors="replace"))
        ['h', '€ 1/3', '€ 2/3', '€ 3/3', '�']
    """
    texts: list[str] = []
    while len(texts) < len(ids):
        first = len(texts)
        count, text = _next_whole([int(i) for i in ids[first : first + LONGEST]], decode)
        texts += [text] if count == 1 else [f"{text} {i + 1}/{count}" for i in range(count)]
    return texts


def _next_whole(ids: list[int], decode: Callable[[list[int]], str]) -> tuple[int, str]:
    """Return how many tokens make up the next whole characters, and their text."""
    for count in range(1, len(ids) + 1):
        text = decode(ids[:count])
        if REPLACEMENT not in text:
            return count, text or f"⟨{ids[0]}⟩"
    return 1, decode(ids[:1])
