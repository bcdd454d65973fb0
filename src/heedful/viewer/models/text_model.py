"""A model that reads text: its module, its tokenizer, and what its configuration says of its attention."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError, HeedfulError, MissingExtraError
from heedful.gpt import checkpoint
from heedful.gpt.tokenizer import load_tokenizer
from heedful.integrations.transformers import NAME as OURS
from heedful.integrations.transformers import register
from heedful.viewer.models.files import OPTION, ModelFiles
from heedful.viewer.models.token_texts import token_texts

UNUSED = ("pooler",)  # weights that many checkpoints lack, and no attention depends on


@dataclass(frozen=True, eq=False)
class TextModel:
    """A model that reads text, whose weights are read when `module` is called.

    Attributes:
        title: Its name.
        module: Returns the model, in eval mode and in the dtype that it is stored in.
        inputs: Returns the arguments of a call for tokens (1, T).
        encode: Returns the tokens of a text, with the special ones that the model expects.
        decode: Returns the text of tokens.
        positions: The number of positions that it was trained on.
        rotary: Whether it computes positions, and so can go beyond.
        layers: The number of its attentions.
        heads: The number of query heads of each.
        key_heads: The number of key heads of each.
        head_size: The number of features of a head.
        dtype: The dtype of its weights.
    """

    title: str
    module: Callable[[], nn.Module]
    inputs: Callable[[Tensor], Any]
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    positions: int
    rotary: bool
    layers: int
    heads: int
    key_heads: int
    head_size: int
    dtype: torch.dtype

    def texts(self, ids: list[int]) -> list[str]:
        """Return a text for each token."""
        return token_texts(ids, self.decode)


def load_model(files: ModelFiles, title: str) -> TextModel:
    """Return a model from its files. No network is used, and nothing in the files is executed.

    Args:
        files: The files.
        title: What the model is called.

    Raises:
        ArgumentError: The files are damaged, have no tokenizer, or hold a model without attention over one text.
        MissingExtraError: A package that reads them is not installed.
    """
    if files.config.get("model_type") == checkpoint.MODEL_TYPE:
        return _our_gpt(files, title)
    try:
        register()
        if files.gguf is not None:
            import accelerate  # noqa: F401 # pyright: ignore[reportMissingImports] - an extra
            import gguf  # noqa: F401 # pyright: ignore[reportMissingImports] - an extra
    except ImportError as error:
        raise MissingExtraError("--model", "models") from error
    return _of_transformers(files, title)


def _our_gpt(files: ModelFiles, title: str) -> TextModel:
    tokenizer, model = load_tokenizer(files.folder), checkpoint.load(files.folder)
    config = model.config
    return TextModel(
        title,
        lambda: model,
        lambda ids: ids,
        tokenizer.encode,
        tokenizer.decode,
        positions=config.context_length,
        rotary=config.positions == "rotary",
        layers=config.num_layers,
        heads=config.num_heads,
        key_heads=config.num_kv_heads,
        head_size=config.head_dim,
        dtype=next(model.parameters()).dtype,
    )


def _of_transformers(files: ModelFiles, title: str) -> TextModel:
    with _quietly(files):
        from transformers import AutoConfig  # pyright: ignore[reportMissingImports] - an extra

        whole = AutoConfig.from_pretrained(files.folder, **_options(files))
    if getattr(whole, "is_encoder_decoder", False):
        raise ArgumentError(
            OPTION,
            expected="a model of one text: an encoder or a decoder",
            received=f"{title}, an encoder-decoder ({whole.model_type}), whose decoder reads a second text",
            remedy="Call heedful.attention_of(model, inputs) with both texts.",
        )
    config: Any = whole.get_text_config()
    attention = _attention_of(whole, title)
    tokenizer = _tokenizer(files)
    try:
        heads, positions = config.num_attention_heads, config.max_position_embeddings
        return TextModel(
            title,
            lambda: _module(files, attention),
            lambda ids: {"input_ids": ids},
            lambda text: tokenizer(text, verbose=False)["input_ids"],
            lambda ids: tokenizer.decode(ids, clean_up_tokenization_spaces=False),
            positions=positions,
            rotary=getattr(config, "rope_parameters", None) is not None,
            layers=config.num_hidden_layers,
            heads=heads,
            key_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
            dtype=getattr(config, "dtype", None) or torch.float32,
        )
    except (AttributeError, TypeError, ZeroDivisionError) as error:
        raise ArgumentError(
            OPTION,
            expected="a model whose configuration says how many heads and positions it has",
            received=f"{title} ({config.model_type}): {error}",
            remedy="Call heedful.attention_of(model, inputs) with a model that you have loaded.",
        ) from error


def _attention_of(config: Any, title: str) -> str:
    """Return the name of the attention with which a model of transformers can be seen: ours, or PyTorch's function."""
    from transformers.models.auto.modeling_auto import (  # pyright: ignore[reportMissingImports] - an extra
        MODEL_MAPPING,
    )

    if type(config) not in MODEL_MAPPING:
        return OURS  # the loader says what is wrong
    made = MODEL_MAPPING[type(config)]
    model: Any = made[0] if isinstance(made, tuple) else made
    if model._supports_attention_backend:
        return OURS
    if model._supports_sdpa:
        return "sdpa"
    raise ArgumentError(
        OPTION,
        expected="a model whose attention transformers lets others compute",
        received=f"{title} ({config.model_type}), which has steps of its own instead, or no attention",
        remedy="heedful.show(model, input_ids=ids), with a model that you have loaded, shows its steps.",
    )


