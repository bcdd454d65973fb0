"""What a learner has done so far, in a file beside the exercises."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from heedful.errors import ArgumentError
from heedful.reading import read_json
from heedful.writing import reserved

FILE = "progress.json"


@dataclass(frozen=True)
class Attempt:
    """What a learner has done about one exercise.

    Attributes:
        hints: The number of hints that were shown.
        solved: Whether the bug was found and mended.
    """

    hints: int = 0
    solved: bool = False


@dataclass(frozen=True)
class Progress:
    """What a learner has done so far.

    Attributes:
        current: The name of the exercise that was started last; "" before the first one.
        attempts: What was done about each exercise that was started, by name.
    """

    current: str = ""
    attempts: dict[str, Attempt] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Return the progress that is stored in a folder of exercises; none if there is no file.

        Raises:
            ArgumentError: The file cannot be read or is not one that `save` has written.
        """
        try:
            return cls._parsed(read_json(folder / FILE))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or error
            raise ArgumentError(
                "--in",
                expected=f"the progress that heedful practise wrote to {folder / FILE}",
                received=f"{reason}",
                remedy="Mend the file, or rename it to start without it; nothing was changed.",
            ) from error

    @classmethod
    def _parsed(cls, fields: dict[str, Any]) -> Self:
        """Return the progress that a JSON object describes.

        Raises:
            ValueError: It describes none.
        """
        match fields:
            case {"current": str(current), "attempts": dict(attempts), **others} if not others:
                return cls(current, {name: _attempt(value) for name, value in attempts.items()})
        raise ValueError("JSON without exactly the fields current and attempts")

    def attempt(self, name: str) -> Attempt:
        """Return what was done about an exercise."""
        return self.attempts.get(name, Attempt())

    def after(self, name: str, **changes: Any) -> Self:
        """Return the progress after an exercise was made the current one, with changes of its attempt."""
        changed = replace(self.attempt(name), **changes)
        return replace(self, current=name, attempts={**self.attempts, name: changed})

    def save(self, folder: Path) -> None:
        """Store the progress in a folder of exercises.

        Raises:
            ArgumentError: The file cannot be written.
        """
        with reserved(folder / FILE, "--in") as write:
            write(json.dumps(asdict(self), indent=1) + "\n")


def _attempt(value: Any) -> Attempt:
    match value:
        case {"hints": int(hints), "solved": bool(solved), **others} if not others and hints >= 0:
            return Attempt(int(hints), solved)
    raise ValueError("JSON with an attempt without exactly the fields hints and solved")
