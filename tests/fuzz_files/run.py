"""Searches for damaged files that heedful does not refuse as it should: it damages good ones as each seed says.

PYTHONPATH=tests .venv/bin/python -m fuzz_files.run                        # make fuzz-files: goes on where it stopped
PYTHONPATH=tests .venv/bin/python -m fuzz_files.run --first 0 --last 999   # these seeds
PYTHONPATH=tests .venv/bin/python -m fuzz_files.run --first 7 --last 7     # one case again; its files stay in build/

A file is either read, or refused by a `HeedfulError` that fits on a screen: within 10 s and 1 GiB, without running a
program, and without changing a file outside the case's folder.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from fuzz.run import FOREVER, Progress, advance, read_position
from fuzz_files import isolation
from fuzz_files.damage import hurt
from fuzz_files.formats import FORMATS

FOLDER = Path("build/fuzz-files")


class Cases:
    """The cases: one for each seed.

    Args:
        good: An empty folder for the good files of each format.
    """

    def __init__(self, good: Path) -> None:
        os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"}
        torch.set_num_threads(1)  # the forked processes have no other threads
        self._good = good
        for form in FORMATS:
            (good / form.name).mkdir(parents=True)
            form.write(good / form.name)
        self._files = [
            path for path in sorted(good.rglob("*")) if path.suffix != ".so" and path.is_file()
        ]

    def run(self, seed: int, folder: Path) -> tuple[str, str | None]:
        """Run the case of a seed.

        Args:
            seed: The seed.
            folder: Its files are written here; what was there is removed.

        Returns:
            What was damaged and how; and what went wrong, or None.
        """
        shutil.rmtree(folder, ignore_errors=True)
        form = FORMATS[seed % len(FORMATS)]
        shutil.copytree(self._good / form.name, folder)
        rng = np.random.default_rng(seed)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        path = files[rng.integers(len(files))]
        case = f"{form.name}/{path.relative_to(folder)}: {hurt(rng, path, self._files)}"
        return case, isolation.fault(lambda: form.read(folder), folder)


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--first", type=int, help="the first seed; default: go on after the last")
    parser.add_argument("--last", type=int, default=FOREVER, help="the last seed")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="for the next seed and the files of a case"
    )
    arguments = parser.parse_args()
    position = arguments.folder / "position" if arguments.first is None else None
    first = read_position(position) if position else arguments.first
    progress = Progress(first, [])
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as good:
            fuzz(
                progress,
                Cases(Path(good) / "good"),
                arguments.last,
                began + 60 * arguments.minutes,
                arguments.folder,
                position,
            )
    except KeyboardInterrupt:
        print("interrupted")
    count, minutes = progress.next_seed - first, (time.monotonic() - began) / 60
    print(
        f"{count} damaged files (seeds {first} to {progress.next_seed - 1}) in {minutes:.1f} minutes: "
        f"{len(progress.failures)} failures"
    )
    return 1 if progress.failures else 0


def fuzz(
    progress: Progress,
    cases: Cases,
    last: int,
    deadline: float,
    folder: Path,
    position: Path | None,
) -> None:
    """Run seeds up to the last or until the deadline; print and keep their failures."""
    while progress.next_seed <= last and time.monotonic() < deadline:
        seed = progress.next_seed
        case, fault = cases.run(seed, folder / "case")
        if fault:
            again = (
                f"PYTHONPATH=tests .venv/bin/python -m fuzz_files.run --first {seed} --last {seed}"
            )
            progress.failures.append(f"seed {seed}, {case}: {fault}; again: {again}")
            print(progress.failures[-1].encode("unicode_escape").decode(), flush=True)
        elif last == seed:
            print(f"seed {seed}, {case}")
        advance(progress, seed, position)


if __name__ == "__main__":
    sys.exit(main())
