"""A library that is damaged, old or told to use an unknown instruction set: heedful works without it and says why."""

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import heedful
from heedful.errors import ArgumentError, KernelError
from heedful.kernels.native import library

pytestmark = pytest.mark.skipif(
    library.missing is not None, reason=f"the native library is missing: {library.missing}"
)
elf_only = pytest.mark.skipif(sys.platform != "linux", reason="only ELF files are checked")
PROGRAM = """
import json, torch, heedful
from typer.testing import CliRunner
from heedful.cli import app
query = torch.randn(1, 2, 5, 8)
plan = heedful.explain(query, query, query)
try:
    heedful.attention(query, query, query, kernel="native")
except heedful.KernelError as error:
    refusal = str(error)
print(json.dumps({
    "file": heedful.__file__,
    "kernel": plan.kernel,
    "reason": dict(plan.others)["native"],
    "refusal": refusal,
    "info": CliRunner().invoke(app, ["info"]).stdout,
    "version": CliRunner().invoke(app, ["--version"]).stdout,
    "finite": heedful.attention(query, query, query).isfinite().all().item(),
}))
"""


def built() -> bytes:
    return Path(library.library._name).read_bytes()


@pytest.fixture
def package(tmp_path) -> Path:
    """Copy the package without its library, and return the copy's folder and that of the library."""
    source = Path(heedful.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", "libheedful.so")
    shutil.copytree(source, tmp_path / "heedful", ignore=ignored)
    return tmp_path


def assert_works_without(folder: Path, *reasons: str, **environment: str) -> None:
    """Assert that attention runs on another kernel, and that all answers give the reasons."""
    path = os.pathsep.join([str(folder), *sys.path[1:]])
    done = subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM],
        env=os.environ | {"PYTHONPATH": path} | environment,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    printed = json.loads(done.stdout)
    assert Path(printed["file"]).is_relative_to(folder)
    assert printed["kernel"] == "torch_sdpa"
    assert printed["finite"]
    assert heedful.__version__ in printed["version"]
    assert f"{printed['reason']}. These can: " in printed["refusal"]
    for reason in reasons:
        assert reason in printed["reason"]
        assert reason in " ".join(
            printed["info"].split()
        )  # which is folded to the terminal's columns


def halved(content: bytes) -> bytes:
    return content[: len(content) // 2]


def without_backward(content: bytes) -> bytes:
    assert b"heedful_backward\0" in content
    return content.replace(b"heedful_backward\0", b"heedful_backwarD\0")


@elf_only
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (halved, "is truncated: its headers describe"),
        (without_backward, "it has no function heedful_backward; reinstall heedful"),
        (lambda content: b"", "cannot be loaded"),
    ],
    ids=["truncated", "a missing function", "empty"],
)
def test_heedful_works_without_a_damaged_library(
    package: Path, damage: Callable[[bytes], bytes], reason: str
):
    (package / "heedful/kernels/native/libheedful.so").write_bytes(damage(built()))
    assert_works_without(package, reason)


def test_heedful_works_with_an_unknown_instruction_set_in_the_environment(package):
    shutil.copy(library.library._name, package / "heedful/kernels/native/libheedful.so")
    known = ", ".join(library.isas())
    expected = f"HEEDFUL_ISA: expected one of {known}; received 'sse9'"
    assert_works_without(package, expected, "Unset the variable", HEEDFUL_ISA="sse9")


def test_an_instruction_set_that_the_processor_lacks_is_refused(package):
    shutil.copy(library.library._name, package / "heedful/kernels/native/libheedful.so")
    lacking = next(name for name in reversed(library.ISAS) if name not in library.isas())
    reason = f"received '{lacking}'. This processor has no {lacking}"
    assert_works_without(package, reason, HEEDFUL_ISA=lacking)


def test_without_torchs_parallel_loop_the_reason_is_said(package):
    shutil.copy(library.library._name, package / "heedful/kernels/native/libheedful.so")
    file = package / "heedful/kernels/native/library.py"
    file.write_text(file.read_text().replace("torch_parallel_for\n", "torch_other\n"))
    assert_works_without(package, "torch's parallel loop was not found", "install torch 2.10")


@elf_only
def test_every_truncation_is_found_before_the_file_is_loaded(tmp_path):
    content, path = built(), tmp_path / "library.so"
    path.write_bytes(content)
    library._check_length(path)
    sizes = [*range(64, len(content), 9973), len(content) - 1]
    for size in reversed(sizes):
        os.truncate(path, size)
        with pytest.raises(KernelError, match=r"truncated.*reinstall heedful"):
            library._check_length(path)


@elf_only
def test_a_library_without_section_headers_is_checked_by_its_segments(tmp_path):
    """A tool may strip the section headers, which are last in the file."""
    content = bytearray(built())
    (sections,) = struct.unpack_from("=Q", content, 40)
    content[40:48] = bytes(8)  # e_shoff
    content[60:62] = bytes(2)  # e_shnum
    path = tmp_path / "library.so"
    path.write_bytes(content[:sections])
    library._check_length(path)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(KernelError, match="truncated"):
        library._check_length(path)


def test_files_of_other_formats_are_left_to_the_system(tmp_path):
    path = tmp_path / "library.so"
    for content in (b"", b"\x7fELF", b"MZ" + bytes(100), b"\x7fELF\x01" + bytes(100)):
        path.write_bytes(content)
        assert library._check_length(path) is None


def test_a_folder_in_place_of_the_library_is_no_library(tmp_path, monkeypatch):
    folder = tmp_path / "libheedful.so"
    folder.mkdir()
    monkeypatch.setattr(library, "FILE", str(folder))
    with pytest.raises(KernelError, match="not a regular file"):
        library._open()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_in_place_of_the_library_is_not_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(library, "FILE", str(tmp_path / "pipe"))
    with pytest.raises(KernelError, match="not a regular file"):
        library._open()


@pytest.mark.parametrize("name", ["sse9", "", "avx2\0", "\udcff"])
def test_an_unknown_instruction_set_is_an_error_and_changes_nothing(name):
    before = library.isa
    with pytest.raises(ArgumentError, match=r"expected one of generic.*Unset the variable"):
        library.use_isa(name)
    assert library.isa == before == library.library.heedful_isa().decode()
