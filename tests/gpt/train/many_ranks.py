"""Processes that train as those that torchrun starts, and what they run; they start without importing torch again."""

import multiprocessing
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import TCPStore
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

from heedful.cli import app
from heedful.gpt.data.batches import IGNORED, Batches
from heedful.gpt.train import processes
from heedful.gpt.train.trainer import Trainer

TIMEOUT = 4.0  # seconds that a rank waits for another, in the tests of failures
GRACE = 1.0


def train(number: int, *arguments: str, failing: str = "") -> list[int]:
    """Run `heedful train` on ranks, and return their exit codes; what each of them prints is in out.0, err.0, ….

    Args:
        number: how many ranks there are.
        arguments: of the command.
        failing: how the last one fails; or what all of them do.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "many_ranks",
            "matplotlib.figure",
            "heedful.gpt.train.command",
            "heedful.gpt.train.many_ranks",
        ]
    )
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # torchrun keeps it
    failures = [
        failing if rank == number - 1 or failing in ON_ALL else "" for rank in range(number)
    ]
    members = [
        context.Process(
            target=_member,
            args=(rank, number, store.port, str(Path.cwd()), arguments, how, failing == "hangs"),
        )
        for rank, how in enumerate(failures)
    ]
    for member in members:
        member.start()
    for rank, member in enumerate(members):
        if not (failing == "hangs" and rank == number - 1):
            member.join(timeout=120)
            assert member.exitcode is not None, "a process hangs"
    members[-1].kill()  # as torchrun would
    members[-1].join()
    return [member.exitcode for member in members]


def _member(rank, number, port, folder, arguments, failing, hanging):
    os.chdir(folder)
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{name}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(number)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    processes.TIMEOUT = timedelta(seconds=TIMEOUT if hanging else 60)
    processes.GRACE = GRACE
    if failing:
        (FAILURES | ON_ALL)[failing]()
    app(["train", *arguments])


def _at_step(step: int, fail) -> None:
    """Fail before a step."""
    take_step = Trainer.take_step

    def failing(trainer):
        if trainer.step == step:
            Path("failed").touch()
            fail()
        return take_step(trainer)

    Trainer.take_step = failing


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise() -> None:
    raise ZeroDivisionError("on purpose")


def _die_while_writing() -> None:
    """Die while the second checkpoint is written."""
    write = HuggingFaceStorageWriter.write_data
    calls = iter(range(10))

    def failing(writer, plan, planner):
        if next(calls) == 1:
            write(writer, plan, planner).wait()
            written = next(iter(Path(writer.path).glob("shard-*")))
            os.truncate(written, written.stat().st_size // 2)
            _die()
        return write(writer, plan, planner)

    HuggingFaceStorageWriter.write_data = failing


FAILURES = {
    "dies": lambda: _at_step(7, _die),
    "raises": lambda: _at_step(7, _raise),
    "hangs": lambda: _at_step(7, lambda: time.sleep(120)),
    "is interrupted": lambda: _at_step(7, lambda: signal.raise_signal(signal.SIGINT)),
    "dies while it writes": _die_while_writing,
}


def _ignore_targets() -> None:
    """Ignore targets: other numbers of them in each batch, each row and each part of a row."""
    draw = Batches.__next__

    def ignoring(batches):
        batch = draw(batches)
        rows, columns = torch.arange(len(batch.targets)).view(-1, 1), torch.arange(32)
        ignored = columns < 9 * rows + batch.inputs[0, 0] % 7
        batch.targets[ignored] = IGNORED
        return batch

    Batches.__next__ = ignoring


ON_ALL = {"ignore targets": _ignore_targets}
