"""Tokenizers of each family, copied beside a config of ours and back: the same class, ids and text, also without the package."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
from tokenizers import Tokenizer, models
from transformers import (
    AutoFeatureExtractor,
    AutoModelForSeq2SeqLM,
    AutoProcessor,
    AutoTokenizer,
    M2M100Config,
    MBartConfig,
    PreTrainedTokenizerFast,
    WhisperFeatureExtractor,
)

import transduct
from english import tokenizer as english_tokenizer
from tiny_tokenizers import TOKENIZERS, write_tokenizer
from transduct.convert import tokenizers
from transduct.convert.folders import import_folder
from transduct.convert.tokenizers import HARD_STRINGS, bring_along, check_tokenizer, check_vocabulary, load_tokenizer
from transduct.tokenization import TransductTokenizer

SIZE = 2000
TEXT = "The array is nice."
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses", "ignore:This sequence already has")


def empty(folder: Path) -> Path:
    """A folder with no more than a config of ours."""
    transduct.TransductConfig(vocab_size=SIZE).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, tuple[Path, Path, Path]]:
    """For each tokenizer the original folder, the imported and the exported one."""
    root = tmp_path_factory.mktemp("tokenizers")
    made = {}
    for name in TOKENIZERS:
        original = write_tokenizer(name, root / name / "original")
        imported, exported = empty(root / name / "imported"), root / name / "exported"
        bring_along(original, imported, SIZE, SIZE)
        exported.mkdir()
        (exported / "config.json").write_bytes((original / "config.json").read_bytes())
        bring_along(imported, exported, SIZE, SIZE)
        made[name] = original, imported, exported
    return made


def readings(tokenizer) -> list:
    """What a tokenizer makes of each hard string, both sides."""
    pairs = [(tokenizer(text, verbose=False), tokenizer(text_target=text, verbose=False)) for text in HARD_STRINGS.values()]
    texts = [[tokenizer.decode(target["input_ids"], skip_special_tokens=skip) for _, target in pairs] for skip in (False, True)]
    return [[source["input_ids"] for source, _ in pairs], [target["input_ids"] for _, target in pairs], *texts]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_comes_along_and_goes_back(name, folders):
    original, *copies = (AutoTokenizer.from_pretrained(folder) for folder in folders[name])
    for copy in copies:
        assert type(copy) is type(original)
        assert readings(copy) == readings(original)
        assert copy.get_vocab() == original.get_vocab()
        for setting in ("special_tokens_map", "all_special_ids", "model_max_length", "padding_side", "truncation_side"):
            assert getattr(copy, setting) == getattr(original, setting)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
def test_it_may_be_saved_again(name, folders, tmp_path):
    """As training does with the model that it has finished."""
    AutoTokenizer.from_pretrained(folders[name][1]).save_pretrained(empty(tmp_path))
    check_tokenizer(folders[name][0], tmp_path)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_its_files_are_the_same_but_for_a_missing_class(name, folders):
    original, *copies = folders[name]
    for copy in copies:
        for path in original.iterdir():
            if path.name not in ("config.json", "tokenizer_config.json"):
                assert (copy / path.name).read_bytes() == path.read_bytes()
        before, after = (json.loads((folder / "tokenizer_config.json").read_text()) for folder in (original, copy))
        if before.get("tokenizer_class") not in (None, "T5Tokenizer"):  # UMT5's names a class that AutoTokenizer does not use
            assert before == after
        assert before | {"tokenizer_class": after["tokenizer_class"]} == after


def test_a_class_that_followed_from_the_model_type_is_written_down(folders):
    classes = {"t5 of version 4": "T5Tokenizer", "bart": "RobertaTokenizer", "mt5": "T5Tokenizer", "umt5": "TokenizersBackend"}
    for name, expected in classes.items():
        values = json.loads((folders[name][1] / "tokenizer_config.json").read_text())
        assert values["tokenizer_class"] == expected


def test_without_it_the_copy_would_be_another_tokenizer(folders, tmp_path):
    """What the class is written for: T5Tokenizer splits at white space, UMT5's file does not."""
    copy = empty(tmp_path)
    for path in folders["umt5"][0].iterdir():
        if path.name != "config.json":
            (copy / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ValueError, match="in length: 400, there 300"):
        check_tokenizer(folders["umt5"][0], copy)


