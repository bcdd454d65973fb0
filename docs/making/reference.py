"""Which names the reference documents."""

import re
from importlib import import_module
from pathlib import Path

REFERENCE = Path(__file__).parents[1] / "reference"
DIRECTIVE = re.compile(r"^\.\. auto(?:function|class|exception|data):: heedful\.([\w.]+)$", re.M)
MODULE = re.compile(r"^\.\. automodule:: heedful\.([\w.]+)\n   :members:$", re.M)


def documented() -> dict[str, object]:
    """Return the objects that pages of the reference document, by the names that they have there."""
    found = {}
    for page in sorted(REFERENCE.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for name in DIRECTIVE.findall(text):
            found[f"heedful.{name}"] = _object(name)
        for name in MODULE.findall(text):
            module = import_module(f"heedful.{name}")
            names = getattr(module, "__all__", None) or _own_names(module)
            found |= {f"heedful.{name}.{it}": getattr(module, it) for it in names}
    return found


def _object(name: str) -> object:
    package, _, last = f"heedful.{name}".rpartition(".")
    return getattr(import_module(package), last)


def _own_names(module) -> list[str]:
    """Return the public names that a module defines itself."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
