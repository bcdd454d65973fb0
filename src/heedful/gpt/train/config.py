"""How a GPT is trained: one dataclass, its defaults by the size of the corpus, and the TOML file that changes it."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from heedful.errors import ArgumentError

BUDGETS = ("steps", "tokens", "minutes")
COUNTS = (
    *("vocab_size", "batch_size", "accumulation"),
    *("evaluations", "evaluation_batches", "sample_tokens"),
)
PRECISIONS = ("auto", "float32", "bfloat16")


@dataclass(frozen=True)
class TrainingConfig:
    """What a run does, apart from the books.

    Raises:
        ArgumentError: a value out of range, or not exactly one budget of steps, tokens and minutes.
    """

    model: dict = field(default_factory=dict)  # what differs from GPTConfig.llama's shape

    tokenizer: str = "bpe"  # trained on the books themselves; "bytes" needs no training, but reads twice the tokens
    vocab_size: int = 1024  # small, for few books: a token must be met often to be learnt

    steps: int | None = None  # the budget, one of three: steps,
    tokens: int | None = None  # tokens read, validation not counted,
    minutes: float | None = None  # or time: a few steps are timed, and the run planned to fit

    batch_size: int = 2  # windows a pass: enough to keep products fast; more would cost steps
    accumulation: int = 1  # passes a step: larger batches than memory holds
    learning_rate: float = 1e-3  # the peak; half and twice as much learnt worse on the shelf
    least_learning_rate: float = 0.1  # of the peak, at the last step (Hoffmann et al. 2022)
    warmup: float = 0.2  # of all steps: Adam's moments mean little at first; a steeper rise makes rounding errors grow
    weight_decay: float = 0.1  # on matrices only: norms and biases are no capacity to be kept small
    beta1: float = 0.9  # AdamW's own
    beta2: float = 0.95  # forgets faster than 0.999, which outlasts a short run (Brown et al. 2020)
    clip: float = 1.0  # of the gradients' norm: one bad batch moves no further than others (Brown et al. 2020)
    precision: str = "auto"  # bfloat16 where the processor multiplies it

    evaluations: int = 20  # in a run, evenly: validation loss, sample, checkpoint
    evaluation_batches: int = 8  # for each of them; the last one takes all validation tokens
    sample_tokens: int = 48  # of the sample's text: what two lines of a terminal hold
    seed: int = 0  # weights, order of windows, dropout and samples all come from it

    def __post_init__(self) -> None:
        for name in COUNTS:
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("learning_rate", "clip"):
            self._require(name, getattr(self, name) > 0, "a number above 0")
        for name in ("least_learning_rate", "warmup", "beta1", "beta2"):
            self._require(name, 0 <= getattr(self, name) < 1, "a number of at least 0 and below 1")
        for name in ("weight_decay", "seed"):
            self._require(name, getattr(self, name) >= 0, "a number of at least 0")
        self._require("precision", self.precision in PRECISIONS, f"one of {', '.join(PRECISIONS)}")
        self._check_budget()

    def _check_budget(self) -> None:
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ArgumentError(
                ", ".join(BUDGETS),
                expected="one of them",
                received=" and ".join(given) or "none",
                remedy="A run ends after so many steps, so many tokens or so many minutes.",
            )
        self._require(given[0], getattr(self, given[0]) > 0, "a number above 0")

    def _require(self, name: str, right: bool, expected: str) -> None:
        if not right:
            raise ArgumentError(
                name,
                expected=expected,
                received=repr(getattr(self, name)),
                remedy="TrainingConfig gives a reason beside each of its values.",
            )

    def changed(self, changes: Mapping[str, Any]) -> TrainingConfig:
        """With other values; a budget takes the place of another, and the model's changes are added to its own.

        Raises:
            ArgumentError: a key that there is none of, a value of the wrong type or out of range.
        """
        changes = {key: value for key, value in changes.items() if value is not None}
        check_keys(changes, [f.name for f in dataclasses.fields(self)])
        for key, value in changes.items():
            _check_type(key, value)
        budget = dict.fromkeys(BUDGETS) if any(name in changes for name in BUDGETS) else {}
        model = self.model | changes.get("model", {})
        return dataclasses.replace(self, **budget | changes | {"model": model})


SMALL = TrainingConfig(  # a poem or a play: a minute or two on two cores
    model={
        "tied": False,
        "d_model": 192,
        "num_layers": 4,
        "num_heads": 3,
        "num_kv_heads": 3,
        "d_mlp": 512,
        "context_length": 256,
        "dropout": 0.2,
    },
    vocab_size=512,
    batch_size=8,
    steps=400,
)
LARGE = TrainingConfig(  # a shelf of books: 10 million parameters, and as many steps as fit into the time
    model={
        "tied": False,  # a matrix more to predict by: few weights where the vocabulary is small, much learnt
        "d_model": 384,
        "num_layers": 6,
        "num_heads": 6,
        "num_kv_heads": 6,
        "d_mlp": 896,
        "context_length": 512,
        "dropout": 0.0,
    },
    minutes=15,
)
SHELF = 1_000_000  # bytes of text: from here on, 10 million parameters do not learn it by heart in one run


def preset(text_bytes: int) -> TrainingConfig:
    """What suits a corpus of so many bytes."""
    return SMALL if text_bytes < SHELF else LARGE


def read(path: Path) -> dict[str, Any]:
    """The changes in a TOML file: keys of TrainingConfig, and of GPTConfig in its table [model].

    Raises:
        ArgumentError: no file, or no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ArgumentError(
            "--config",
            expected="a TOML file",
            received=f"{path}: {error}",
            remedy="Its keys are the names in TrainingConfig, and in a table [model] those in GPTConfig.",
        ) from error


def check_keys(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise ArgumentError for a key that there is none of, with the nearest that there is."""
    known = list(known)
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            raise ArgumentError(
                "--config",
                expected=f"keys among {', '.join(known)}",
                received=repr(key),
                remedy=f"Did you mean {near[0]!r}?" if near else "There is none like it.",
            )


def _check_type(key: str, value: Any) -> None:
    """Raise ArgumentError where a value is of another type than the field's."""
    kinds = get_type_hints(TrainingConfig)[key]
    kinds = tuple(get_origin(kind) or kind for kind in get_args(kinds) or (kinds,))
    if isinstance(value, bool) or not isinstance(value, (*kinds, int) if float in kinds else kinds):
        raise ArgumentError(
            key,
            expected=" or ".join(kind.__name__ for kind in kinds if kind is not type(None)),
            received=f"{type(value).__name__} {value!r}",
            remedy="In TOML, text stands in quotes and numbers do not.",
        )