@pytest.mark.parametrize("name", ["mbart", "mbart50", "plbart", "m2m_100", "nllb"])
def test_languages_can_be_set(name, folders):
    original, imported, _ = (AutoTokenizer.from_pretrained(folder) for folder in folders[name])
    languages = {"plbart": ("java", "en_XX"), "m2m_100": ("fr", "zh"), "nllb": ("deu_Latn", "arb_Arab")}
    source, target = languages.get(name, ("de_DE", "fr_XX"))
    assert (imported.src_lang, imported.tgt_lang) == (original.src_lang, original.tgt_lang)
    default = imported(TEXT).input_ids
    for tokenizer in (original, imported):
        tokenizer.src_lang, tokenizer.tgt_lang = source, target
    assert imported(TEXT, text_target=TEXT).data == original(TEXT, text_target=TEXT).data
    assert imported(TEXT).input_ids != default
    assert imported.unk_token_id not in imported(TEXT).input_ids
    loaded = AutoTokenizer.from_pretrained(folders[name][1], src_lang=source, tgt_lang=target)
    assert loaded(TEXT, text_target=TEXT).data == original(TEXT, text_target=TEXT).data


SCRIPT = """
import json, sys
sys.modules["transduct"] = None
from transformers import AutoTokenizer
folders, texts = json.load(open("asked.json"))
found = {}
for name, folder in folders.items():
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found[name] = [type(tokenizer).__name__, [tokenizer(text, verbose=False).input_ids for text in texts]]
json.dump(found, open("found.json", "w"))
"""


@pytest.mark.slow
def test_no_package_and_no_remote_code_are_needed_to_load_them(folders, tmp_path):
    texts = list(HARD_STRINGS.values())
    (tmp_path / "asked.json").write_text(json.dumps([{name: str(imported) for name, (_, imported, _) in folders.items()}, texts]))
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], env=environment, cwd=tmp_path, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    for name, (class_name, ids) in json.loads((tmp_path / "found.json").read_text()).items():
        original = AutoTokenizer.from_pretrained(folders[name][0])
        assert class_name == type(original).__name__
        assert ids == [original(text, verbose=False).input_ids for text in texts]
    assert not list(tmp_path.rglob("*.py"))  # no code was copied to be executed


def test_our_own_tokenizer_in_another_familys_folder_is_read_by_a_class_of_transformers(tmp_path):
    ours = empty(tmp_path / "ours")
    tokenizer = english_tokenizer("bpe")
    tokenizer.save_pretrained(ours)
    exported = tmp_path / "exported"
    exported.mkdir()
    (exported / "config.json").write_text('{"model_type": "t5"}')
    bring_along(ours, exported, SIZE)
    loaded = AutoTokenizer.from_pretrained(exported)
    assert type(loaded).__name__ == "TokenizersBackend"
    assert readings(loaded) == readings(tokenizer)
    bring_along(exported, empty(tmp_path / "again"), SIZE)
    imported = empty(tmp_path / "kept")
    bring_along(ours, imported, SIZE)
    assert type(AutoTokenizer.from_pretrained(imported)) is TransductTokenizer


