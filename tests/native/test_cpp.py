"""The C++ core's own tests, with every compiler and on every processor that this machine can run or emulate."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QEMU = "qemu-x86_64-static"
PACKAGES = {
    "g++": "g++",
    "g++-11": "g++-11",
    "clang++-14": "clang-14",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "qemu-aarch64-static": "qemu-user-static",
    QEMU: "qemu-user-static",
    "make": "make",
}


def needs(*tools: str) -> None:
    """Skip the test if any of the tools is missing."""
    missing = [tool for tool in tools if not shutil.which(tool)]
    if missing:
        packages = " ".join(PACKAGES[tool] for tool in missing)
        pytest.skip(f"needs {', '.join(missing)}; install: apt install {packages}")


def make(*arguments: str) -> str:
    """Run make without the settings of a make that runs this test, and return what it prints."""
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("MAKE")}
    command = ["make", "--silent", *arguments]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    return run.stdout


@pytest.mark.slow
def test_they_pass_with_sanitizers():
    needs("g++", "make")
    assert ", 0 failed" in make("test-native", "CXX=g++")


@pytest.mark.parametrize("compiler", ["g++-11", "clang++-14"])
def test_they_build_without_warnings_and_pass_with_the_oldest_compilers(compiler):
    needs(compiler, "make")
    assert ", 0 failed" in make("test-native", f"CXX={compiler}", "SANITIZERS=")


@pytest.mark.slow
def test_they_pass_on_an_emulated_arm_processor():
    needs("aarch64-linux-gnu-g++", "qemu-aarch64-static", "make")
    assert make("test-native-arm").count(", 0 failed") == 3


@pytest.mark.parametrize(
    ("processor", "isa"),
    [
        ("Nehalem", "generic"),
        ("Haswell", "avx2"),
        ("Haswell,-fma", "generic"),
        ("Haswell,-f16c", "generic"),
        ("Haswell,-xsave", "generic"),
    ],
)
def test_the_best_instruction_set_of_a_processor_is_chosen(processor, isa):
    needs("g++-11", "make", QEMU)
    run = make(
        "test-native", "CXX=g++-11", "SANITIZERS=", f"RUN={QEMU} -cpu {processor}", f"ISA={isa}"
    )
    assert ", 0 failed" in run
