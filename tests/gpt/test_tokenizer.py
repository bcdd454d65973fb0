"""Tokenizers: text survives a round trip, also token by token, after saving, and with files of other programs."""

import json
import sys

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from heedful.errors import ArgumentError, MissingExtraError
from heedful.gpt import tokenizer as module
from heedful.gpt.data.books import sonnets
from heedful.gpt.tokenizer import (
    END_OF_TEXT,
    ByteTokenizer,
    GPT2Tokenizer,
    SubwordTokenizer,
    Tokenizer,
    load_tokenizer,
    make_tokenizer,
)

tokenizers = pytest.importorskip("tokenizers", reason="pip install 'heedful[train]'")
tiktoken = pytest.importorskip("tiktoken", reason="pip install 'heedful[train]'")

ODD = "\r\n\t  two  spaces \u00a0\u2003 \x00 naïve — 🎉👩‍👩‍👧 日本 <|endoftext|> end "
texts = st.text() | st.text(alphabet=" \n\t\r\u00a0\u200b🎉é€a'")


def gpt2_of_bytes() -> GPT2Tokenizer:
    """Return a GPT2Tokenizer with an encoding of single bytes, because tiktoken's own files cannot be shipped."""
    encoding = tiktoken.Encoding(
        "bytes",
        pat_str=r"\s+|\S+",
        mergeable_ranks={bytes([byte]): byte for byte in range(256)},
        special_tokens={END_OF_TEXT: 256},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiktoken, "get_encoding", {"gpt2": encoding}.__getitem__)
        return GPT2Tokenizer()


KINDS = {
    "bytes": ByteTokenizer(),
    "bpe": make_tokenizer("bpe", sonnets().training(), 600),
    "gpt2": gpt2_of_bytes(),
}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def tokenizer(request) -> Tokenizer:
    return request.param


@given(text=texts)
@example(text=ODD)
@pytest.mark.parametrize("kind", KINDS)
def test_decoding_restores_the_text(kind, text):
    tokenizer = KINDS[kind]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(0 <= id < tokenizer.vocab_size and id != tokenizer.end_of_text for id in ids)


@given(text=texts)
@example(text=ODD)
@example(text="\ufffd")
@pytest.mark.parametrize("kind", KINDS)
def test_streamed_pieces_form_the_text_and_contain_whole_characters(kind, text):
    tokenizer = KINDS[kind]
    stream = tokenizer.stream()
    pieces = [stream.push(id) for id in tokenizer.encode(text)]
    assert "".join(pieces) + stream.end() == text
    assert "\ufffd" in text or "\ufffd" not in "".join(pieces)


@given(data=st.data())
@pytest.mark.parametrize("kind", KINDS)
def test_streaming_equals_decoding_for_any_ids(kind, data):
    tokenizer = KINDS[kind]
    some = st.integers(0, tokenizer.vocab_size - 1) | st.just(tokenizer.end_of_text)
    ids = data.draw(st.lists(some))
    stream = tokenizer.stream()
    assert "".join([stream.push(id) for id in ids]) + stream.end() == tokenizer.decode(ids)


def test_a_character_appears_with_its_last_byte(tokenizer):
    stream = tokenizer.stream()
    assert [stream.push(id) for id in tokenizer.encode("🎉")] == ["", "", "", "🎉"]


def test_invalid_bytes_are_held_back_by_at_most_three():
    stream = ByteTokenizer().stream()
    assert [stream.push(0xFF) for _ in range(5)] == ["", "", "", "\ufffd", "\ufffd"]
    assert stream.end() == "\ufffd\ufffd\ufffd"


def test_the_end_of_a_text_decodes_to_nothing(tokenizer):
    end = tokenizer.end_of_text
    assert tokenizer.decode([end, *tokenizer.encode("a"), end]) == "a"


def test_an_id_outside_the_vocabulary_is_named(tokenizer):
    for id in (-1, tokenizer.vocab_size):
        with pytest.raises(ArgumentError, match=rf"received {id}\."):
            tokenizer.decode([0, id])


def test_half_a_surrogate_pair_is_named(tokenizer):
    with pytest.raises(ArgumentError, match="at character 2"):
        tokenizer.encode("ab\udcff")


def test_training_is_silent_and_reproducible(capfd):
    texts = [*sonnets().training()] * 2
    assert len({make_tokenizer("bpe", texts, 700).fingerprint for _ in range(3)}) == 1
    assert capfd.readouterr() == ("", "")


def test_pairs_shorten_text_and_the_vocabulary_has_the_requested_size():
    text = "".join(sonnets().validation())
    assert KINDS["bpe"].vocab_size == 600
    assert len(KINDS["bpe"].encode(text)) < 0.6 * len(text)


def test_a_short_text_gives_a_smaller_vocabulary():
    tokenizer = make_tokenizer("bpe", ["abab"], 1000)
    assert tokenizer.vocab_size < 300
    assert tokenizer.decode(tokenizer.encode("never seen: é")) == "never seen: é"


def test_small_vocabularies_and_unknown_kinds_are_refused():
    with pytest.raises(ArgumentError, match="at least 257"):
        make_tokenizer("bpe", ["text"], 256)
    with pytest.raises(ArgumentError, match=r'"bytes" or "bpe" or "gpt2"; received \'words\''):
        make_tokenizer("words", [], 300)


