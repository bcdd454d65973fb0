"""The compiled library, which is found, checked and loaded when this module is imported, in well under 1 ms."""

import ctypes
import os
import sys
from pathlib import Path

import torch

from heedful.errors import ArgumentError, KernelError
from heedful.kernels.native import structs
from heedful.masks import MAX_KEY_RANGES

FILE = "libheedful.so"
ABI = 2  # HEEDFUL_ABI of heedful.h, whose structs structs.py packs
ISAS: tuple[str, ...] = ("generic", "avx2", "avx512", "avx512bf16")  # in ascending order of speed
_STATUS_MESSAGES = {  # heedful_status of heedful.h
    1: "ran out of memory for its scratch: free some",
    2: "does not support this dtype",
    3: f"supports at most {MAX_KEY_RANGES} key ranges per query",
    4: "supports head sizes of at least 1, and tensors of at most 2**48 numbers",
    5: "expects a number of key heads that divides the number of query heads",
    6: "expects strides that are not negative, within 2**48 numbers, and results that do not overlap",
    7: "misses a tensor that it needs",
    8: "expects a dropout probability from 0 to 1",
}


def _open() -> ctypes.CDLL:
    """Load the library from beside this file, or from where an editable install put it.

    Raises:
        KernelError: the library is missing, cannot be loaded, or does not fit this package.
    """
    folders = sys.modules[__name__.rpartition(".")[0]].__path__
    path = next((path for folder in folders if (path := Path(folder) / FILE).exists()), None)
    if path is None:
        raise KernelError(
            "the native library is not installed, because it could not be compiled during the installation of heedful: "
            "install a C++20 compiler such as g++, then reinstall heedful"
        )
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelError(f"the native library cannot be loaded: {error}") from error
    _check_interface(library, path)
    library.heedful_isa.restype = ctypes.c_char_p
    return library


def _check_interface(library: ctypes.CDLL, path: Path) -> None:
    """Raise KernelError unless the library was compiled for the interface that this package uses."""
    for function, expected, quantity in (
        ("heedful_abi", ABI, "version of the interface"),  # first: older libraries lack the others
        ("heedful_max_key_ranges", MAX_KEY_RANGES, "maximum number of key ranges"),
        ("heedful_problem_size", structs.PROBLEM.size, "size of heedful_problem"),
        ("heedful_gradient_size", structs.GRADIENT.size, "size of heedful_gradient"),
    ):
        received = library[function]()
        if received != expected:
            raise KernelError(
                f"the native library {path} does not fit this package: its {quantity} is {received}, not {expected}; "
                "reinstall heedful"
            )


def check(status: int) -> None:
    """Raise KernelError if a function of the library returned anything but HEEDFUL_OK."""
    if status:
        message = _STATUS_MESSAGES.get(status, f"failed with status {status}")
        raise KernelError(f"the native kernel {message}")


def _torch_parallel_for() -> int:
    """Return the address of Torch's parallel loop: a second pool of threads would compete with Torch's."""
    torch_c = ctypes.CDLL(torch._C.__file__)  # links the library that defines the loop
    loop = torch_c.torch_parallel_for
    return ctypes.cast(loop, ctypes.c_void_p).value or 0


def isas() -> list[str]:
    """Return the instruction sets that both the library and the machine have, in ascending order of speed."""
    current = library.heedful_isa()
    supported = [name for name in ISAS if library.heedful_use_isa(name.encode()) == 0]
    library.heedful_use_isa(current)
    return supported


def use_isa(name: str) -> None:
    """Use another instruction set from now on, in the whole process.

    Args:
        name: one of `isas()`.

    Raises:
        ArgumentError: the library or the machine does not have the instruction set.
    """
    if library.heedful_use_isa(name.encode()):
        raise ArgumentError(
            "HEEDFUL_ISA",
            expected=f"one of {', '.join(isas())}",
            received=repr(name),
            remedy="Unset the variable to use the fastest.",
        )
    global isa
    isa = name


def _use_one_thread() -> None:
    """Run on the calling thread alone, in a forked child: it has no threads of Torch's pool and would wait forever."""
    global parallel_for
    parallel_for = 0


library: ctypes.CDLL  # unset if `missing` is not None
missing: str | None = None  # the reason why there is no library
isa: str | None = None  # the instruction set in use
parallel_for: int = _torch_parallel_for()  # an address; 0: run on the calling thread
try:
    library = _open()
except KernelError as _reason:
    missing = str(_reason)
else:
    os.register_at_fork(after_in_child=_use_one_thread)
    use_isa(os.environ.get("HEEDFUL_ISA") or library.heedful_isa().decode())
