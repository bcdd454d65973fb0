"""Targets: what cases should reach, read from a TOML file such as the project's `benchmarks/targets.toml`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, get_args

from heedful.errors import ArgumentError
from heedful.reading import read_toml

Quantity = Literal["speed", "small", "share", "memory", "equal"]


@dataclass(frozen=True)
class BenchTarget:
    """A number that a case should reach.

    Attributes:
        quantity: "speed": the time of the peer `against` divided by ours, at least;
            "small": the same, except that a peer's very short time allows us a fixed number of microseconds more;
            "share": the share of the peak `against`, at least;
            "memory": the bytes that one call adds, at most;
            "equal": the results do not depend on the number of threads.
        bound: The number.
        against: A peer or a peak.
        reason: Why the target is missed where it is, as far as that was found out.
    """

    quantity: Quantity
    bound: float = 0.0
    against: str = ""
    reason: str = ""


@dataclass(frozen=True)
class BenchTargets:
    """The targets of all cases.

    Attributes:
        by_pattern: The targets of all cases whose name matches the pattern.
    """

    by_pattern: dict[str, tuple[BenchTarget, ...]]

    @classmethod
    def read(cls, path: Path) -> BenchTargets:
        """Read the targets from a TOML file, whose format `benchmarks/targets.toml` describes.

        Raises:
            ArgumentError: The file cannot be read, or is not a file of targets.
        """
        try:
            tables = read_toml(path)
        except (OSError, ValueError) as error:
            raise _unusable(path, str(error)) from error
        return cls(
            {pattern: tuple(_parse(path, pattern, table)) for pattern, table in tables.items()}
        )

    def of(self, case_name: str) -> tuple[BenchTarget, ...]:
        """Return the targets of a case."""
        return tuple(
            target
            for pattern, targets in self.by_pattern.items()
            if fnmatchcase(case_name, pattern)
            for target in targets
        )


def _parse(path: Path, pattern: str, table: Any) -> list[BenchTarget]:
    """Return the targets of one table of the file."""
    targets = []
    reason = table.get("reason", "") if isinstance(table, dict) else ""
    for quantity, value in table.items() if isinstance(table, dict) else [(pattern, table)]:
        match quantity, value:
            case (("speed" | "small" | "share"), dict()):
                for against, bound in value.items():
                    if type(bound) not in (int, float) or not abs(bound) <= sys.float_info.max:
                        raise _unusable(path, f"{quantity} = {{ {against} = {bound!r} }}")
                    targets.append(BenchTarget(quantity, float(bound), against, reason))
            case "memory", int() if value is not True:
                targets.append(BenchTarget("memory", value, reason=reason))
            case "equal", True:
                targets.append(BenchTarget("equal", reason=reason))
            case "reason", str():
                pass
            case _:
                raise _unusable(path, f"{quantity} = {value!r}")
    return targets


def _unusable(path: Path, received: str) -> ArgumentError:
    return ArgumentError(
        "--targets",
        expected=f"a TOML file of targets: {', '.join(get_args(Quantity))}; and a reason",
        received=f"{received} ({path})",
        remedy="benchmarks/targets.toml in heedful's repository describes the format.",
    )
