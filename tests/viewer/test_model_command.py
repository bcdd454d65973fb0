"""heedful show --model: from files and a text to a page, one forward pass, without a network and without their code."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from heedful import ArgumentError
from heedful.cli import app
from heedful.gpt import GPT, GPTConfig, checkpoint
from heedful.gpt.tokenizer import ByteTokenizer, SubwordTokenizer
from heedful.viewer.heads.payload import ROOM
from heedful.viewer.models import command
from heedful.viewer.models.command import Chosen, Read, run, size_to_keep, statistics_within
from heedful.viewer.models.files import find_model
from heedful.viewer.models.text_model import load_model
from heedful.viewer.models.token_texts import token_texts

transformers = pytest.importorskip(
    "transformers", reason="transformers is missing; install it with: pip install -e '.[models]'"
)
TEXT = "to be or not to be, that is the question"
SIZES = {"vocab_size": 300, "bos_token_id": 0, "eos_token_id": 0}


def llama(**changes):
    """Return a small Llama, whose positions are computed and whose heads share keys."""
    sizes = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3}
    sizes |= {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **sizes | changes))


def gpt2():
    """Return a small GPT-2, whose positions are learned."""
    sizes = {"n_embd": 48, "n_head": 4, "n_layer": 2, "n_positions": 64}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES, **sizes))


def save(model, folder: Path) -> Path:
    """Save a model with a byte-level tokenizer, as transformers does."""
    model.save_pretrained(folder)
    SubwordTokenizer.train([TEXT] * 3, vocab_size=280).save(folder)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    return save(llama(), tmp_path_factory.mktemp("llama"))


def show(*arguments: object):
    """Run the command in this process."""
    return CliRunner().invoke(app, ["show", *map(str, arguments)])


def error_of(*arguments: object) -> str:
    """Return the one line of a command that fails."""
    result = show(*arguments)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("heedful show: ")
    return line


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Refuse every connection to another machine."""

    def refuse(self, address):
        raise AssertionError(f"a connection to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize("build", [llama, gpt2])
def test_the_page_has_the_models_own_attention(build, tmp_path, monkeypatch):
    model = build()
    save(model, tmp_path / "model")
    seen = []
    monkeypatch.setattr(
        command, "show", lambda attention, **kw: seen.append((attention, kw)) or Page()
    )

    class Page:
        def save(self, *_):
            pass

    assert show("--model", tmp_path / "model", "--text", TEXT).exit_code == 0
    attention, options = seen[0]
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")(TEXT)["input_ids"]
    assert "".join(options["labels"]) == TEXT
    model.set_attn_implementation("eager")
    with torch.no_grad():
        eager = model.eval()(torch.tensor([tokens]), output_attentions=True).attentions
    assert len(attention.layers) == len(eager)
    for summary, weights in zip(attention.layers.values(), eager, strict=True):
        torch.testing.assert_close(summary.weights, weights, atol=1e-5, rtol=1e-4)


def test_the_page_is_written_and_says_so(folder, tmp_path):
    out = tmp_path / "heads.html"
    result = show(
        "--model", folder, "--text", TEXT, "--layers", "0,2", "--heads", "1-3", "--out", out
    )
    assert result.exit_code == 0, result.output
    assert result.stdout == f"Wrote {out}.\n"
    assert result.stderr == ""
    assert "layers.2.self_attn" in out.read_text()


def test_only_what_was_chosen_is_computed(folder):
    model = load_model(find_model(str(folder)), "llama")
    attention = run(model, Read(model.encode(TEXT)), Chosen([0, 2], [1, 3]))
    assert list(attention.layers) == ["layers.0.self_attn", "layers.2.self_attn"]
    assert {it.entropy.shape[1] for it in attention.layers.values()} == {2}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_model_runs_in_the_dtype_that_it_is_stored_in(dtype, tmp_path):
    save(llama().to(dtype), tmp_path / "model")
    model = load_model(find_model(str(tmp_path / "model")), "llama")
    assert model.dtype == dtype
    assert {p.dtype for p in model.module().parameters()} == {dtype}


def test_our_own_gpt(tmp_path):
    config = GPTConfig(vocab_size=257, context_length=64, num_layers=2, num_heads=2, d_model=16)
    checkpoint.save(GPT(config), tmp_path)
    ByteTokenizer().save(tmp_path)
    model = load_model(find_model(str(tmp_path)), "gpt")
    ids = model.encode("né!")
    assert model.texts(ids) == ["n", "é 1/2", "é 2/2", "!"]
    attention = run(model, Read(ids), Chosen(None, None))
    assert [it.weights.shape for it in attention.layers.values()] == [(1, 2, 4, 4)] * 2
    assert show("--model", tmp_path, "--text", "né!", "--out", tmp_path / "p.html").exit_code == 0


def test_a_package_carries_the_model_and_is_not_imported(folder, tmp_path, monkeypatch):
    package = tmp_path / "my_small_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "extra").mkdir()
    (package / "extra" / "config.json").write_text("{}")
    os.symlink(folder, package / "weights")
    monkeypatch.syspath_prepend(tmp_path)
    found = find_model("my-small-model")
    assert found.folder == package / "weights"
    assert "my_small_model" not in sys.modules


def test_a_package_may_be_imported_by_another_name(folder, tmp_path, monkeypatch):
    (tmp_path / "the_weights").mkdir()
    (tmp_path / "the_weights" / "__init__.py").touch()
    os.symlink(folder, tmp_path / "the_weights" / "model")
    about = tmp_path / "my_small_model-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-small-model\nVersion: 1.0\n")
    (about / "RECORD").write_text("the_weights/__init__.py,,\nthe_weights/model/config.json,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_model("my-small-model").folder == tmp_path / "the_weights" / "model"


def test_a_folder_of_the_hubs_cache_is_searched(folder, tmp_path):
    snapshot = tmp_path / "models--name--of-it" / "snapshots" / "0123456789abcdef"
    snapshot.mkdir(parents=True)
    for file in folder.iterdir():
        os.symlink(file, snapshot / file.name)
    assert find_model(str(tmp_path / "models--name--of-it")).folder == snapshot


def test_code_beside_a_model_is_not_run(folder, tmp_path):
    model = tmp_path / "model"
    save(llama(), model)
    config = json.loads((model / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "code.C", "AutoModel": "code.M"}}
    (model / "config.json").write_text(json.dumps(config))
    (model / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert "without running code of its own" in error_of("--model", model, "--text", TEXT)
    assert not (tmp_path / "ran").exists()


def test_pickled_weights_are_refused(tmp_path):
    folder = save(llama(), tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    error = error_of("--model", folder, "--text", TEXT)
    assert ".bin" in error
    assert "pickle" in error


def test_missing_weights_are_refused(tmp_path):
    folder = save(llama(), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 5}))
    assert "random numbers" in error_of("--model", folder, "--text", TEXT)


def test_a_missing_tokenizer_is_named(tmp_path):
    folder = save(llama(), tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    assert "tokenizer.save_pretrained" in error_of("--model", folder, "--text", TEXT)


def test_a_model_with_attention_of_its_own_is_refused(tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.MPNetConfig(vocab_size=300, intermediate_size=16, **sizes)
    folder = save(transformers.MPNetModel(config), tmp_path / "model")
    assert "(mpnet), which has steps of its own" in error_of("--model", folder, "--text", TEXT)


def test_a_model_that_can_only_call_pytorchs_function_is_seen(tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = transformers.FalconModel(
        transformers.FalconConfig(vocab_size=300, multi_query=False, **sizes)
    )
    folder, out = save(model, tmp_path / "model"), tmp_path / "page.html"
    result = show("--model", folder, "--text", TEXT, "--out", out)
    assert result.exit_code == 0, result.output
    assert "h.1.self_attention" in out.read_text()


@pytest.mark.parametrize(
    ("text", "reason"), [("", "empty"), (" \n", "empty"), ("t", "at least two tokens")]
)
def test_a_text_without_two_tokens_is_refused(folder, text, reason):
    assert reason in error_of("--model", folder, "--text", text)


def test_files_that_are_no_text_are_refused(folder, tmp_path):
    file = tmp_path / "book.txt"
    for content, reason in ((b"", "empty"), (b"caf\xe9 au lait", "iconv")):
        file.write_bytes(content)
        assert reason in error_of("--model", folder, "--text-file", file)
    assert "No such file" in error_of("--model", folder, "--text-file", tmp_path / "none.txt")


def test_texts_beyond_the_positions(folder, tmp_path):
    long = "zebra " * 40
    assert "--tokens 64" in error_of("--model", folder, "--text", long)
    learned = save(gpt2(), tmp_path / "learned")
    error = error_of("--model", learned, "--text", long, "--tokens", "100")
    assert "at most 64 tokens" in error
    out = tmp_path / "page.html"
    result = show("--model", folder, "--text", long, "--tokens", "100", "--out", out)
    assert result.exit_code == 0, result.output  # rotary positions go on
    assert "trained on 64 tokens at most; these are 100" in result.stderr
    assert show("--model", learned, "--text", long, "--tokens", "64", "--out", out).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--model", "no_such_package", "--text", TEXT], "neither"),
        (["--model", "json", "--text", TEXT], "none"),
        (["--model", "heedful.gpt", "--text", TEXT], "neither"),
        (["--model", "/etc", "--text", TEXT], "config.json"),
        (["--model", "FOLDER"], "received neither"),
        (["--model", "FOLDER", "--text", TEXT, "--text-file", "x"], "received both"),
        (["--model", "FOLDER", "--text", TEXT, "--layers", "5-3"], "--layers"),
        (["--model", "FOLDER", "--text", TEXT, "--layers", "7"], "indices from 0 to 2"),
        (["--model", "FOLDER", "--text", TEXT, "--heads", "6"], "from 0 to 5"),
        (["--model", "FOLDER", "--text", TEXT, "--heads", "one"], "--heads"),
        (["--model", "FOLDER", "--text", TEXT, "--out", "page.pdf"], "--out"),
        (["--model", "FOLDER", "--text", TEXT, "--port", "0"], "--port"),
        (["--model", "FOLDER", "--text", TEXT, "--serve", "--out", "page.html"], "--out"),
        (["--model", "FOLDER", "--text", TEXT, "--labels", "a b"], "--labels"),
        (["my.py:Mine", "--model", "FOLDER", "--text", TEXT], "TARGET"),
        (["my.py:Mine", "--text", TEXT], "--text"),
        (["my.py:Mine", "--target-text", TEXT], "--target-text"),
        (["--model", "FOLDER", "--text", TEXT, "--target-text", TEXT], "is no encoder-decoder"),
        (["--what-if", "--serve"], "--serve"),
    ],
)
def test_errors_name_the_option(folder, arguments, reason):
    assert reason in error_of(*(folder if it == "FOLDER" else it for it in arguments))


def test_a_model_that_fails_is_named(folder, monkeypatch):
    class Broken(nn.Module):
        def forward(self, input_ids):
            raise IndexError("index out of range")

    model = load_model(find_model(str(folder)), "llama")
    object.__setattr__(model, "module", Broken)
    with pytest.raises(ArgumentError, match="raises IndexError: index out of range"):
        run(model, Read([1, 2, 3]), Chosen(None, None))


def test_texts_of_byte_level_tokens():
    tokenizer = SubwordTokenizer.train([TEXT] * 3, vocab_size=257)
    for text in ("né €", "🙂 a", "\ufffd!", "日本"):
        ids = tokenizer.encode(text)
        texts = token_texts(ids, tokenizer.decode)
        assert len(texts) == len(ids)
        shown = "".join(
            re.sub(r" (\d)/\d$", lambda m: "" if m[1] == "1" else "\0", it) for it in texts
        )
        if "\ufffd" not in text:
            assert re.sub(r".\0", "", shown) == text


def test_statistics_fit_into_memory():
    assert set(statistics_within(40, heads=72)) == {"top_k", "rows"}
    for tokens, heads in ((200, 10_000), (16384, 270), (32768, 2000), (100_000, 32)):
        found = statistics_within(tokens, heads)
        side = found.get("pool") or tokens
        assert heads * side**2 * 8 <= 1 << 28
        assert heads * tokens * found["top_k"] * 8 <= 2 * ROOM  # what no page has is not computed


@pytest.mark.parametrize(
    "chosen", [Chosen(None, None), Chosen([0, 2], None), Chosen(None, [1, 4, 5])]
)
def test_the_size_that_is_announced_is_what_is_kept(folder, chosen):
    model = load_model(find_model(str(folder)), "llama")
    ids = model.encode(TEXT)
    size = size_to_keep(model, Read(ids), chosen)
    with command.KeptAttention(size) as kept:
        run(model, Read(ids), chosen, kept)
        stored = kept._file.seek(0, os.SEEK_END)
    assert 0 <= stored - size < 64 * 3 * 3  # the alignment


def test_serving_until_ctrl_c(folder, tmp_path):
    pytest.importorskip("uvicorn", reason="install it with: pip install 'heedful[serve]'")
    command = [
        sys.executable,
        "-m",
        "heedful",
        "show",
        "--model",
        folder,
        "--text",
        TEXT,
        "--serve",
    ]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    ) as process:
        try:
            assert process.stdout is not None
            address = re.match(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
            script = (
                "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())"
            )
            asked = [sys.executable, "-c", script, address[0] if address else "none"]
            page = subprocess.run(asked, capture_output=True, text=True, check=False)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    assert address is not None, errors
    assert '"tiles":' in page.stdout
    assert "connect-src 'self'" in page.stdout
    assert process.returncode == 0
    assert re.fullmatch(r"The queries and keys take 1 MB in \S+ until the server ends\.\n", errors)
    assert list(tmp_path.iterdir()) == []
