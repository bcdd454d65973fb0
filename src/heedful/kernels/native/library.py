"""The compiled library: found, checked and opened when this module is imported, which takes well under 1 ms."""

import ctypes
import os
import sys
from pathlib import Path

import torch

from heedful.errors import ArgumentError, KernelError

FILE = "libheedful.so"
ABI = 1  # HEEDFUL_ABI of heedful.h, whose structs structs.py describes
ISAS = ("generic", "avx2", "avx512", "avx512bf16")  # the best last


def _open() -> ctypes.CDLL:
    """The library beside this file, or where an editable install put it; KernelError says why there is none."""
    folders = sys.modules[__name__.rpartition(".")[0]].__path__
    path = next((path for folder in folders if (path := Path(folder) / FILE).exists()), None)
    if path is None:
        raise KernelError(
            "the native library is not installed, for it could not be compiled when heedful was: "
            "install a C++20 compiler such as g++, then reinstall heedful"
        )
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelError(f"the native library cannot be loaded: {error}") from error
    if library.heedful_abi() != ABI:
        raise KernelError(
            f"the native library {path} has version {library.heedful_abi()} of its interface, "
            f"and this package expects {ABI}: reinstall heedful"
        )
    library.heedful_isa.restype = ctypes.c_char_p
    return library


def _parallel_for() -> int:
    """The address of Torch's own parallel loop: a second pool of threads would only fight with the first. 0: none."""
    loop = ctypes.CDLL(torch._C.__file__).torch_parallel_for  # from a library that torch._C needs
    return ctypes.cast(loop, ctypes.c_void_p).value or 0


def isas() -> list[str]:
    """The instruction sets that this library and machine have, the best last."""
    now = library.heedful_isa()
    able = [name for name in ISAS if library.heedful_use_isa(name.encode()) == 0]
    library.heedful_use_isa(now)
    return able


def use_isa(name: str) -> None:
    """Use another instruction set from now on, in the whole process.

    Raises:
        ArgumentError: the library or the machine does not have it; the text lists what there is.
    """
    if library.heedful_use_isa(name.encode()):
        raise ArgumentError(
            "HEEDFUL_ISA",
            expected=f"one of {', '.join(isas())}",
            received=repr(name),
            remedy="Unset it, and the best is used.",
        )
    global isa
    isa = name


def _stay_on_one_thread() -> None:
    """In a forked child: the threads of Torch's pool did not come along, and waiting for them would be for ever."""
    global parallel_for
    parallel_for = 0


library: ctypes.CDLL
missing: str | None = None  # why there is no library
isa: str | None = None  # the instruction set in use
parallel_for = _parallel_for()
try:
    library = _open()
except KernelError as error:
    missing = str(error)
else:
    os.register_at_fork(after_in_child=_stay_on_one_thread)
    use_isa(os.environ.get("HEEDFUL_ISA") or library.heedful_isa().decode())
