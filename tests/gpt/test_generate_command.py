"""`heedful generate` on the command line: its output and its exit codes."""

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip(
    "safetensors", reason="safetensors is missing; install it with: pip install -e '.[train]'"
)

from heedful.cli import app
from heedful.gpt import GPT, GPTConfig, checkpoint, tokenizer
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
