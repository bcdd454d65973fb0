"""Bugs of public projects, re-created from their issues and fixes: each a module, before and after the fix.

`known/` and `held_out/` list them. No code is copied. A file in `bugs/` is written in the style of the project and
holds both versions of the lines that the fix changed, between the comments `# before`, `# after` and `# end`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

BUGS = Path(__file__).parent / "bugs"
Version = Literal["before", "after"]


@dataclass(frozen=True)
class Case:
    """A bug of a public project.

    Attributes:
        name: The stem of the file in `bugs/`.
        entry: The name of the class that is checked.
        reference: The issue or pull request that the bug is known from.
        bug: The name of the finding that describes the bug.
        known_as: The names of other findings that describe the bug fairly.
        options: What a user would state: the options of check().
        example: A function that returns the example of a user who gives one.
    """

    name: str
    entry: str
    reference: str
    bug: str
    known_as: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    example: Callable[[], tuple[Any, ...]] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all findings that describe the bug."""
        return self.bug, *self.known_as

    def source(self, version: Version) -> str:
        """Return the source of one version, without the comments that mark the lines of the fix."""
        return "".join(line for line, _ in self._marked(version))

    @property
    def lines(self) -> range:
        """The lines that the fix changes, in the source before the fix."""
        numbers = [n for n, (_, changed) in enumerate(self._marked("before"), 1) if changed]
        return range(numbers[0], numbers[-1] + 1)

    def check_options(self) -> dict[str, Any]:
        """Return the options of check(), with the example."""
        return self.options if self.example is None else {**self.options, "example": self.example()}

    def load(self, version: Version, folder: Path) -> ModuleType:
        """Write one version to a file in a folder and import it."""
        path = folder / f"{self.name}_{version}.py"
        path.write_text(self.source(version))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module

    def _marked(self, version: Version) -> list[tuple[str, bool]]:
        """Return the lines of one version, each with whether the fix changes it."""
        lines, region = [], ""
        for line in (BUGS / f"{self.name}.py").read_text().splitlines(keepends=True):
            marker = line.strip().removeprefix("# ")
            if line.strip().startswith("# ") and marker in ("before", "after", "end"):
                region = marker
            elif region in ("", "end", version):
                lines.append((line, region == version))
        return lines


def sizes(**arguments: Any) -> dict[str, Any]:
    """Return the option that states the arguments of the constructor."""
    return {"arguments": arguments}


def image() -> tuple[Any, ...]:
    """Return two feature maps of 4 × 4 pixels."""
    return (torch.randn(2, 16, 4, 4),)


def edges() -> tuple[Any, ...]:
    """Return the features of 5 nodes and the sources and targets of 8 edges."""
    ends = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 4], [1, 2, 3, 4, 0, 2, 4, 1]])
    return torch.randn(5, 16), ends
