"""The package as pip installs it, with a compiler and without one."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAM = """
import json, torch, heedful
query = torch.randn(1, 2, 5, 8)
plan = heedful.explain(query, query, query)
print(json.dumps({
    "file": heedful.__file__,
    "kernel": plan.kernel,
    "others": dict(plan.others),
    "finite": heedful.attention(query, query, query).isfinite().all().item(),
}))
"""


def wheel(folder: Path, **environment: str) -> tuple[Path, str]:
    """Build a wheel of this checkout in a folder, and return its path and what pip prints."""
    command = [sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps", str(ROOT)]
    command += ["--wheel-dir", str(folder), f"--config-settings=build-dir={folder / 'build'}"]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built, done.stdout + done.stderr


def run_attention(package: Path) -> dict:
    """Run attention in a process that imports the wheel's contents, and return what it prints."""
    unpacked = package.parent / "unpacked"
    zipfile.ZipFile(package).extractall(unpacked)
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path += {sys.path[1:]}\n{PROGRAM}"],
        env=os.environ | {"PYTHONPATH": str(unpacked)},
        cwd=package.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert Path(printed["file"]).is_relative_to(unpacked)
    assert printed["finite"]
    return printed


@pytest.mark.slow
def test_one_wheel_serves_all_pythons(tmp_path):
    package, _ = wheel(tmp_path)
    names = set(zipfile.ZipFile(package).namelist())
    assert package.name.split("-")[2:4] == ["py3", "none"]
    assert "any" not in package.stem.split("-")[4]
    tracked = subprocess.run(
        ["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert {name.removeprefix("src/") for name in tracked} <= names
    assert "heedful/kernels/native/libheedful.so" in names
    assert not any(name.endswith((".h", ".cpp")) for name in names)
    assert run_attention(package)["kernel"] == "native"


def test_without_a_compiler_it_installs_and_explains(tmp_path):
    package, printed_by_pip = wheel(tmp_path, CC="/bin/false", CXX="/bin/false")
    reason = "no working C++ compiler was found"
    assert reason in printed_by_pip
    printed = run_attention(package)
    assert printed["kernel"] == "torch_sdpa"
    assert reason in printed["others"]["native"]
    assert "apt install g++" in printed["others"]["native"]


def test_with_a_compiler_that_fails_it_installs_and_explains(tmp_path):
    """The compiler passes CMake's own checks, and fails on the library."""
    compiler = tmp_path / "g++"
    compiler.write_text('#!/bin/sh\ncase "$*" in *native*) exit 1;; esac\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    package, _ = wheel(tmp_path, CXX=str(compiler))
    assert package.name.endswith("py3-none-any.whl")
    printed = run_attention(package)
    assert printed["kernel"] == "torch_sdpa"
    assert "could not be compiled" in printed["others"]["native"]
    assert "pip install -v" in printed["others"]["native"]
