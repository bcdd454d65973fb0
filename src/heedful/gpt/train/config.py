"""The training configuration: one dataclass, its presets by size of the corpus, and the TOML file that changes it."""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from heedful.errors import ArgumentError
from heedful.gpt.config import GPTConfig
from heedful.reading import read_file

BUDGETS: tuple[str, ...] = ("steps", "tokens", "minutes")
COUNTS: tuple[str, ...] = (
    *("vocab_size", "batch_size", "accumulation"),
    *("evaluations", "evaluation_batches", "sample_tokens"),
)
MAX_TOML = 1 << 20  # bytes
MOST: dict[str, int] = {  # beyond these, preparing or one step would take all memory or never end
    "vocab_size": 1 << 20,
    "batch_size": 1 << 16,
    "sample_tokens": 1 << 16,
}
MOST_BUDGET = 10**12  # of the budgets: steps, tokens and minutes
PRECISIONS: tuple[str, ...] = ("auto", "float32", "bfloat16")
MODEL_KEYS: tuple[str, ...] = tuple(  # the tokenizer decides on the vocabulary's size
    field.name for field in dataclasses.fields(GPTConfig) if field.name != "vocab_size"
)


def check_keys(keys: Iterable[str], known: Iterable[str]) -> None:
    """Raise `ArgumentError` for an unknown key, and suggest the closest known one."""
    known = list(known)
    for key in keys:
        if key not in known:
            closest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            raise ArgumentError(
                "--config",
                expected=f"keys among {', '.join(known)}",
                received=repr(key),
                remedy=f"Did you mean {closest[0]!r}?" if closest else "No key resembles it.",
            )


@dataclass(frozen=True)
class TrainingConfig:
    """Everything that determines a training run, apart from the books.

    The comments beside the fields give the reason for each default.

    Raises:
        ArgumentError: a value is out of range, or there is not exactly one budget of steps, tokens and minutes.

    Examples:
        >>> config = TrainingConfig(steps=100)
        >>> config.batch_size
        2
        >>> config.changed({"minutes": 5.0}).steps is None
        True
    """

    model: dict[str, Any] = field(default_factory=dict)  # differences from GPTConfig.llama's shape

    tokenizer: str = "bpe"  # trained on the books; "bytes" needs no training, but twice the tokens
    vocab_size: int = 1024  # small for few books: a token must occur often to be learned

    steps: int | None = None  # the budget, one of three: optimizer steps,
    tokens: int | None = None  # training tokens, without those of validation,
    minutes: float | None = None  # or time: some steps are timed, and the run is planned to fit

    batch_size: int = 2  # windows per pass: large enough for fast products; more would cost steps
    accumulation: int = 1  # passes per step, for batches larger than the memory
    learning_rate: float = 1e-3  # at the peak; half and twice as much trained worse on the shelf
    least_learning_rate: float = 0.1  # share of the peak at the last step (Hoffmann et al. 2022)
    warmup: float = 0.2  # share of all steps; a steeper rise would amplify rounding errors
    weight_decay: float = 0.1  # on matrices only: small norms and biases would not limit capacity
    beta1: float = 0.9  # AdamW's default
    beta2: float = 0.95  # 0.999 remembers longer than a short run lasts (Brown et al. 2020)
    clip: float = 1.0  # largest norm of the gradients: limits one bad batch (Brown et al. 2020)
    precision: str = "auto"  # bfloat16 where the processor multiplies it natively, else float32

    evaluations: int = 20  # per run, evenly spaced: validation loss, sample and checkpoint
    evaluation_batches: int = 8  # per evaluation; the final report uses all validation tokens
    sample_tokens: int = 48  # length of a sample: about two lines of a terminal
    seed: int = 0  # of the weights, the order of windows, dropout and samples

    def __post_init__(self) -> None:
        check_keys(self.model, MODEL_KEYS)
        for name in COUNTS:
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name, most in MOST.items():
            self._require(name, getattr(self, name) <= most, f"at most {most:,}")
        for name in ("learning_rate", "clip"):
            self._require(
                name, 0 < getattr(self, name) < math.inf, "a number above 0 that is finite"
            )
        for name in ("least_learning_rate", "warmup", "beta1", "beta2"):
            self._require(name, 0 <= getattr(self, name) < 1, "a number of at least 0 and below 1")
        for name in ("weight_decay", "seed"):
            self._require(
                name, 0 <= getattr(self, name) < math.inf, "a number of at least 0 that is finite"
            )
        self._require("precision", self.precision in PRECISIONS, f"one of {', '.join(PRECISIONS)}")
        self._check_budget()

    def _check_budget(self) -> None:
        budgets = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(budgets) != 1:
            raise ArgumentError(
                ", ".join(BUDGETS),
                expected="exactly one of them",
                received=" and ".join(budgets) or "none",
                remedy="A run ends after a number of steps, of tokens or of minutes.",
            )
        self._require(
            budgets[0],
            0 < getattr(self, budgets[0]) <= MOST_BUDGET,
            f"a number above 0 and at most {MOST_BUDGET:,}",
        )

    def _require(self, name: str, valid: bool, expected: str) -> None:
        if not valid:
            raise ArgumentError(
                name,
                expected=expected,
                received=repr(getattr(self, name)),
                remedy="The comments in TrainingConfig explain each of its values.",
            )

    def changed(self, changes: Mapping[str, Any]) -> TrainingConfig:
        """Return a copy with other values.

        Args:
            changes: values by field name; None leaves a field alone. A budget replaces the present one, and the entries
                of `model` are added to the present ones.

        Returns:
            The changed configuration.

        Raises:
            ArgumentError: a key is unknown, or a value has the wrong type or is out of range.
        """
        changes = {key: value for key, value in changes.items() if value is not None}
        check_keys(changes, [field.name for field in dataclasses.fields(self)])
        for key, value in changes.items():
            _check_type(key, value)
        no_budget = dict.fromkeys(BUDGETS) if any(name in changes for name in BUDGETS) else {}
        model = self.model | changes.get("model", {})
        return dataclasses.replace(self, **no_budget | changes | {"model": model})


