"""A test that runs the C++ core's own tests with AddressSanitizer and UndefinedBehaviorSanitizer."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

missing = [tool for tool in ("g++", "make") if not shutil.which(tool)]


@pytest.mark.skipif(bool(missing), reason=f"needs {missing}; install: apt install g++ make")
def test_the_cpp_tests_pass_with_sanitizers():
    run = subprocess.run(
        ["make", "--silent", "test-native"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    assert ", 0 failed" in run.stdout
