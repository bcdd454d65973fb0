"""Which tokens a mask keeps, by what a docstring says about its values: "1 at real tokens", "True at padding"."""

from __future__ import annotations

import re

VALUES: re.Pattern[str] = re.compile(r"\b(?:(true|ones?|1|nonzero)|(false|zeros?|0))\b")
SHAPES: re.Pattern[str] = re.compile(r"[(\[][^)\]]*[)\]]")
KEPT: re.Pattern[str] = re.compile(
    r"\b(real|valid|keep|kept|visible|attend|edge|present|unmask|allowed)"
)
HIDDEN: re.Pattern[str] = re.compile(r"\b(pad|hid|mask|ignor|invalid|empty|exclu|block)")
# The mask that a sentence is about, as in "Boolean mask with True at padding"
NOUN: re.Pattern[str] = re.compile(
    r"\b((key|padding|pad|attention|boolean|binary)[ _])*masks?\b"
    r"(?=\s*(with|where|of|that|whose|for|in which|\(|,|:|$))"
)
NEGATED: re.Pattern[str] = re.compile(r"\b(not|non|never|no)\b")


def documented_polarity(text: str) -> bool | None:
    """Return whether True, or 1, means that a token is visible; None if a text does not say so.

    Args:
        text: What a docstring says about a mask.

    Examples:
        >>> documented_polarity("(batch, length), 1 at real tokens and 0 at padding")
        True
        >>> documented_polarity("(batch, length), True where a key is hidden")
        False
        >>> documented_polarity("padding mask with True where a token is real")
        True
    """
    for clause in re.split(r"[,;.]|\band\b|\bor\b", NOUN.sub("", SHAPES.sub("", text.lower()))):
        value = VALUES.search(clause)
        keeps, hides = KEPT.search(clause) is not None, HIDDEN.search(clause) is not None
        if value is None or keeps == hides:
            continue
        return (value.group(1) is not None) == (keeps != bool(NEGATED.search(clause)))
    return None
