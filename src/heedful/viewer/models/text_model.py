"""A model that reads text: its module, its tokenizer, and what its configuration says of its attention."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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
MOST_GENERATED = 128  # tokens


@dataclass(frozen=True, eq=False)
class Decoder:
    """The decoder of an encoder-decoder, which reads a text of its own.

    Attributes:
        layers: The number of its layers, each of which attends to its own text and then to the encoder's.
        heads: The number of heads of each attention.
        encode: Returns the tokens that it reads while it is to write a text.
        generate: Returns the tokens that it reads while it writes what it finds most likely after the encoder's tokens.
    """

    layers: int
    heads: int
    encode: Callable[[str], list[int]]
    generate: Callable[[Sequence[int]], list[int]]


class Attention(NamedTuple):
    """The sizes of one attention."""

    heads: int
    key_heads: int
    queries: int
    keys: int


@dataclass(frozen=True, eq=False)
class TextModel:
    """A model that reads text, whose weights are read when `module` is called.

    Attributes:
        title: Its name.
        module: Returns the model, in eval mode and in the dtype that it is stored in.
        inputs: Returns the arguments of a call for tokens (1, T), and for those of the decoder if there is one.
        encode: Returns the tokens of a text, with the special ones that the model expects.
        decode: Returns the text of tokens.
        positions: The number of positions that it was trained on.
        rotary: Whether it computes positions, and so can go beyond.
        layers: The number of its layers; of those of the encoder, if there is one.
        heads: The number of query heads of each.
        key_heads: The number of key heads of each.
        head_size: The number of features of a head.
        dtype: The dtype of its weights.
        biased: Whether a bias for each pair of tokens is added to the scores.
        decoder: The decoder of an encoder-decoder; None for a model of one text.
    """

    title: str
    module: Callable[[], nn.Module]
    inputs: Callable[..., Any]
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    positions: int
    rotary: bool
    layers: int
    heads: int
    key_heads: int
    head_size: int
    dtype: torch.dtype
    biased: bool = False
    decoder: Decoder | None = None

    def attentions(self, tokens: int, of_decoder: int = 0) -> list[list[Attention]]:
        """Return the sizes of the attentions of each layer, in the order in which they run.

        Args:
            tokens: The number of tokens of the text.
            of_decoder: The number of tokens that the decoder reads.
        """
        layer = [Attention(self.heads, self.key_heads, tokens, tokens)]
        layers = [layer] * self.layers
        if self.decoder is None:
            return layers
        heads = self.decoder.heads
        to_itself = Attention(heads, heads, of_decoder, of_decoder)
        return layers + [[to_itself, to_itself._replace(keys=tokens)]] * self.decoder.layers

    def texts(self, ids: Sequence[int]) -> list[str]:
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
    both = getattr(whole, "is_encoder_decoder", False)
    config: Any = whole if both else whole.get_text_config()
    attention = _attention_of(whole, title)
    tokenizer = _tokenizer(files)
    try:
        biased = hasattr(
            config, "relative_attention_num_buckets"
        )  # and computes it for any distance
        heads = config.num_attention_heads
        return TextModel(
            title,
            lambda: _module(files, attention),
            _inputs_of_both if both else lambda ids: {"input_ids": ids},
            lambda text: tokenizer(text, verbose=False)["input_ids"],
            lambda ids: tokenizer.decode(ids, clean_up_tokenization_spaces=False),
            positions=sys.maxsize if biased else config.max_position_embeddings,
            rotary=getattr(config, "rope_parameters", None) is not None,
            layers=config.num_hidden_layers,
            heads=heads,
            key_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
            dtype=getattr(config, "dtype", None) or torch.float32,
            biased=biased,
            decoder=_decoder(files, config, tokenizer, attention) if both else None,
        )
    except (AttributeError, TypeError, ZeroDivisionError) as error:
        raise ArgumentError(
            OPTION,
            expected="a model whose configuration says how many heads and positions it has",
            received=f"{title} ({config.model_type}): {error}",
            remedy="Call heedful.attention_of(model, inputs) with a model that you have loaded.",
        ) from error


def _inputs_of_both(ids: Tensor, of_decoder: Tensor) -> dict[str, Any]:
    return {"input_ids": ids, "decoder_input_ids": of_decoder, "use_cache": False}


def _decoder(files: ModelFiles, config: Any, tokenizer: Any, attention: str) -> Decoder:
    def encode(text: str) -> list[int]:
        ids = tokenizer(text_target=text, verbose=False)["input_ids"]
        first = config.decoder_start_token_id
        if first is None:  # then it is the mark of the language, at the end
            first = ids[-1]
        # The decoder reads each token to predict the next one, and nothing comes after the end.
        return [first, *(ids[:-1] if ids[-1] in tokenizer.all_special_ids else ids)]

    def generate(ids: Sequence[int]) -> list[int]:
        module: Any = _module(files, attention, writes=True)
        most = min(MOST_GENERATED, getattr(config, "max_position_embeddings", MOST_GENERATED))
        made = module.generate(
            torch.tensor([ids]),
            do_sample=False,
            num_beams=1,
            max_new_tokens=most,
            use_cache=False,  # T5 makes one for as many layers as the encoder has
        )
        return made[0, :-1].tolist()

    layers = getattr(config, "decoder_layers", None) or config.num_decoder_layers
    heads = getattr(config, "decoder_attention_heads", None) or config.num_attention_heads
    return Decoder(layers, heads, encode, generate)


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


def _module(files: ModelFiles, attention: str, *, writes: bool = False) -> nn.Module:
    """Return the model without a head for words or classes, which no attention depends on, unless it is to write."""
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
        from transformers import (  # pyright: ignore[reportMissingImports] - an extra
            AutoModel,
            AutoModelForSeq2SeqLM,
        )

        model, report = (AutoModelForSeq2SeqLM if writes else AutoModel).from_pretrained(
            files.folder,
            attn_implementation=attention,
            output_loading_info=True,
            **weights,
            **_options(files),
        )
    missing = [
        name
        for name in report["missing_keys"]
        if not name.startswith(UNUSED) and not _is_computed(model, name)
    ]
    if missing:
        raise ArgumentError(
            OPTION,
            expected="weights for every part of the model",
            received=f"none for {len(missing)} of them, such as {sorted(missing)[0]} ({files.folder})",
            remedy="They would be random numbers, and so would the attention. Save the whole model.",
        )
    model.config.get_text_config().use_cache = False
    return model.eval()


def _is_computed(model: nn.Module, name: str) -> bool:
    """Return whether a weight is computed when the model is built, such as the positions of Marian and Pegasus."""
    return "Sinusoidal" in type(model.get_submodule(name.rpartition(".")[0])).__name__


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