def test_a_saved_tokenizer_is_loaded_unchanged(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "GPT2Tokenizer", gpt2_of_bytes)
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert type(loaded) is type(tokenizer)
    assert loaded.encode(ODD) == tokenizer.encode(ODD)
    assert (loaded.vocab_size, loaded.end_of_text, loaded.fingerprint) == (
        tokenizer.vocab_size,
        tokenizer.end_of_text,
        tokenizer.fingerprint,
    )


def test_transformers_reads_a_saved_tokenizer(tmp_path):
    transformers = pytest.importorskip("transformers", reason="pip install 'heedful[transformers]'")
    ours = KINDS["bpe"]
    ours.save(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert theirs.encode("Shall I compare thee") == ours.encode("Shall I compare thee")
    assert theirs.eos_token_id == ours.end_of_text


@pytest.fixture
def llama_folder(tmp_path):
    """Return a folder like Llama's: words with their spaces, bytes as a fallback, a start token, and padding."""
    words = ["<unk>", "<s>", "</s>", "▁to", "▁be", "▁", *(f"<0x{byte:02X}>" for byte in range(256))]
    theirs = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            {word: id for id, word in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True
        )
    )
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    theirs.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )
    theirs.add_special_tokens(["<s>", "</s>"])
    theirs.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    theirs.enable_truncation(4)
    theirs.enable_padding(length=32)
    theirs.save(str(tmp_path / "tokenizer.json"))
    eos = {"content": "</s>", "lstrip": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    return tmp_path


def test_a_tokenizer_json_keeps_its_start_and_end_tokens(llama_folder):
    tokenizer = load_tokenizer(llama_folder)
    ids = tokenizer.encode("to be €uro")
    assert (ids[0], tokenizer.end_of_text) == (1, 2)
    assert len(ids) > 4
    assert tokenizer.decode(ids) == "to be €uro"


def test_streaming_with_a_tokenizer_json_keeps_spaces_and_joins_bytes(llama_folder):
    tokenizer = load_tokenizer(llama_folder)
    stream = tokenizer.stream()
    pieces = [stream.push(id) for id in [3, 4, *tokenizer.encode("€")[2:], 4]]
    assert pieces == ["to", " be", "", "", "€", " be"]


def test_a_tokenizer_json_alone_has_no_end_of_text(llama_folder):
    (llama_folder / "tokenizer_config.json").unlink()
    assert load_tokenizer(llama_folder / "tokenizer.json").end_of_text is None


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe"])
def test_damaged_files_are_named(llama_folder, name, content):
    (llama_folder / name).write_bytes(content)
    with pytest.raises(ArgumentError, match=f"readable {name}.*{llama_folder}"):
        load_tokenizer(llama_folder)


def test_a_tokenizer_whose_loading_ends_in_a_panic_is_named(llama_folder):
    fields = json.loads((llama_folder / "tokenizer.json").read_text())
    fields["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": ""}
    (llama_folder / "tokenizer.json").write_text(json.dumps(fields))
    with pytest.raises(ArgumentError, match=f"readable tokenizer.json.*{llama_folder}"):
        load_tokenizer(llama_folder)


def test_a_normalizer_that_asks_for_much_memory_is_refused_before_it_is_allocated(llama_folder):
    fields = json.loads((llama_folder / "tokenizer.json").read_text())
    steps = [{"type": "Precompiled", "precompiled_charsmap": "/////w=="}]
    fields["normalizer"] = {"type": "Sequence", "normalizers": steps}
    (llama_folder / "tokenizer.json").write_text(json.dumps(fields))
    with pytest.raises(ArgumentError, match="claims 4294967295 bytes and has 4"):
        load_tokenizer(llama_folder)


def test_an_end_token_that_is_no_text_is_named(llama_folder):
    (llama_folder / "tokenizer_config.json").write_text(r'{"eos_token": "\ud800"}')
    with pytest.raises(ArgumentError, match="eos_token that is not text"):
        load_tokenizer(llama_folder)


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    for config in (None, "{}"):
        if config:
            (tmp_path / "tokenizer_config.json").write_text(config)
        with pytest.raises(ArgumentError, match=str(tmp_path)):
            load_tokenizer(tmp_path)


@pytest.mark.parametrize("error", [ConnectionError("no network"), ValueError("Hash mismatch")])
def test_gpt2s_vocabulary_that_cannot_be_loaded_is_named(monkeypatch, error):
    def failing(name: str):
        raise error

    monkeypatch.setattr(tiktoken, "get_encoding", failing)
    with pytest.raises(
        ArgumentError, match=rf"received {type(error).__name__}: {error}\. .*TIKTOKEN"
    ):
        GPT2Tokenizer()


def test_a_missing_package_is_named_with_its_extra(llama_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    for needs in (
        lambda: SubwordTokenizer.train([], 300),
        GPT2Tokenizer,
        lambda: load_tokenizer(llama_folder),
    ):
        with pytest.raises(MissingExtraError, match=r"heedful\[train\]"):
            needs()
