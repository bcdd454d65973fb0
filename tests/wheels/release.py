"""Check that a tag may be published: it is the version, the changelog describes it, and the links lead somewhere.

python tests/wheels/release.py v0.1.0 owner/heedful
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def faults(tag: str, repository: str, root: Path = ROOT) -> list[str]:
    """Return what keeps a tag of a repository on GitHub from being published."""
    source = (root / "src/heedful/__init__.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "(.+)"$', source, flags=re.MULTILINE)
    found = []
    if version is None or tag != f"v{version[1]}":
        found.append(f"src/heedful/__init__.py has the version {version and version[1]}, not {tag}")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = rf"^## \[{re.escape(tag.removeprefix('v'))}\] - \d{{4}}-\d\d-\d\d$"
    if not re.search(heading, changelog, flags=re.MULTILINE):
        found.append(f"CHANGELOG.md has no heading ## [{tag.removeprefix('v')}] - YEAR-MONTH-DAY")
    settings = (root / "pyproject.toml").read_text(encoding="utf-8")
    if "/OWNER/" in settings:
        found.append("pyproject.toml has OWNER in place of the owner in its links")
    elif tomllib.loads(settings)["project"]["urls"]["Source"] != f"https://github.com/{repository}":
        found.append(f"pyproject.toml links to another project than {repository}")
    return found


if __name__ == "__main__":
    sys.exit("\n".join(faults(*sys.argv[1:3])))
