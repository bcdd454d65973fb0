"""Runs PyTorch's own tests of attention plain, under accelerate() and with heedful's function, and compares outcomes.

PYTHONPATH=tests .venv/bin/python -m pytorch_suite.run ../pytorch     # make test-pytorch PYTORCH=../pytorch

PyTorch's tests are not part of its wheels: its source tree has them in test/. A test that fails in plain PyTorch, for
example because the tree is of another version than the installed torch, is named and not compared.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from pytorch_suite.substitution import MODES

FILES = {  # in test/, with the names of the tests to run
    "test_transformers.py": "",
    "nn/test_multihead_attention.py": "",
    "test_ops.py": "attention",
    "test_ops_gradients.py": "attention",
    "test_ops_fwd_gradients.py": "attention",
    "test_meta.py": "attention",
    "test_fake_tensor.py": "attention",
    "functorch/test_ops.py": "attention",
    "functorch/test_vmap.py": "attention",
}
ALLOWED = {  # patterns of tests whose outcome may differ, with the reason
    r"attention_\dD_.*_dropout_p_0_\d": "which weights a seed drops depends on the kernel",
    r"test_transformerencoderlayer_subclass": "it has dropout, and TorchScript runs PyTorch's kernel",
}

Outcomes = dict[str, tuple[str, str]]  # of each test: "passed", "skipped", … and the message


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pytorch", type=Path, help="a source tree of PyTorch")
    parser.add_argument("-k", dest="names", default="", help="run only the tests of these names")
    parser.add_argument("files", nargs="*", help="files in test/; default: those about attention")
    arguments = parser.parse_intermixed_args()
    folder = arguments.pytorch / "test"
    files = arguments.files or [name for name in FILES if (folder / name).exists()]
    if not files:
        parser.error(
            f"expected a source tree of PyTorch, but {folder} has none of {', '.join(FILES)}"
        )
    differences: list[str] = []
    print(
        f"{'':32}{'tests':>8}{'passed':>8}{'skipped':>8}{'failing in plain PyTorch':>26}{'differing':>11}"
    )
    for name in files:
        names = " and ".join(filter(None, (FILES.get(name, ""), arguments.names)))
        plain, *others = (outcomes(folder, name, names, mode) for mode in MODES)
        found = [
            line
            for mode, other in zip(MODES[1:], others, strict=True)
            for line in compare(plain, other, mode)
        ]
        count = [outcome for outcome, _ in plain.values()]
        failing = [test for test, (outcome, _) in plain.items() if outcome in ("failed", "crashed")]
        print(
            f"{name:32}{len(plain):8}{count.count('passed'):8}{count.count('skipped'):8}{len(failing):26}{len(found):11}",
            flush=True,
        )
        for test in failing:
            print(f"  fails in plain PyTorch: {test}")
        differences += found
    print(*differences, sep="\n")
    return 1 if differences else 0


def outcomes(folder: Path, file: str, names: str, mode: str) -> Outcomes:
    """Run a file of PyTorch's tests in a process of its own and return the outcome of every test."""
    with tempfile.TemporaryDirectory() as temporary:
        log = Path(temporary) / "outcomes"
        log.touch()
        command = (
            *(sys.executable, "-m", "pytest", "--quiet", "--noconftest", "-c", os.devnull),
            *("-p", "no:cacheprovider", "-p", "substitution", "--rootdir", "."),
            *(f"--attention={mode}", f"--outcomes={log}", "-k", names, file),
        )
        environment = os.environ | {
            "PYTHONPATH": str(Path(__file__).parent),
            "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cpu",
        }
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        lines = log.read_text(encoding="utf-8").splitlines()
    results: Outcomes = {}
    for test, outcome, message in map(json.loads, lines):
        if results.get(test, ("",))[0] != "failed":  # a failed part decides, whatever follows
            results[test] = outcome, message
    if not results and done.returncode != 5:  # 5: no test has such a name
        raise SystemExit(f"{file} cannot run:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return results


def compare(plain: Outcomes, other: Outcomes, mode: str) -> list[str]:
    """Return the differences of two runs, without tests that fail in plain PyTorch; print those that are allowed."""
    lines: list[str] = []
    for test, (outcome, _) in plain.items():
        received, message = other.get(test, ("not run", ""))
        if outcome in ("failed", "crashed") or received == outcome:
            continue
        reasons = [reason for pattern, reason in ALLOWED.items() if re.search(pattern, test)]
        if reasons:
            print(f"  may differ with {mode}: {test}: {reasons[0]}")
        else:
            lines.append(f"{test}: {outcome} in plain PyTorch, {received} with {mode}\n{message}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
