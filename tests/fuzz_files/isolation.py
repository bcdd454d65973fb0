"""Runs a function in a forked process that is limited in time and memory, and says what it did wrong."""

import faulthandler
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heedful.errors import HeedfulError
from heedful.screen import visible

SECONDS = 10  # of the processor
WAITING = 20  # times as long may pass, because other programs may occupy the processor
MEMORY = 1 << 30  # bytes that the function may allocate
LONGEST = 2_000  # characters of an error's message
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Audit events of Python: what starts a program or talks to the network, and what changes files.
EXECUTING = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "subprocess.Popen",
    "socket.connect",
)
CHANGING = (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.truncate",
    "os.chmod",
    "os.chown",
    "os.link",
    "os.symlink",
)


def fault(act: Callable[[], object], folder: Path, seconds: float = SECONDS) -> str | None:
    """Return what an action does wrong, or None if it ends well or with an error of heedful.

    Args:
        act: The action. It may change nothing but what its process alone sees, and files in the folder.
        folder: A folder.
        seconds: The processor's time that it may take.
    """
    answer, send = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(answer)
        _judge(act, folder, seconds, send)
    os.close(send)
    with open(answer, "rb") as file:
        found = file.read().decode(errors="replace")
    _, status, _ = os.wait4(process, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return (
            f"takes longer than {seconds:g} s"
            if name in ("SIGPROF", "SIGALRM")
            else f"ends the process with {name}"
        )
    if os.WEXITSTATUS(status):
        return f"ends the process with exit code {os.WEXITSTATUS(status)}"
    return found or None


def _judge(act: Callable[[], object], folder: Path, seconds: float, send: int) -> None:
    """Run the action in this process, send what is wrong, and end."""
    faulthandler.disable()
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)
    _limit(seconds)
    deeds: list[str] = []
    sys.dont_write_bytecode = True
    sys.addaudithook(_watch(folder.resolve(), deeds))
    try:
        found = _outcome(act)
    except BaseException as error:  # noqa: BLE001 - whatever is raised is a finding
        where = traceback.extract_tb(error.__traceback__)[-1]
        found = f"{type(error).__name__} at {where.filename}:{where.lineno}: {str(error)[:300]}"
    os.write(send, "; ".join([*deeds, found] if found else deeds)[:60_000].encode(errors="replace"))
    os._exit(0)


def _outcome(act: Callable[[], object]) -> str:
    try:
        act()
    except HeedfulError as error:
        message = visible(str(error))  # as the command line prints it
        message.encode()
        return (
            ""
            if len(message) <= LONGEST
            else f"an error of {len(message)} characters: {message[:300]}"
        )
    return ""


def _limit(seconds: float) -> None:
    """Let the kernel end this process after some seconds, and refuse it more memory than it has and `MEMORY`."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, WAITING * seconds)


def _watch(folder: Path, deeds: list[str]) -> Callable[[str, tuple[Any, ...]], None]:
    """Return an audit hook that prevents and lists programs, connections and changes of files outside the folder."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            forbidden = (
                bool(flags & WRITING) and not isinstance(path, int) and _outside(path, folder)
            )
        elif event in CHANGING:
            paths = [path for path in arguments if isinstance(path, str | bytes | os.PathLike)]
            forbidden = any(_outside(path, folder) for path in paths)
        else:
            forbidden = event in EXECUTING
        if forbidden:
            deeds.append(f"{event} {arguments!r:.200}")
            raise PermissionError(f"the fuzzer forbids {event}")

    return hook


def _outside(path: Any, folder: Path) -> bool:
    return not Path(os.path.realpath(os.fsdecode(path))).is_relative_to(folder)