def test_two_vocabularies_of_ours_stay_with_us(tmp_path):
    ours = empty(tmp_path / "ours")
    TransductTokenizer.train(iter(["one two"]), "words", target=iter(["eins zwei"])).save_pretrained(ours)
    (tmp_path / "t5").mkdir()
    (tmp_path / "t5" / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(ValueError, match="a vocabulary for each side, which no tokenizer of transformers can have"):
        bring_along(ours, tmp_path / "t5", SIZE)


def test_a_tokenizer_of_a_third_program_is_refused(tmp_path, monkeypatch):
    class Foreign(PreTrainedTokenizerFast):
        pass

    monkeypatch.setattr(tokenizers, "load_tokenizer", lambda folder: Foreign(tokenizer_object=Tokenizer(models.BPE())))
    with pytest.raises(ValueError, match="Foreign is no tokenizer of transformers: its code would be needed"):
        bring_along(tmp_path / "source", empty(tmp_path / "target"), SIZE)


def test_a_target_prefix_that_would_be_lost_is_named(tmp_path):
    ours = empty(tmp_path / "ours")
    TransductTokenizer.train(iter(["one two"]), "words", languages=["de"], target_prefix=["<2de>"]).save_pretrained(ours)
    (tmp_path / "t5").mkdir()
    (tmp_path / "t5" / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(ValueError, match=r"differs .* for empty, '': ids as a target"):
        bring_along(ours, tmp_path / "t5", SIZE)


@pytest.mark.parametrize("change", ["a token", "a setting", "the files"])
def test_a_difference_is_named(change, folders, tmp_path):
    original = folders["t5"][0]
    copy = empty(tmp_path)
    bring_along(original, copy, SIZE)
    path = copy / ("tokenizer.json" if change == "a token" else "tokenizer_config.json")
    values = json.loads(path.read_text())
    if change == "a token":
        next(row for row in values["model"]["vocab"] if row[0] == "▁the")[1] = -50.0
        message = r"differs from the one in .* for .*: ids \[.*\], there \["
    else:
        values["model_max_length"] = 12
        message = "in model_max_length: 12, there 512"
    path.write_text(json.dumps(values))
    if change == "the files":
        path.unlink()
        (copy / "tokenizer.json").unlink()
        message = "the first folder has none"
    with pytest.raises(ValueError, match=message):
        check_tokenizer(original, copy)


def test_a_model_without_a_tokenizer_has_none(tmp_path):
    source, target = tmp_path / "source", empty(tmp_path / "target")
    source.mkdir()
    (source / "config.json").write_text('{"model_type": "mt5", "tokenizer_class": "T5Tokenizer"}')
    assert bring_along(source, target, SIZE) == []
    assert load_tokenizer(target) is None


def test_the_bytes_of_byt5_need_no_file_at_all(tmp_path):
    source, target = tmp_path / "source", empty(tmp_path / "target")
    source.mkdir()
    (source / "config.json").write_text('{"model_type": "t5", "tokenizer_class": "ByT5Tokenizer"}')
    assert bring_along(source, target, SIZE) == ["tokenizer_config.json"]
    assert AutoTokenizer.from_pretrained(target).decode(AutoTokenizer.from_pretrained(target)("é").input_ids) == "é</s>"


def test_settings_without_a_vocabulary_are_refused(tmp_path):
    """transformers would make up a vocabulary of three tokens."""
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"settings of a T5Tokenizer without a vocabulary, none of \['spiece.model'"):
        load_tokenizer(tmp_path)


def test_code_is_not_executed(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "code.py").write_text("raise SystemExit('executed')")
    (tmp_path / "tokenizer_config.json").write_text(
        '{"auto_map": {"AutoTokenizer": [null, "code.Own"]}, "tokenizer_class": "Own"}'
    )
    with pytest.raises(ValueError, match="cannot be loaded, by transformers' own code alone"):
        load_tokenizer(tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="remove its files to convert the model alone"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "greatest"), [("t5", 300 + 20 - 1), ("byt5", 3 + 256 + 20 - 1), ("m2m_100", 301 + 100 - 1), ("bart", 400 - 1)]
)
def test_each_id_needs_an_embedding(name, greatest, folders):
    folder = folders[name][0]
    tokenizer = load_tokenizer(folder)
    with pytest.raises(ValueError, match=f"the tokenizer in .* has ids up to {greatest}, but the model only {greatest} emb"):
        check_vocabulary(tokenizer, folder, greatest)
    check_vocabulary(tokenizer, folder, greatest + 1)


def test_each_side_has_its_embeddings(folders):
    folder = folders["marian of two vocabularies"][0]
    size = len(json.loads((folder / "target_vocab.json").read_text()))
    tokenizer = load_tokenizer(folder)
    with pytest.raises(ValueError, match=f"the target's tokenizer in .* has ids up to {size - 1}, but the model only {size - 1}"):
        check_vocabulary(tokenizer, folder, SIZE, size - 1)
    check_vocabulary(tokenizer, folder, SIZE, size)


