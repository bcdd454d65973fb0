"""`heedful generate` on the command line: its output and its exit codes."""

import json
import os
import sys

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip(
    "safetensors", reason="safetensors is missing; install it with: pip install -e '.[train]'"
)

from safetensors.torch import load_file, save_file

from heedful.cli import app
from heedful.gpt import GPT, GPTConfig, checkpoint, command, tokenizer
from heedful.gpt.generation import GREEDY, generate

PROMPTS = ["Shall I compare", "é", "no"]


def run(*arguments, input=None):
    return CliRunner().invoke(app, ["generate", *map(str, arguments)], input=input)


@pytest.fixture
def folder(tmp_path):
    """Return a folder with an untrained model of bytes."""
    config = GPTConfig.llama(
        vocab_size=257,
        context_length=32,
        d_model=32,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        tied=False,
    )
    model = GPT(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10.0)
    checkpoint.save(model, tmp_path)
    tokenizer.ByteTokenizer().save(tmp_path)
    return tmp_path


def continued(folder, prompt: str, tokens: int) -> str:
    """Return the greedy continuation by `generate`."""
    model, bytes_ = checkpoint.load(folder), tokenizer.ByteTokenizer()
    ids = bytes_.encode(prompt) or [bytes_.end_of_text]
    (text,) = generate(model, [ids], tokens=tokens, sampling=GREEDY, stop=bytes_.end_of_text)
    return prompt + bytes_.decode(text) + "\n"


@pytest.mark.parametrize("prompt", [*PROMPTS, ""])
def test_one_prompt_is_continued(folder, prompt):
    result = run("--from", folder, "--prompt", prompt, "--tokens", 50, "--temperature", 0)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == continued(folder, prompt, 50)
    assert len(result.stdout) > len(prompt) + 20


def test_several_prompts_are_continued_as_each_alone(folder):
    options = [option for prompt in PROMPTS for option in ("--prompt", prompt)]
    result = run("--from", folder, *options, "--tokens", 50, "--temperature", 0)
    assert result.stdout == "---\n".join(continued(folder, prompt, 50) for prompt in PROMPTS)


def test_a_prompt_is_read_from_stdin(folder):
    options = ("--from", folder, "--prompt", "-", "--tokens", 9, "--temperature", 0)
    assert run(*options, input="é\n").stdout == continued(folder, "é", 9)
    refused = run(*options, input=b"\xff")
    assert refused.exit_code == 2
    assert "UTF-8" in refused.stderr


def test_the_seed_determines_the_text(folder):
    texts = [run("--from", folder, "--seed", seed, "--top-p", 0.95).stdout for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_text_is_printed_as_it_is_generated(folder, monkeypatch):
    """The text before a failure of the model has been printed."""
    read, times = GPT.read, []

    def failing(*arguments):
        times.append(0)
        if len(times) > 5:
            raise KeyboardInterrupt
        return read(*arguments)

    monkeypatch.setattr(GPT, "read", failing)
    result = run("--from", folder, "--prompt", "Shall", "--temperature", 0)
    assert result.exit_code == 130
    assert result.stdout.startswith("Shall")
    assert len(result.stdout) > len("Shall")


def test_a_transformers_model_with_its_tokenizer(tmp_path):
    transformers = pytest.importorskip(
        "transformers",
        reason="transformers is missing; install it with: pip install -e '.[models]'",
    )
    words = tokenizer.make_tokenizer("bpe", ["to be or not to be that is the question"] * 3, 280)
    source = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_embd=32,
            n_head=2,
            n_layer=1,
            n_positions=64,
            vocab_size=words.vocab_size,
            bos_token_id=0,
            eos_token_id=0,
        )
    ).eval()
    source.save_pretrained(tmp_path)
    words.save(tmp_path)
    result = run("--from", tmp_path, "--prompt", "to be", "--tokens", 12, "--temperature", 0)
    ids = torch.tensor([words.encode("to be")])
    expected = source.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)[0].tolist()
    assert result.stdout == words.decode(expected) + "\n"


@pytest.mark.parametrize(
    ("named", "arguments"),
    [
        ("No such file", ["--from", "nowhere"]),
        ("top_p", ["--top-p", 2]),
        ("temperature", ["--temperature", -1]),
        ("tokens", ["--tokens", 0]),
        ("seed", ["--seed", -1]),
    ],
)
def test_invalid_arguments_are_named(folder, named, arguments):
    result = run("--from", folder, *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert named in result.stderr
    assert result.stderr.startswith("heedful generate: ")


def test_a_missing_tokenizer_is_named(folder):
    (folder / "tokenizer_config.json").unlink()
    result = run("--from", folder)
    assert result.exit_code == 2
    assert "tokenizer" in result.stderr


# --- hostile and damaged files ----------------------------------------------------------------


def refused(folder, *arguments) -> str:
    """Return the line that `heedful generate` prints when it refuses a folder."""
    result = run("--from", folder, "--tokens", 2, "--prompt", "a" * 40, *arguments)
    assert result.exit_code == 2, result.exception
    assert isinstance(result.exception, SystemExit)
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


def configured(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.usefixtures("ten_seconds")
@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "sparse"])
@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer_config.json", "tokenizer.json"]
)
def test_only_regular_files_of_a_limited_size_are_read(folder, name, kind):
    path = folder / name
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(1 << 42)
    words = {"fifo": "regular", "device": "regular", "folder": "directory", "sparse": "bytes"}
    assert words[kind] in refused(folder)


