"""Fixes: edits of a target's source that were proved by another check."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import NewType

from heedful.conformance.recording.location import short_path

SourceText = NewType("SourceText", str)


@dataclass(frozen=True)
class Fix:
    """An edit of a source file after which a finding is gone and no new one has come.

    Several fixes of one report build on each other: each begins with the source that the previous one ends with.

    Attributes:
        finding: The name of the finding.
        file: The path of the file.
        before: The source before the edit.
        after: The source after it.

    Examples:
        >>> from heedful.conformance import Fix
        >>> print(Fix("softmax-wrong-dim", "mine.py", "w = s.softmax(1)\\n", "w = s.softmax(-1)\\n").diff)
        --- mine.py
        +++ mine.py
        @@ -1 +1 @@
        -w = s.softmax(1)
        +w = s.softmax(-1)
        <BLANKLINE>
    """

    finding: str
    file: str
    before: SourceText
    after: SourceText

    @property
    def diff(self) -> str:
        """The edit as a unified diff, which `patch` and `git apply -p0` accept."""
        path = short_path(self.file)
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True), self.after.splitlines(keepends=True), path, path
        )
        return "".join(line if line.endswith("\n") else f"{line}\n{NO_NEWLINE}" for line in lines)


NO_NEWLINE = "\\ No newline at end of file\n"
