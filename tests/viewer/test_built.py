"""The script in the package is the one that viewer/ builds, and its tests know what PyTorch gives."""

import hashlib
import json
import re
from importlib import resources
from pathlib import Path

from viewer.expected import FILE, expected

SOURCES = Path(__file__).parents[2] / "viewer"
BUILT = resources.files("heedful.viewer")


def test_the_script_is_not_stale():
    digest = hashlib.sha256()
    for file in [*sorted((SOURCES / "src").iterdir()), SOURCES / "package-lock.json"]:
        digest.update(file.read_bytes())
    first = BUILT.joinpath("viewer.js").read_text("utf-8").partition("\n")[0]
    stale = "viewer/src has changed; run: cd viewer && npm ci && npm run build"
    assert first.endswith(digest.hexdigest()), stale


def test_the_script_can_stand_within_a_page():
    script = BUILT.joinpath("viewer.js").read_text("utf-8")
    assert not re.search("</script|<!--", script, re.IGNORECASE)


def test_the_licenses_of_what_is_inside_come_with_it():
    licenses = BUILT.joinpath("licenses.txt").read_text("utf-8")
    assert "@observablehq/plot 0.6.17 (ISC)" in licenses
    assert licenses.count("Permission to use, copy, modify") >= 25


def test_the_page_is_held_to_what_pytorch_gives():
    stored = json.loads(FILE.read_text("utf-8"))
    now = json.loads(json.dumps(expected()))
    assert stored["kept"] == now["kept"], "run: python tests/viewer/expected.py"
    for one, other in zip(stored["settings"], now["settings"], strict=True):
        assert one["change"] == other["change"]
        assert _close(one["output"], other["output"]), one["change"]
    assert all(_close(stored["linear"][name], now["linear"][name]) for name in now["linear"])


def _close(one, other) -> bool:
    if isinstance(one, list):
        return all(_close(a, b) for a, b in zip(one, other, strict=True))
    return one == other or abs(one - other) < 1e-12
