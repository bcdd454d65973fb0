"""The compiled library, which is found, checked and loaded when this module is imported, in well under 1 ms."""

import ctypes
import os
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

import torch

from heedful.errors import ArgumentError, KernelError
from heedful.kernels.native import structs
from heedful.masks import MAX_KEY_RANGES

FILE = "libheedful.dll" if sys.platform == "win32" else "libheedful.so"
ABI = 4  # HEEDFUL_ABI of heedful.h, whose structs structs.py packs
FUNCTIONS: tuple[str, ...] = (  # of the library, which this package calls
    *("heedful_abi", "heedful_max_key_ranges"),
    *("heedful_problem_size", "heedful_gradient_size", "heedful_summary_size"),
    *(
        "heedful_forward",
        "heedful_backward",
        "heedful_summarize",
        "heedful_forward_scratch",
        "heedful_isa",
        "heedful_use_isa",
    ),
    *("heedful_peak_fma", "heedful_peak_bf16", "heedful_stream_read"),
)
ISAS: tuple[str, ...] = (  # of all processors, in ascending order of speed
    *("generic", "avx2", "avx512", "avx512bf16", "amx"),
    *("neon", "neon_bf16"),
)
_STATUS_MESSAGES = {  # heedful_status of heedful.h
    1: "ran out of memory for its scratch: free some",
    2: "does not support this dtype",
    3: f"supports at most {MAX_KEY_RANGES} key ranges per query",
    4: "supports head sizes of at least 1, and tensors of at most 2**48 numbers",
    5: "expects a number of key heads that divides the number of query heads",
    6: "expects strides that are not negative, within 2**48 numbers, and results that do not overlap",
    7: "misses a tensor that it needs",
    8: "expects a dropout probability from 0 to 1",
    9: "expects counts, cells and places of a summary within int32",
}


def _open() -> ctypes.CDLL:
    """Load the library from beside this file, or from where an editable install put it.

    Raises:
        KernelError: the library is missing, is damaged, cannot be loaded, or does not fit this package.
    """
    folders = sys.modules[__name__.rpartition(".")[0]].__path__
    path = next((path for folder in folders if (path := Path(folder) / FILE).exists()), None)
    if path is None:
        raise KernelError(
            f"the native library is not installed, because {_why_not_compiled(folders)}: install g++ 11, clang 14 or "
            "newer ones, for example by `apt install g++`, then reinstall heedful with "
            "`pip install -v --no-cache-dir --force-reinstall --no-deps`, which shows what fails"
        )
    if not path.is_file():
        raise KernelError(
            f"the native library {path} is not a regular file; remove it and reinstall heedful"
        )
    try:
        _check_length(path)
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelError(f"the native library cannot be loaded: {error}") from error
    _check_functions(library, path)
    _check_interface(library, path)
    library.heedful_isa.restype = ctypes.c_char_p
    library.heedful_forward_scratch.argtypes = ctypes.c_char_p, ctypes.c_int64
    library.heedful_forward_scratch.restype = ctypes.c_int64
    return library


def _why_not_compiled(folders: Iterable[str]) -> str:
    """Return the reason that CMakeLists.txt has installed in place of the library, if there is one."""
    notes = (Path(folder) / "not-compiled.txt" for folder in folders)
    written = [note.read_text(encoding="utf-8").strip() for note in notes if note.is_file()]
    return written[0] if written else "it could not be compiled when heedful was installed"


def _check_length(path: Path) -> None:
    """Raise KernelError if the file is a 64-bit ELF file and shorter than its headers say.

    The loader maps such a file into memory, and reading the part that it lacks ends the process with SIGBUS. Files of
    other formats are not checked.
    """
    length = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(64)
        if len(header) < 64 or not header.startswith(b"\x7fELF\x02"):
            return
        order = "<" if header[5] == 1 else ">"
        segments, sections = struct.unpack_from(f"{order}QQ", header, 32)  # where their headers are
        sizes = struct.unpack_from(f"{order}4H", header, 54)
        segment_size, segment_count, section_size, section_count = sizes
        end = max(segments + segment_size * segment_count, sections + section_size * section_count)
        if segments + segment_size * segment_count <= length:
            file.seek(segments)
            for _ in range(segment_count):
                segment = file.read(segment_size).ljust(40, b"\0")
                offset, _, _, size = struct.unpack_from(f"{order}4Q", segment, 8)
                end = max(end, offset + size)
    if end > length:
        raise KernelError(
            f"the native library {path} is truncated: its headers describe {end} bytes, and it has {length}; "
            "reinstall heedful"
        )


def _check_functions(library: ctypes.CDLL, path: Path) -> None:
    """Raise KernelError unless the library has every function that this package calls."""
    for name in FUNCTIONS:
        if not hasattr(library, name):
            raise KernelError(
                f"the native library {path} does not fit this package: it has no function {name}; reinstall heedful"
            )


def _check_interface(library: ctypes.CDLL, path: Path) -> None:
    """Raise KernelError unless the library was compiled for the interface that this package uses."""
    for function, expected, quantity in (
        ("heedful_abi", ABI, "version of the interface"),
        ("heedful_max_key_ranges", MAX_KEY_RANGES, "maximum number of key ranges"),
        ("heedful_problem_size", structs.PROBLEM.size, "size of heedful_problem"),
        ("heedful_gradient_size", structs.GRADIENT.size, "size of heedful_gradient"),
        ("heedful_summary_size", structs.SUMMARY.size, "size of heedful_summary"),
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
    """Return the address of Torch's parallel loop: a second pool of threads would compete with Torch's.

    Raises:
        KernelError: this version of Torch has no such function.
    """
    # Linux and macOS also search the libraries that a library links, and torch._C links the one that defines the loop.
    path = torch._C.__file__
    if sys.platform == "win32":
        path = str(Path(torch.__file__).parent / "lib" / "torch_cpu.dll")
    try:
        loop = ctypes.CDLL(path).torch_parallel_for
    except (OSError, AttributeError) as error:
        raise KernelError(
            f"torch's parallel loop was not found: {error}; install torch 2.10 or newer"
        ) from error
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
    available = isas()
    if name not in available:
        raise ArgumentError(
            "HEEDFUL_ISA",
            expected=f"one of {', '.join(available)}",
            received=repr(name),
            remedy=(f"This processor has no {name}. " if name in ISAS else "")
            + "Unset the variable to use the fastest.",
        )
    library.heedful_use_isa(name.encode())
    global isa
    isa = name


def _use_one_thread() -> None:
    """Run on the calling thread alone, in a forked child: it has no threads of Torch's pool and would wait forever."""
    global parallel_for
    parallel_for = 0


library: ctypes.CDLL  # not to be used if `missing` is not None
missing: str | None = None  # the reason why the library cannot be used
isa: str | None = None  # the instruction set in use
parallel_for: int = 0  # the address of a function; 0: run on the calling thread
try:
    library = _open()
    parallel_for = _torch_parallel_for()
    use_isa(os.environ.get("HEEDFUL_ISA") or library.heedful_isa().decode())
except (KernelError, ArgumentError) as _reason:
    missing = str(_reason).removesuffix(".")
else:
    os.register_at_fork(after_in_child=_use_one_thread)
