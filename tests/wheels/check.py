"""Check built wheels: one for each processor, with a manylinux tag; this machine's is installed and run, and the Arm
library is loaded on an emulated processor.

python tests/wheels/check.py dist
"""

import os
import platform
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
LIBRARY = "heedful/kernels/native/libheedful.so"
EMULATOR = ["qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu", "-cpu", "max"]
# A program that prints the instruction set that a library has chosen.
LOADER = """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **arguments) {
    void *library = dlopen(arguments[1], RTLD_NOW);
    if (!library) return puts(dlerror()), 1;
    puts(((const char *(*)(void))dlsym(library, "heedful_isa"))());
}
"""


def wheel_for(processor: str, folder: Path) -> Path:
    """Return the wheel for a processor, which has a manylinux tag."""
    (wheel,) = folder.glob(f"heedful-*-py3-none-manylinux*_{processor}.whl")
    return wheel


def install_and_run(wheel: Path, folder: Path) -> None:
    """Install a wheel in an empty environment, where no compiler is on the path, and compute with it."""
    venv.create(folder, with_pip=True)
    python, path = folder / "bin/python", {"PATH": str(folder / "bin")}
    constraints = HERE.parents[1] / "constraints.txt"
    command = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--only-binary=:all:",
        "--constraint",
        constraints,
    ]
    subprocess.run([*command, wheel], env=os.environ | path, check=True)
    subprocess.run([python, HERE / "smoke.py"], env=os.environ | path, cwd=folder, check=True)


def load_on_arm(wheel: Path, folder: Path) -> None:
    """Load a wheel's library on an emulated Arm processor."""
    zipfile.ZipFile(wheel).extract(LIBRARY, folder)
    (folder / "load.c").write_text(LOADER)
    compiler = ["aarch64-linux-gnu-g++", "-x", "c", folder / "load.c", "-o", folder / "load"]
    subprocess.run(compiler, check=True)
    loaded = subprocess.run(
        [*EMULATOR, folder / "load", folder / LIBRARY], capture_output=True, text=True, check=False
    )
    if loaded.stdout.strip() != "neon_bf16":
        raise SystemExit(f"expected the library to choose neon_bf16, received {loaded}")
    print(wheel.name, "is loaded on Arm and chooses neon_bf16")


def main(folder: Path) -> None:
    """Check the wheels in a folder."""
    with tempfile.TemporaryDirectory() as temporary:
        load_on_arm(wheel_for("aarch64", folder), Path(temporary))
        install_and_run(wheel_for(platform.machine(), folder), Path(temporary) / "empty")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