@pytest.mark.usefixtures("ten_seconds")
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "tokenizer.json"])
@pytest.mark.parametrize(
    "text", ["[" * 1_000_000, '{"a":' * 1_000_000, "9" * 10_000, '{"x": "\x1b[2J']
)
def test_json_that_is_nested_or_broken_is_refused(folder, name, text):
    (folder / name).write_text(text)
    assert "\x1b" not in refused(folder)


@pytest.mark.usefixtures("ten_seconds")
@pytest.mark.parametrize(
    "name",
    ["vocab_size", "context_length", "d_model", "num_layers", "num_heads", "head_dim", "d_mlp"],
)
@pytest.mark.parametrize("size", [10**9, 10**30, "x", None, [], 1.5])
def test_odd_sizes_in_the_configuration_are_refused(folder, name, size):
    configured(folder, positions="learned", num_kv_heads=1, **{name: size})
    refused(folder)


@pytest.mark.usefixtures("ten_seconds")
@pytest.mark.parametrize(
    "fields",
    [
        {"num_hidden_layers": 10**9},
        {"hidden_size": "x"},
        {"rope_parameters": [1]},
        {"hidden_act": []},
        {"model_type": []},
        {"model_type": "gpt2", "activation_function": {}},
    ],
    ids=str,
)
def test_odd_configurations_of_transformers_are_refused(folder, fields):
    llama = {
        "model_type": "llama",
        "vocab_size": 257,
        "max_position_embeddings": 32,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 128,
        "rms_norm_eps": 1e-5,
    }
    (folder / "config.json").write_text(json.dumps(llama | fields))
    refused(folder)


@pytest.mark.parametrize(
    "odd",
    [
        lambda weight: weight.long(),
        lambda weight: weight > 0,
        lambda weight: weight.half(),
        lambda weight: weight.to(torch.float8_e4m3fn),
        lambda weight: weight[:0],
        lambda weight: torch.tensor(1.0),
        lambda weight: weight * torch.nan,
        lambda weight: weight * torch.inf,
    ],
    ids=["int64", "bool", "float16", "float8", "empty", "scalar", "NaN", "infinite"],
)
@pytest.mark.parametrize("temperature", [0, 0.8])
def test_odd_weights_are_refused(folder, odd, temperature):
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["head.weight"] = odd(weights["head.weight"]).contiguous()
    save_file(weights, path)
    refused(folder, "--temperature", temperature)


def test_weights_without_tensors_are_refused(folder):
    save_file({}, folder / "model.safetensors")
    refused(folder)
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    refused(folder)


@pytest.mark.parametrize("names", [{"a": 5}, {"a": "x\0y"}, {"a": "\ud800"}, {"a": ["b"]}], ids=str)
def test_an_index_with_odd_names_is_refused(folder, names):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    refused(folder)


@pytest.mark.parametrize("temperature", [1e-300, 5e-324, 1e-45])
def test_a_tiny_temperature_takes_the_likeliest_token(folder, temperature):
    result = run("--from", folder, "--prompt", "no", "--tokens", 9, "--temperature", temperature)
    assert result.stdout == continued(folder, "no", 9)


def subwords(folder, **parts):
    """Write a tokenizer.json of bytes whose parts are replaced."""
    tokenizer.make_tokenizer("bpe", ["to be"], 257).save(folder)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | parts))


DOUBLED = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
PREPENDED = {"type": "Prepend", "prepend": "x" * 1_000_000}


@pytest.mark.usefixtures("ten_seconds")
@pytest.mark.parametrize("steps", [[DOUBLED] * 40, [PREPENDED]], ids=["Replace", "Prepend"])
def test_a_tokenizer_that_multiplies_its_text_is_refused(folder, steps):
    subwords(folder, normalizer={"type": "Sequence", "normalizers": steps})
    assert "times as long" in refused(folder)


@pytest.mark.usefixtures("ten_seconds")
def test_a_regular_expression_that_explodes_is_refused(folder):
    split = {
        "type": "Split",
        "pattern": {"Regex": "(a+)+$"},
        "behavior": "Isolated",
        "invert": False,
    }
    subwords(folder, pre_tokenizer=split)
    result = run("--from", folder, "--prompt", "a" * 40 + "c")
    assert result.exit_code == 2
    assert "regular expressions" in result.stderr


def test_a_tokenizer_without_its_unknown_token_is_refused(folder):
    model = {"type": "WordLevel", "vocab": {"b": 0}, "unk_token": "[UNK]"}
    subwords(folder, model=model, added_tokens=[], pre_tokenizer=None)
    assert "UNK" in refused(folder)


@pytest.mark.parametrize("token", [5, {}, {"content": 5}, ["a"], {"content": "</s>"}], ids=str)
def test_an_odd_end_token(folder, token):
    subwords(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": token}))
    if token in ({}, {"content": "</s>"}):
        assert run("--from", folder, "--prompt", "a", "--tokens", 1).exit_code == 0
    else:
        assert "eos_token" in refused(folder)


def test_a_terminal_gets_no_control_characters(monkeypatch, capsys):
    text = "\x1b[2J\x9b\rone\n\ttwo"
    command._print(text)
    assert capsys.readouterr().out == text
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    command._print(text)
    assert capsys.readouterr().out == "\\x1b[2J\\x9b\\rone\n\ttwo"
