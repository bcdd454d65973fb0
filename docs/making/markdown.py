"""Plain text as Markdown."""

import re


def escaped(text: str) -> str:
    """Return plain text as Markdown that shows it as it is.

    >>> print(escaped("weights = dropout(a_b) * 2"))
    weights = dropout(a\\_b) \\* 2
    """
    return re.sub(r"([\\`*_{}\[\]<>#|~$])", r"\\\1", text)


def code_block(text: str, language: str = "python", *, emphasized: range | None = None) -> str:
    """Return a block of code; the numbers of emphasized lines count from 1."""
    options = ""
    if emphasized:
        options = f":emphasize-lines: {emphasized.start}-{emphasized.stop - 1}\n"
    return f"````{{code-block}} {language}\n{options}\n{text.rstrip()}\n````"
