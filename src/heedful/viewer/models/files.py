"""Where the files of a model lie: in a folder, or in an installed Python package, which is not imported."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from heedful.errors import ArgumentError
from heedful.gpt.checkpoint import CONFIG, WEIGHTS, read_json
from heedful.gpt.pretrained import INDEX

OPTION = "--model"
EXPECTED = f"a folder with a {CONFIG}, safetensors and a tokenizer, or an installed package that carries one"
FOLDERS = 1000  # that are searched


class ModelFiles(NamedTuple):
    """The files of one model.

    Attributes:
        folder: The folder.
        config: The content of its config.json; empty for a GGUF file.
        gguf: The name of a GGUF file in it, which then is the whole model; None otherwise.
    """

    folder: Path
    config: dict[str, Any]
    gguf: str | None = None


def find_model(name: str) -> ModelFiles:
    """Return the files of a model.

    Args:
        name: A folder, or a package; its name may be written with hyphens.

    Raises:
        ArgumentError: There is no model, or there are several, or its files cannot be read without executing them.
    """
    folder = Path(name)
    if folder.is_dir():
        found = list(_models_in(folder)) or list(_models_below(folder))
        if not found:
            raise _without_model(folder)
    else:
        found = [it for place in _package_folders(name) for it in _models_below(Path(place))]
    if len(found) != 1:
        places = ", ".join(str(it.folder / (it.gguf or "")) for it in found)
        raise ArgumentError(
            OPTION,
            expected=EXPECTED,
            received=f"{name}, which has {len(found)} models: {places}"
            if found
            else f"the package {name}, which has none",
            remedy="Name the folder of the model.",
        )
    return found[0]


def _package_folders(name: str) -> list[str]:
    """Return the folders of an installed package; only a package within a package would have to be imported."""
    folders = [it for package in _import_names(name) for it in _folders_of(package)]
    if not folders:
        raise ArgumentError(
            OPTION,
            expected=EXPECTED,
            received=f"{name}, which is neither",
            remedy="Install the package with pip, or name an existing folder.",
        )
    return folders


def _import_names(name: str) -> list[str]:
    """Return what a package is imported as: by its own name, or by others that differ from what pip calls it."""
    package = name.replace("-", "_")
    try:
        files = importlib.metadata.files(name) or []
    except (importlib.metadata.PackageNotFoundError, ValueError):
        files = []
    others = sorted({it.parts[0] for it in files if it.name == "__init__.py"} - {package})
    return [it for it in (package, *others) if it.isidentifier()]


def _folders_of(package: str) -> list[str]:
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # of the modules that the interpreter runs, some have no specification
        return []
    return [] if spec is None else list(spec.submodule_search_locations or ())


def _models_below(folder: Path) -> Iterator[ModelFiles]:
    """Yield the models in a package, or in a folder such as one of the hub's cache."""
    places = (path for path in folder.rglob("*") if path.is_dir())
    for place in [folder, *sorted(islice(places, FOLDERS))]:
        yield from _models_in(place)


def _models_in(folder: Path) -> Iterator[ModelFiles]:
    """Yield the model with a config.json, or each GGUF file."""
    config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    if "model_type" in config:
        if (folder / WEIGHTS).is_file() or (folder / INDEX).is_file():
            yield ModelFiles(folder, config)
        elif any(folder.glob("*.bin")):
            raise ArgumentError(
                OPTION,
                expected=f"weights as {WEIGHTS}",
                received=f"weights as .bin in {folder}",
                remedy="A .bin file is a pickle, which can execute code when it is read. Save the model again with "
                "model.save_pretrained(folder), which writes safetensors.",
            )
        return
    for file in sorted(folder.glob("*.gguf")):
        yield ModelFiles(folder, {}, file.name)


def _without_model(folder: Path) -> ArgumentError:
    missing = (
        CONFIG
        if not (folder / CONFIG).is_file()
        else f"{WEIGHTS} beside a {CONFIG} that names a model_type"
    )
    return ArgumentError(
        OPTION,
        expected=EXPECTED,
        received=f"{folder}, which has no {missing}",
        remedy="Save the model there with model.save_pretrained(folder) and tokenizer.save_pretrained(folder).",
    )
