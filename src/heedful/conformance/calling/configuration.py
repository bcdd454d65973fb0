"""A configuration with conventional values, as constructors and calls read it."""

from __future__ import annotations

from typing import Any

from heedful.conformance.calling.conventional import GUESSES, value_by_name
from heedful.conformance.calling.options import constructor_with
from heedful.errors import ArgumentError


class Configuration(dict[str, Any]):
    """A configuration that code can read as `config.n_embd` or as `config["n_embd"]`.

    Attributes:
        names_read: What has been read so far: the other values say nothing about the code that holds the configuration.
    """

    names_read: set[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.names_read = set()

    def __getitem__(self, name: str) -> Any:
        self.names_read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value; the default without one."""
        if name not in self:
            return default
        return self[name]

    def __missing__(self, name: str) -> Any:
        raise _unknown(name)

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(str(_unknown(name)), name=name, obj=self)


class Section(Configuration):
    """A part of a configuration, as in `config.model["n_embd"]`; it has a value for each name."""

    def __missing__(self, name: str) -> Any:
        value = value_by_name(name, self)
        return GUESSES[0] if value is None else value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python looks for, such as __deepcopy__
            raise AttributeError(name)
        return self[name]


def _unknown(name: str) -> ArgumentError:
    return ArgumentError(
        name,
        expected=f"a value for the configuration's {name!r}",
        received="no value, and the name is not a conventional one",
        remedy=f"Give the value: {constructor_with(name)}.",
    )
