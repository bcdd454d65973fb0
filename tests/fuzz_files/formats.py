"""The formats that heedful reads: for each, good files and a function that reads them as a user's command does."""

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from heedful import attention
from heedful.bench.targets import BenchTargets
from heedful.conformance.calling.loading import loaded
from heedful.conformance.practising.command import list_exercises
from heedful.conformance.practising.exercise import exercises
from heedful.conformance.practising.progress import Progress
from heedful.gpt import GPT, GPTConfig, checkpoint
from heedful.gpt.command import load_model
from heedful.gpt.data.books import read_books
from heedful.gpt.generation import GREEDY, generate
from heedful.gpt.tokenizer import ByteTokenizer, SubwordTokenizer, load_tokenizer
from heedful.gpt.train.config import TrainingConfig, preset, read_changes
from heedful.gpt.train.history import StepLosses
from heedful.gpt.train.progress import Clock
from heedful.gpt.train.run import begin_run, open_run
from heedful.kernels import native
from heedful.kernels.native import library
from heedful.tour.inputs import MAX_ENTRY, read_tokens

TEXT = "so it goes, aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab \u00e9\u4e16 <|endoftext|>\n"
TARGETS = Path(__file__).parents[2] / "benchmarks" / "targets.toml"
MODULE = (
    "import torch\n\n\nclass Head(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
)


@dataclass(frozen=True)
class Format:
    """A format, or files that are read together.

    Attributes:
        name: The name.
        write: Writes good files into a folder, the same in each process.
        read: Reads them, uses what it has read, and asserts that it makes sense.
    """

    name: str
    write: Callable[[Path], None]
    read: Callable[[Path], None]


# Models and tokenizers


def write_gpt2(folder: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 16}
    GPT2LMHeadModel(GPT2Config(vocab_size=300, **sizes)).save_pretrained(folder)
    write_tokenizer(folder)


def write_llama(folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
    }
    config = LlamaConfig(
        vocab_size=300, max_position_embeddings=16, tie_word_embeddings=False, **sizes
    )
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="8kB")
    assert (folder / "model.safetensors.index.json").exists()
    write_tokenizer(folder)


def write_checkpoint(folder: Path) -> None:
    torch.manual_seed(0)
    sizes = {"d_model": 8, "num_layers": 1, "num_heads": 2, "context_length": 16}
    checkpoint.save(GPT(GPTConfig.llama(vocab_size=257, num_kv_heads=1, **sizes)), folder)
    ByteTokenizer().save(folder)


def read_model(folder: Path) -> None:
    model, tokenizer = load_model(folder)
    prompt = tokenizer.encode("so it goes")
    (ids,) = generate(model, [prompt], tokens=3, sampling=GREEDY, stop=tokenizer.end_of_text)
    assert all(0 <= id < model.config.vocab_size for id in ids)
    assert isinstance(tokenizer.decode(ids), str)


def write_tokenizer(folder: Path) -> None:
    SubwordTokenizer.train(["to be or not to be"] * 3, vocab_size=260).save(folder)