def _tokenizer(files: ModelFiles) -> Any:
    names = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
    if files.gguf is None and not any((files.folder / name).is_file() for name in names):
        raise ArgumentError(
            OPTION,
            expected=f"a tokenizer beside the model: {' or '.join(names)}",
            received=f"{files.folder} without one",
            remedy="Save it there with tokenizer.save_pretrained(folder).",
        )
    with _quietly(files):
        from transformers import AutoTokenizer  # pyright: ignore[reportMissingImports] - an extra

        return AutoTokenizer.from_pretrained(files.folder, **_options(files))


def _module(files: ModelFiles, attention: str) -> nn.Module:
    """Return the model without a head for words or classes, which no attention depends on."""
    if (files.folder / "adapter_config.json").exists():  # the weights below it may lie anywhere
        raise ArgumentError(
            OPTION,
            expected="a whole model",
            received=f"an adapter ({files.folder})",
            remedy="Merge it into its model, and save that.",
        )
    weights = {"dtype": "auto", "use_safetensors": True}
    if files.gguf is not None:
        weights = {"dtype": torch.float32}  # no dtype of PyTorch's is that of its packed numbers
    with _quietly(files):
        from transformers import AutoModel  # pyright: ignore[reportMissingImports] - an extra

        model, report = AutoModel.from_pretrained(
            files.folder,
            attn_implementation=attention,
            output_loading_info=True,
            **weights,
            **_options(files),
        )
    missing = [name for name in report["missing_keys"] if not name.startswith(UNUSED)]
    if missing:
        raise ArgumentError(
            OPTION,
            expected="weights for every part of the model",
            received=f"none for {len(missing)} of them, such as {sorted(missing)[0]} ({files.folder})",
            remedy="They would be random numbers, and so would the attention. Save the whole model.",
        )
    model.config.get_text_config().use_cache = False
    return model.eval()


def _options(files: ModelFiles) -> dict[str, Any]:
    """Return what every loader of transformers is told: to ask no network, and to execute nothing."""
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    return options if files.gguf is None else options | {"gguf_file": files.gguf}


@contextlib.contextmanager
def _quietly(files: ModelFiles) -> Any:
    """Silence what transformers prints, and turn what it raises into an `ArgumentError`."""
    from transformers.utils import logging  # pyright: ignore[reportMissingImports] - an extra

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            yield
    except HeedfulError:
        raise
    except Exception as error:  # its loaders raise anything on files that do not fit together
        raise ArgumentError(
            OPTION,
            expected="a model that transformers reads from safetensors or GGUF without running code of its own",
            received=f"{files.folder}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}",
            remedy="Update transformers, or save the model again.",
        ) from error