@pytest.mark.parametrize(
    ("name", "target", "token"),
    [("nllb", "deu_Latn", "deu_Latn"), ("m2m_100", "de", "__de__"), ("mbart50", "de_DE", "de_DE"), ("mbart", "de_DE", "de_DE")],
)
@pytest.mark.parametrize("beams", [1, 4])
def test_translations_of_an_imported_model_are_theirs(name, target, token, beams, folders, tmp_path):
    original, imported = tmp_path / "original", tmp_path / "imported"
    shutil.copytree(folders[name][0], original)
    config_class, class_name = {"mbart": (MBartConfig, "MBartForConditionalGeneration")}.get(
        name.removesuffix("50"), (M2M100Config, "M2M100ForConditionalGeneration")
    )
    sizes = dict(d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=24, decoder_ffn_dim=24, init_std=0.4)
    heads = dict(encoder_attention_heads=2, decoder_attention_heads=2, max_position_embeddings=64)
    model = getattr(transformers, class_name)(config_class(vocab_size=420, **sizes, **heads)).eval()
    model.save_pretrained(original)
    import_folder(original, imported, verify=False)
    outputs = []
    for folder in (original, imported):
        translator, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        language = tokenizer.convert_tokens_to_ids(token)
        forced = {"decoder_start_token_id": language} if name == "mbart" else {"forced_bos_token_id": language}
        inputs = tokenizer([TEXT, "All elements of the array, or of a part of it."], padding=True, return_tensors="pt")
        ids = translator.generate(**inputs, **forced, num_beams=beams, max_new_tokens=12)
        outputs.append((inputs["input_ids"].tolist(), ids.tolist(), tokenizer.batch_decode(ids, skip_special_tokens=True)))
        assert (ids[:, 0 if name == "mbart" else 1] == language).all()
    assert outputs[0] == outputs[1]
    assert len({tuple(ids) for ids in outputs[0][1]}) == 2


@pytest.mark.parametrize("layout", ["with both classes", "without any class", "of version 5"])
def test_a_processor_comes_along(layout, folders, tmp_path):
    original, imported = write_tokenizer("whisper", tmp_path / "original"), empty(tmp_path / "imported")
    features = WhisperFeatureExtractor(feature_size=8, chunk_length=2, n_fft=200)
    features.save_pretrained(original)
    path = original / "preprocessor_config.json"
    if layout == "without any class":
        values = json.loads(path.read_text())
        path.write_text(json.dumps({key: value for key, value in values.items() if not key.endswith(("_type", "_class"))}))
    elif layout == "with both classes":
        path.write_text(json.dumps(json.loads(path.read_text()) | {"processor_class": "WhisperProcessor"}))
    else:
        AutoProcessor.from_pretrained(original).save_pretrained(original)
        path.unlink()
    names = bring_along(original, imported, SIZE)
    assert {"preprocessor_config.json", "processor_config.json"} & set(names)
    assert type(AutoProcessor.from_pretrained(imported)).__name__ == "WhisperProcessor"
    assert AutoFeatureExtractor.from_pretrained(imported).to_dict() == AutoFeatureExtractor.from_pretrained(original).to_dict()
    if layout == "with both classes":
        assert (imported / "preprocessor_config.json").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("named", [True, False])
def test_a_feature_extractor_needs_no_tokenizer(named, tmp_path):
    original, imported = tmp_path / "original", empty(tmp_path / "imported")
    WhisperFeatureExtractor(feature_size=8, chunk_length=2, n_fft=200).save_pretrained(original)
    path = original / "preprocessor_config.json"
    values = json.loads(path.read_text())
    if not named:
        path.write_text(json.dumps({key: value for key, value in values.items() if key != "feature_extractor_type"}))
    (original / "config.json").write_text('{"model_type": "whisper"}')
    assert bring_along(original, imported, SIZE) == ["preprocessor_config.json"]
    assert AutoFeatureExtractor.from_pretrained(imported).to_dict() == AutoFeatureExtractor.from_pretrained(original).to_dict()
    assert json.loads((imported / "preprocessor_config.json").read_text())["feature_extractor_type"] == "WhisperFeatureExtractor"
