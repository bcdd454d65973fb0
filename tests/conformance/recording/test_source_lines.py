"""The lines of a class, which are looked up in its file once for all its classes."""

import importlib.util
import inspect
import sys

import pytest

from heedful.conformance.recording.source import source_lines

SOURCE = """from functools import total_ordering


class Plain:
    size = 1


@total_ordering
class Decorated:
    class Inner:
        size = 2

    def __lt__(self, other):
        return True


def build():
    class Local:
        size = 3

    return Local


if True:
    class Twice:
        size = 4
else:
    class Twice:
        size = 5
"""


@pytest.mark.parametrize("name", ["Plain", "Decorated", "Decorated.Inner", "build()", "Twice"])
def test_they_are_those_of_inspect(tmp_path, name):
    file = tmp_path / "several_classes.py"
    file.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("several_classes", file)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "several_classes", module)
        spec.loader.exec_module(module)
        cls = eval(name, vars(module))
        assert source_lines(cls) == inspect.getsourcelines(cls)
