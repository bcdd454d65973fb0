"""What a release consists of: one version, a changelog, licenses, metadata, and the files that publish it."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import heedful
from wheels.release import faults

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


@pytest.fixture
def checkout(tmp_path):
    """Return a copy of the files that a release is checked by, as they are once it can be published."""
    for name in ("pyproject.toml", "CHANGELOG.md", "src/heedful/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / name).read_text(encoding="utf-8").replace("/OWNER/", "/someone/")
        (tmp_path / name).write_text(
            text.replace("## [Unreleased]", f"## [{heedful.__version__}] - 2030-01-31"),
            encoding="utf-8",
        )
    return tmp_path


def test_a_complete_release_may_be_published(checkout):
    assert faults(f"v{heedful.__version__}", "someone/heedful", checkout) == []


@pytest.mark.parametrize(
    ("tag", "repository", "undone", "fault"),
    [
        ("v9.9", "someone/heedful", (), "has the version"),
        ("v9.9", "someone/heedful", (), "no heading ## [9.9]"),
        (f"v{heedful.__version__}", "else/heedful", (), "another project than else/heedful"),
        (f"v{heedful.__version__}", "someone/heedful", ("pyproject.toml",), "OWNER"),
        (f"v{heedful.__version__}", "someone/heedful", ("CHANGELOG.md",), "no heading"),
    ],
)
def test_an_incomplete_release_may_not(checkout, tag, repository, undone, fault):
    for name in undone:
        shutil.copy(ROOT / name, checkout / name)
    assert any(fault in line for line in faults(tag, repository, checkout))


def test_the_version_stands_in_one_place():
    assert "version" in SETTINGS["project"]["dynamic"]
    assert (
        SETTINGS["tool"]["scikit-build"]["metadata"]["version"]["input"]
        == "src/heedful/__init__.py"
    )
    assert re.fullmatch(r"\d+\.\d+\.\d+", heedful.__version__)


def test_the_changelog_has_the_usual_form():
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    versions = [line for line in lines if line.startswith("## ")]
    assert versions[0] == "## [Unreleased]"
    assert all(
        re.fullmatch(r"## \[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", line) for line in versions[1:]
    )
    assert {line[4:] for line in lines if line.startswith("### ")} <= KINDS


def test_links_of_the_readme_work_on_pypi():
    """Those to files lead to the released version, for which the program prints 42.0."""
    command = [sys.executable, "-m", "hatch_fancy_pypi_readme"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    links = re.findall(r"\]\(([^)]+)\)", done.stdout) + re.findall(
        r'(?:src|href)="([^"]+)"', done.stdout
    )
    assert any("/blob/v42.0/DESIGN.md" in link for link in links)
    assert all(re.match(r"https?:|#", link) for link in links)
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", done.stdout)
    pictures += re.findall(r'src="([^"]+)"', done.stdout)
    assert pictures
    assert all(link.startswith("https://raw.githubusercontent.com/") for link in pictures)


def test_all_that_is_bundled_has_a_license_that_permits_it():
    names = SETTINGS["project"]["license-files"]
    assert all((ROOT / name).stat().st_size for name in names)
    bundled = (ROOT / "src/heedful/viewer/licenses.txt").read_text(encoding="utf-8")
    licenses = re.findall(r"^[\w@/.-]+ [\d.]+ \((.+)\)$", bundled, flags=re.MULTILINE)
    assert len(licenses) > 20
    assert set(licenses) <= {"ISC", "MIT", "BSD-3-Clause"}


def test_the_citation_names_what_the_metadata_names():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["authors"] == SETTINGS["project"]["authors"]
    assert citation["license"] == SETTINGS["project"]["license"]
    assert (
        citation["title"] == f"heedful: {SETTINGS['project']['description'].replace('A', 'a', 1)}"
    )
    assert {"cff-version", "message"} <= set(citation)


@pytest.mark.parametrize(
    "form", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem
)
def test_issues_ask_for_the_installation(form):
    template = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(template)
    required = [
        it["attributes"]["label"] for it in template["body"] if it["validations"]["required"]
    ]
    assert "The output of `heedful info`" in required


def test_only_tested_wheels_of_a_tag_are_published():
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
    publish = workflow["jobs"]["publish"]
    assert set(publish["needs"]) == {"wheels", "source", "test"}
    assert publish["permissions"] == {
        "id-token": "write"
    }  # PyPI trusts the workflow; there is no password
    assert "tag" in publish["if"]
    for job in workflow["jobs"].values():
        assert (
            set(job.get("needs", [])) <= set(workflow["jobs"]) or job["needs"] in workflow["jobs"]
        )
        for step in job["steps"]:
            for path in re.findall(r"tests/\S+\.py", step.get("run", "")):
                assert (ROOT / path).exists()
