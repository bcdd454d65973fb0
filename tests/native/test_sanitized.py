"""The C++ core's own tests, under AddressSanitizer and UndefinedBehaviorSanitizer."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

missing = [tool for tool in ("g++", "make") if not shutil.which(tool)]


@pytest.mark.skipif(bool(missing), reason=f"needs {missing}; install: apt install g++ make")
def test_kernels_agree_with_the_plain_one_and_stay_within_their_tensors():
    run = subprocess.run(
        ["make", "--silent", "test-native"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    assert ", 0 failed" in run.stdout