SMALL: TrainingConfig = TrainingConfig(  # a poem or a play: a minute or two on two cores
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
LARGE: TrainingConfig = TrainingConfig(  # a shelf of books: 10 million parameters in 15 minutes
    model={
        "tied": False,  # one more matrix: few weights for a small vocabulary, and a clearly lower loss
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
SHELF = 1_000_000  # bytes of text; 10 million parameters do not memorise more than that in one run


def preset(text_bytes: int) -> TrainingConfig:
    """Return the default configuration for a corpus of this size in bytes."""
    return SMALL if text_bytes < SHELF else LARGE


def read_changes(path: Path | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes to a preset that a TOML file and the command line ask for.

    Args:
        path: the TOML file, if there is one.
        options: values from the command line, which take precedence; None means that an option was not used.

    Returns:
        Values by field name, for `TrainingConfig.changed`.

    Raises:
        ArgumentError: the file is missing or is not TOML.
    """
    changes = {} if path is None else _read_toml(path)
    options = {key: value for key, value in options.items() if value is not None}
    if any(name in options for name in BUDGETS):
        changes = {key: value for key, value in changes.items() if key not in BUDGETS}
    return changes | options


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_file(path, MAX_TOML).decode())
    except RecursionError as error:
        raise _no_toml(path, "text that is nested too deeply") from error
    except OSError as error:
        raise _no_toml(path, error.strerror or str(error)) from error
    except ValueError as error:  # not UTF-8, not TOML, or a number of too many digits
        raise _no_toml(path, str(error)) from error


def _no_toml(path: Path, received: str) -> ArgumentError:
    return ArgumentError(
        "--config",
        expected="a TOML file",
        received=f"{path}: {received}",
        remedy="Its keys are the fields of TrainingConfig, and in the table [model] those of GPTConfig.",
    )


def _check_type(key: str, value: Any) -> None:
    """Raise `ArgumentError` unless the value has the type of the field."""
    hint = get_type_hints(TrainingConfig)[key]
    union = get_args(hint) if get_origin(hint) is not dict else ()
    types = tuple(get_origin(member) or member for member in union or (hint,))
    accepted = (*types, int) if float in types else types
    if isinstance(value, bool) or not isinstance(value, accepted):
        raise ArgumentError(
            key,
            expected=" or ".join(kind.__name__ for kind in types if kind is not type(None)),
            received=f"{type(value).__name__} {value!r}",
            remedy="In TOML, strings are quoted and numbers are not.",
        )