def read_tokenizer(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    ids = tokenizer.encode(TEXT * 20)
    assert isinstance(tokenizer.decode(ids), str)
    stream = tokenizer.stream()
    assert isinstance("".join(map(stream.push, ids[:50])) + stream.end(), str)


# Training


def write_run(folder: Path) -> None:
    """Write a run that was interrupted after two steps."""
    write_book(folder / "books")
    model = {
        "d_model": 8,
        "num_layers": 1,
        "num_heads": 1,
        "num_kv_heads": 1,
        "d_mlp": 8,
        "context_length": 8,
    }
    config = TrainingConfig(
        model=model, vocab_size=260, batch_size=2, steps=4, evaluations=1, precision="float32"
    )
    begin_run(folder / "run", read_books([folder / "books"]), config)
    run = open_run(folder / "run", Clock())
    for _ in range(2):
        rate, loss = run.trainer.learning_rate, run.trainer.take_step()
        run.history.append(StepLosses(run.trainer.step, run.tokens, rate, loss))
    run.clock.spent.update(dict.fromkeys(run.clock.spent, 1.0))  # the same bytes in each process
    run.save()


def read_run(folder: Path) -> None:
    run = open_run(folder / "run", Clock())
    run.record.check_unchanged(read_books([folder / "books"]), {})
    assert run.trainer.step == len(run.history) == 2
    assert 0 < run.trainer.take_step() < 100
    read_model(folder / "run")


def write_book(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name in ("one", "two"):
        (folder / f"{name}.txt").write_text(f"{name}: {TEXT}" * 30, encoding="utf-8")


def read_book(folder: Path) -> None:
    for book in read_books([folder]):
        pieces = [*book.training(), *book.validation()]
        assert len("".join(pieces).encode()) == book.size


def write_config(folder: Path) -> None:
    settings = (
        "tokenizer = 'bpe'",
        "vocab_size = 300",
        "batch_size = 2",
        "learning_rate = 1e-3",
        "seed = 3",
        "steps = 4",
    )
    model = ("d_model = 8", "num_layers = 1", "num_heads = 1", "dropout = 0.1", "rotary_base = 1e4")
    (folder / "config.toml").write_text("\n".join([*settings, "[model]", *model, ""]))


def read_config(folder: Path) -> None:
    config = preset(100).changed(read_changes(folder / "config.toml", {"steps": 3}))
    assert config.steps == 3
    assert config.batch_size >= 1
    GPTConfig.llama(**{"vocab_size": 300} | config.model)


# Other commands


def write_matrices(folder: Path) -> None:
    matrix = np.arange(18).reshape(6, 3) / 7
    np.save(folder / "matrix.npy", matrix)
    np.savetxt(
        folder / "matrix.csv", matrix, delimiter=",", header="a,b,c", comments="", fmt="%.4f"
    )
    torch.save(torch.from_numpy(matrix), folder / "matrix.pt")


def read_matrices(folder: Path) -> None:
    refused = None
    for suffix in ("npy", "csv", "pt"):  # one of them is damaged, and the others are still read
        try:
            matrix = read_tokens(folder / f"matrix.{suffix}").matrix
        except ValueError as error:
            assert refused is None, refused
            refused = error
        else:
            assert matrix.dtype == torch.float32
            assert matrix.ndim == 2
            assert matrix.abs().max() <= MAX_ENTRY  # not if one is NaN
    if refused:
        raise refused


def write_targets(folder: Path) -> None:
    (folder / "targets.toml").write_bytes(TARGETS.read_bytes())


def read_targets(folder: Path) -> None:
    for target in BenchTargets.read(folder / "targets.toml").of("full-1x12x1024x64-fp32"):
        assert target.bound == target.bound, "a bound that is NaN"
        assert isinstance(target.against, str)


def write_module(folder: Path) -> None:
    (folder / "module.py").write_text(MODULE)


def read_module(folder: Path) -> None:
    path = folder / "module.py"
    if path.is_file() and _is_code(path):  # `heedful check` would execute it
        return
    with loaded(str(path)) as target:
        raise AssertionError(f"imported as {target}")


def _is_code(path: Path) -> bool:
    if path.stat().st_size > 1 << 20:
        return False
    try:
        compile(path.read_bytes(), path, "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def write_library(folder: Path) -> None:
    if library.missing is None:
        source = Path(native.__path__[0]) / library.FILE
        (folder / library.FILE).write_bytes(source.read_bytes())
    else:
        (folder / library.FILE).touch()


def read_library(folder: Path) -> None:
    # This folder is searched first, so that the good library replaces a missing one.
    native.__path__.insert(0, str(folder))
    importlib.reload(library)
    query = torch.ones(1, 1, 2, 4)
    assert torch.equal(attention(query, query, query), query), library.missing
    assert json.dumps(library.missing)


def write_progress(folder: Path) -> None:
    begun = Progress().after("mask-unused", hints=2, solved=True)
    begun.after("no-longer-known", hints=1).save(folder)


def read_progress(folder: Path) -> None:
    progress = Progress.of(folder)
    assert all(progress.attempt(name).hints >= 0 for name in exercises())
    progress.after("mask-inverted", hints=1).save(folder)
    list_exercises(folder)
    assert Progress.of(folder).attempts.keys() == {*progress.attempts, "mask-inverted"}


FORMATS: tuple[Format, ...] = (
    Format("gpt2", write_gpt2, read_model),
    Format("llama", write_llama, read_model),
    Format("checkpoint", write_checkpoint, read_model),
    Format("tokenizer", write_tokenizer, read_tokenizer),
    Format("run", write_run, read_run),
    Format("book", write_book, read_book),
    Format("config", write_config, read_config),
    Format("matrices", write_matrices, read_matrices),
    Format("targets", write_targets, read_targets),
    Format("module", write_module, read_module),
    Format("progress", write_progress, read_progress),
    Format("library", write_library, read_library),
)
