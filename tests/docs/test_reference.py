"""The reference documents everything public."""

import pkgutil
from importlib import import_module

import pytest

import heedful
from making.reference import documented

NOT_FOR_USERS = ("heedful.bench", "heedful.cli", "heedful.tour")
"""Packages of commands, whose parts import each other by these names."""


def public_packages() -> list[str]:
    """Return the packages that list what they offer, and the front door."""
    names = ["heedful"] + [
        found.name
        for found in pkgutil.walk_packages(heedful.__path__, "heedful.")
        if found.ispkg and not found.name.startswith(NOT_FOR_USERS)
    ]
    return [name for name in names if hasattr(import_module(name), "__all__")]


def test_the_public_packages_are_found():
    assert {"heedful", "heedful.masks", "heedful.nn", "heedful.parallel"} <= set(public_packages())


@pytest.mark.parametrize("package", public_packages())
def test_every_public_name_is_documented(package):
    module = import_module(package)
    objects = list(documented().values())
    missing = [
        name
        for name in module.__all__
        if not any(getattr(module, name) is known for known in objects)
    ]
    assert not missing, f"add {missing} of {package} to a page of docs/reference"
