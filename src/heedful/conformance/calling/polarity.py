"""Which tokens a mask keeps, by what a docstring says about its values: "1 at real tokens", "True at padding"."""

from __future__ import annotations

import re

# Chinese, Japanese and Korean have no space between a value and the words about it, as in "True表示有效".
VALUES: re.Pattern[str] = re.compile(
    r"(?<![a-z0-9_])(?:(true|ones?|1|non-?zero)|(false|zeros?|0))(?![a-z0-9_])"
)
BOOLEANS: re.Pattern[str] = re.compile(r"\b(true|false|bool|boolean|1|one|ones and zeros)\b")
CLAUSES = r"[,;，；、。]|\.(?!\d)|\band\b|\bor\b"
SHAPES: re.Pattern[str] = re.compile(r"[(\[][^)\]]*[)\]]")
KEPT: re.Pattern[str] = re.compile(
    r"\b(real|valid|keep|kept|visible|attend|edge|present|unmask|allowed|sees?\b|seen\b)"
    r"|有效|有効|真实|可见|保留|유효"
)
HIDDEN: re.Pattern[str] = re.compile(
    r"\b(pad|hid|mask|ignor|invalid|empty|exclu|block)|填充|无效|無効|屏蔽|遮|忽略|パディング|패딩"
)
ADDED: re.Pattern[str] = re.compile(
    r"\badditive( \w+)? (mask|bias)|\bmask is additive|\badded to the( \w+)? (scores|logits|weights)"
)
CONVERTED: re.Pattern[str] = re.compile(r"\b(convert|turned|becomes|transform|internal)")
ZERO: re.Pattern[str] = re.compile(r"\b(0|0\.0|zeros?)\b")
LOWEST: re.Pattern[str] = re.compile(
    r"[-−]\s?(inf|∞)|(minus|negative) infinity|finfo|-1e\d|-10000"
    r"|(smallest|lowest|most negative|(large|big|huge|very) negative|minimum) (number|value|float)"
)
# The mask that a sentence is about, as in "Boolean mask with True at padding"
NOUN: re.Pattern[str] = re.compile(
    r"\b((key|padding|pad|attention|boolean|binary)[ _])*masks?\b"
    r"(?=\s*(with|where|of|that|whose|for|in which|\(|,|:|$))"
)
NEGATED: re.Pattern[str] = re.compile(r"\b(not|non(?!-zero)|never|no)\b")


# A text that refers to PyTorch's module, whose Boolean masks hide.
AS_IN_TORCH: re.Pattern[str] = re.compile(
    r"\b(same|as|like)\b.{0,20}(?<!paddle\.)\b(torch\.)?nn\.multiheadattention"
)


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
        >>> documented_polarity("the non-zero positions are not allowed to attend")
        False
        >>> documented_polarity("有效长度布尔开关 [B, L]，True 表示有效，False 表示 Padding")
        True
        >>> documented_polarity("Boolean mask, the same as in `torch.nn.MultiheadAttention`")
        False
    """
    if AS_IN_TORCH.search(text.lower()):
        return False
    for clause in re.split(CLAUSES, NOUN.sub("", SHAPES.sub("", text.lower()))):
        value = VALUES.search(clause)
        keeps, hides = KEPT.search(clause) is not None, HIDDEN.search(clause) is not None
        if value is None or keeps == hides:
            continue
        return (value.group(1) is not None) == (keeps != bool(NEGATED.search(clause)))
    return None


def is_documented_as_additive(text: str) -> bool:
    """Check whether a text says that a mask is added to the scores: 0 where a key is visible, and −∞ elsewhere.

    Args:
        text: What a docstring says about a mask.

    Examples:
        >>> is_documented_as_additive("0 for keys to attend to, and the lowest number for the others")
        True
        >>> is_documented_as_additive("1 for keys to attend to, and 0 for the others")
        False
    """
    lowered = SHAPES.sub("", re.sub(r"float\([^)]*inf.?\)", "-inf", text.lower()))
    if BOOLEANS.search(lowered) or CONVERTED.search(lowered):
        return False
    clauses = re.split(CLAUSES, lowered)
    zero = any(
        ZERO.search(it) and not LOWEST.search(it) and (KEPT.search(it) or not HIDDEN.search(it))
        for it in clauses
    )
    lowest = any(LOWEST.search(it) and not (ZERO.search(it) or KEPT.search(it)) for it in clauses)
    return ADDED.search(lowered) is not None or (zero and lowest)


def suggests_real_tokens(name: str) -> bool:
    """Check whether a mask's name is rather one of real tokens than of padding, such as pad_mask."""
    return "pad" not in name or any(word in name for word in ("not", "non", "unpad"))
