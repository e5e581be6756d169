import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from twinmill.data.corpus import CorpusConfig, SourceFile, pack_rows, read_corpus, read_files, tokenize


def byte_tokenizer() -> Tokenizer:
    """One token per byte; `<|bos|>` is a special token."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(alphabet))}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.add_special_tokens(["<|bos|>"])
    return tokenizer


@pytest.fixture
def folder(tmp_path):
    for i in range(60):
        path = tmp_path / f"pkg{i % 3}" / f"m{i}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"x = {i}\n" * (i + 1))
    (tmp_path / "pkg0" / "tests").mkdir()
    (tmp_path / "pkg0" / "tests" / "test_m.py").write_text("assert True\n")
    (tmp_path / "pkg0" / "notes.txt").write_text("no code\n")
    (tmp_path / "empty.py").write_text("\n")
    (tmp_path / "latin.py").write_bytes(b"# \xe9\n")
    return tmp_path


def test_files_are_split_by_path_and_never_shared(folder):
    config = CorpusConfig(root=str(folder), heldout_frac=0.3)
    split = read_files(config)
    train, heldout = ({f.path for f in files} for files in split)
    assert not train & heldout
    assert train | heldout == {f"pkg{i % 3}/m{i}.py" for i in range(60)}
    assert 8 <= len(heldout) <= 30
    assert read_files(config) == split


def test_the_split_depends_on_nothing_but_the_path(folder):
    before = {f.path for f in read_files(CorpusConfig(root=str(folder), heldout_frac=0.3)).heldout}
    (folder / "pkg1" / "new.py").write_text("y = 1\n")
    for path in (folder / "pkg2").iterdir():
        path.write_text("changed = True\n")
    after = {f.path for f in read_files(CorpusConfig(root=str(folder), heldout_frac=0.3)).heldout}
    assert before == after - {"pkg1/new.py"}
    assert not read_files(CorpusConfig(root=str(folder), heldout_frac=0.0)).heldout


def test_max_bytes_bounds_each_split(folder):
    split = read_files(CorpusConfig(root=str(folder), heldout_frac=0.3, max_bytes=1000))
    for files in split:
        assert 0 < sum(len(f.text.encode()) for f in files) <= 1000
    whole = read_files(CorpusConfig(root=str(folder), heldout_frac=0.3, max_bytes=0))
    assert split.train == whole.train[: len(split.train)]


def test_a_folder_without_code_is_named(tmp_path):
    with pytest.raises(ValueError, match=str(tmp_path)):
        read_files(CorpusConfig(root=str(tmp_path)))


def test_rows_by_hand():
    assert pack_rows([[5, 6], [7]], 2, start_id=1).tolist() == [[1, 5], [6, 1]]
    assert pack_rows([], 4, 1).shape == (0, 4)


def test_special_tokens_in_code_stay_text():
    [ids] = tokenize([SourceFile("a.py", "'<|bos|>'")], byte_tokenizer())
    assert len(ids) == len("'<|bos|>'")
    assert byte_tokenizer().token_to_id("<|bos|>") not in ids


def test_rows_hold_the_files_themselves(folder):
    tokenizer = byte_tokenizer()
    start = tokenizer.token_to_id("<|bos|>")
    config = CorpusConfig(root=str(folder), heldout_frac=0.2, row_tokens=64)
    corpus = read_corpus(config, tokenizer, start)
    assert corpus.train.shape[1] == corpus.heldout.shape[1] == 64
    assert corpus.train.dtype == np.int64
    ids = [tokenizer.encode(f.text).ids for f in read_files(config).train]
    stream = [i for file in ids for i in (start, *file)]
    assert corpus.train.flatten().tolist() == stream[: corpus.train.size]
    assert len(stream) - corpus.train.size < 64


def test_the_standard_library_of_this_interpreter():
    split = read_files(CorpusConfig(max_bytes=300_000))
    assert sum(len(f.text) for f in split.train) > 100_000
    assert split.heldout
    paths = {f.path.split("/")[0] for f in split.train + split.heldout}
    assert not paths & {"test", "site-packages", "idlelib/idle_test"}


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="heldout_frac"):
        CorpusConfig(heldout_frac=1.0)
    with pytest.raises(ValueError, match="row_tokens"):
        CorpusConfig(row_tokens=1)
