"""Tokenizers, feature extractors and processors come along with a checkpoint, unchanged.

Their files are copied as they are, and what was copied is compared with the original: the same class, the same settings, and the
same ids and text for `HARD_STRINGS`. AutoTokenizer finds the class by `tokenizer_class` in tokenizer_config.json or else by the
`model_type` of config.json, which a conversion changes. Where the copy would be read by another class, `tokenizer_class` is
written; that is the only change. Nothing is executed from a folder, and the package need not be there to read the copy.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoFeatureExtractor, AutoProcessor, AutoTokenizer, PreTrainedTokenizerBase

from transduct.convert.checkpoint import read_json
from transduct.tokenization import TransductTokenizer

TOKENIZER_CONFIG, FEATURES, PROCESSOR = "tokenizer_config.json", "preprocessor_config.json", "processor_config.json"
SETTINGS = (
    TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json",
    "additional_chat_templates/*.jinja",
)  # fmt: skip
VOCABULARIES = (
    "tokenizer.json", "tokenizer.*.json", "vocab.json", "target_vocab.json", "vocab.txt", "merges.txt", "*.model", "*.spm",
    "target/*.json", "normalizer.json",
)  # fmt: skip
FILES = (*SETTINGS, *VOCABULARIES, FEATURES, PROCESSOR)
"""What is copied, as patterns inside a folder."""

HARD_STRINGS = {
    "empty": "",
    "a blank": " ",
    "blanks": "  two  blanks   and three ",
    "new lines": "\none\n\ntwo\r\nthree\n",
    "tabs": "\ta\t\tb",
    "other white space": "a\u00a0b\u2003c\u3000d\u200be\u2028f",
    "upper and lower case": "Straße STRASSE straße İstanbul ıI",
    "numbers and signs": "3.14159 - 10,000 ½ ²³ № € £ % & @ # ^ ~ | \\ / _ ▁",
    "quotation marks": '"It\'s" “quoted” ‘text’ «ici» „dort“ … -- – —',
    "code": "def f(x):\n    return x[0] != {'a': None}  # why?\n",
    "emoji with joiners": "👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇩🇪 ☺️",
    "combining marks": "e\u0301 é a\u0308\u0323 ạ̈ Z\u0351\u036b\u0343 ﬁ Å Å",
    "Hebrew and Arabic": "שָׁלוֹם עולם مرحبا بالعالم ١٢٣ \u202babc\u202c",
    "Chinese, Japanese and Korean": "我爱北京。ｆｕｌｌ　ｗｉｄｔｈ ｶﾞ ガ 한국어 \u1112\u1161\u11ab",
    "Devanagari and Thai": "नमस्ते क्षत्रिय ภาษาไทย",
    "outside the first plane": "𝕬𝖇𝖈 𠮷野家 \U00010348",
    "control characters": "a\x00b\x01\x07\x1b[0m\x7f\x85\ufeffc\ufffd",
    "a sentence": "The quick brown fox doesn't jump over the lazy dog.",
    "special tokens": "<s> a </s> b<pad>c <unk><mask> </s></s> <|endoftext|>",
    "sentinels": "a <extra_id_0> b<extra_id_1> <extra_id_99>c <mask_1> <unk_2>",
    "language codes": "en_XX de_DE eng_Latn deu_Latn __en__ __java__ >>deu<< Hallo <2de> <|en|>",
    "a long word": "a" * 500,
    "a long text": "Attention is all you need. " * 100,
}
"""Texts that tokenizers are known to treat differently, by what is hard in them."""


def copy_files(source: str | Path, target: str | Path) -> list[str]:
    """Copy all files of tokenizers and processors from one folder to another; returns their names."""
    source, target = Path(source), Path(target)
    found = sorted({path.relative_to(source) for pattern in FILES for path in source.glob(pattern) if path.is_file()})
    for name in found:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)
    return [str(name) for name in found]


def bring_along(source: str | Path, target: str | Path, vocab_size: int, decoder_vocab_size: int | None = None) -> list[str]:
    """Copy what turns text and sound into ids and features, and prove that the copy does as the original.

    Args:
        source: the folder of the checkpoint; target: that of the converted one, where config.json already is.
        vocab_size, decoder_vocab_size: rows of the embeddings, and of the target's where it has its own.

    Returns:
        The names of the files; none, if the checkpoint has no tokenizer and no processor.

    Raises:
        ValueError: if the original cannot be read without executing code, misses its vocabulary or has ids without embeddings,
            and if the copy differs.
    """
    source, target = Path(source), Path(target)
    names = copy_files(source, target)
    original = load_tokenizer(source)
    if original is not None:
        check_vocabulary(original, source, vocab_size, decoder_vocab_size)
        if _name_tokenizer(target, _wanted_class(original, target)):
            names = sorted({*names, TOKENIZER_CONFIG})
        _compare(source, original, target, load_tokenizer(target))
    if {FEATURES, PROCESSOR} & set(names):
        _name_processor(source, target, with_tokenizer=original is not None)
    return names


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerBase | None:
    """The tokenizer that AutoTokenizer finds in a folder, without its code; None if the folder has none.

    Raises:
        ValueError: if there are settings without a vocabulary, or files that cannot be read.
    """
    folder = Path(folder)
    settings, vocabulary = ([p for pattern in patterns for p in folder.glob(pattern)] for patterns in (SETTINGS, VOCABULARIES))
    if not settings and not vocabulary and _read(folder / "config.json").get("tokenizer_class") != "ByT5Tokenizer":
        return None  # ByT5's has no file at all
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        reason = f"the tokenizer in {str(folder)!r} cannot be loaded, by transformers' own code alone: {error}"
        raise ValueError(f"{reason}. Install what it asks for, or remove its files to convert the model alone") from error
    if type(tokenizer).vocab_files_names and not vocabulary:
        expected = sorted(set(type(tokenizer).vocab_files_names.values()))  # transformers would make up a vocabulary
        raise ValueError(
            f"{str(folder)!r} has settings of a {type(tokenizer).__name__} without a vocabulary, none of {expected}; copy the "
            "missing file, or remove the settings to convert the model alone"
        )
    return tokenizer


def load_processor(folder: str | Path) -> Any:
    """The processor that AutoProcessor finds in a folder, without its code; None if the folder has none of sounds and tokens.

    Raises:
        ValueError: if there are files that cannot be read.
    """
    if not any((Path(folder) / name).is_file() for name in (FEATURES, PROCESSOR)):
        return None
    try:
        return AutoProcessor.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        raise ValueError(
            f"the processor in {str(folder)!r} cannot be loaded, by transformers' own code alone: {error}"
        ) from error


def check_vocabulary(
    tokenizer: PreTrainedTokenizerBase, folder: str | Path, vocab_size: int, decoder_vocab_size: int | None = None
) -> None:
    """Each id of a tokenizer must have an embedding.

    Raises:
        ValueError: naming the greatest id and the number of embeddings.
    """
    languages = getattr(tokenizer, "lang_code_to_id", {})  # M2M100 counts them after its vocabulary
    targets = _read(Path(folder) / "target_vocab.json")  # Marian's with two vocabularies
    sides = {"": ([*tokenizer.get_vocab().values(), *languages.values()], vocab_size)}
    if targets:
        sides["target's "] = ([*targets.values()], decoder_vocab_size or vocab_size)
    for side, (ids, rows) in sides.items():
        if max(ids, default=0) >= rows:
            raise ValueError(
                f"the {side}tokenizer in {str(folder)!r} has ids up to {max(ids)}, but the model only {rows} embeddings; they do "
                "not belong together. Resize the model's embeddings, or take the tokenizer that it was trained with"
            )


def check_tokenizer(original_folder: str | Path, converted_folder: str | Path) -> None:
    """Compare the tokenizers of two folders: settings, then ids and text for each hard string and each language.

    Raises:
        ValueError: naming the first setting or string that differs.
    """
    _compare(original_folder, load_tokenizer(original_folder), converted_folder, load_tokenizer(converted_folder))


def _compare(original_folder: str | Path, original: Any, converted_folder: str | Path, converted: Any) -> None:
    where = f"the tokenizer in {str(converted_folder)!r} differs from the one in {str(original_folder)!r}"
    if original is None or converted is None:
        if original is not converted:
            raise ValueError(f"{where}: {'the first' if converted is None else 'the second'} folder has none")
        return
    for (name, found), (_, expected) in zip(_settings(converted), _settings(original), strict=True):
        if found != expected:
            raise ValueError(f"{where} in {name}: {found!r}, there {expected!r}")
    special = original.all_special_tokens
    texts = HARD_STRINGS | {"its special tokens": " word ".join(special), "its special tokens, joined": "".join(special)}
    _compare_texts(where, texts, original, converted)
    for code in _languages(original):
        original.src_lang = original.tgt_lang = converted.src_lang = converted.tgt_lang = code
        _compare_texts(f"{where}, with src_lang=tgt_lang={code!r}", {"a word": "word"}, original, converted)


def _compare_texts(where: str, texts: dict[str, str], original: Any, converted: Any) -> None:
    for name, text in texts.items():
        for (reading, found), (_, expected) in zip(_readings(converted, text), _readings(original, text), strict=True):
            if found != expected:
                shown = text if len(text) < 60 else f"{text[:60]}..."
                raise ValueError(f"{where} for {name}, {shown!r}: {reading} {found}, there {expected}")


def _settings(tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[str, Any]]:
    yield "length", len(tokenizer)
    for name in ("all_special_tokens", "all_special_ids", "model_input_names", "model_max_length", "padding_side",
                 "special_tokens_map", "split_special_tokens", "truncation_side"):  # fmt: skip
        yield name, getattr(tokenizer, name)
    if _takes_languages(tokenizer):
        yield "src_lang", tokenizer.src_lang
        yield "tgt_lang", tokenizer.tgt_lang
    yield "vocabulary", dict(tokenizer.get_vocab())


def _readings(tokenizer: PreTrainedTokenizerBase, text: str) -> Iterator[tuple[str, Any]]:
    """What a tokenizer makes of a text, each with a name. What it refuses, the other one must refuse alike."""

    def attempt(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    source = attempt(lambda: tokenizer(text, verbose=False)["input_ids"])
    target = attempt(lambda: tokenizer(text_target=text, verbose=False)["input_ids"])
    yield "ids", source
    yield "ids without special tokens", attempt(lambda: tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    yield "ids as a target", target
    for name, ids in (("text", source), ("text as a target", target)):
        yield name, attempt(partial(tokenizer.decode, ids))
        yield f"{name} without special tokens", attempt(partial(tokenizer.decode, ids, skip_special_tokens=True))


def _takes_languages(tokenizer: PreTrainedTokenizerBase) -> bool:
    return "src_lang" in dir(type(tokenizer))


def _languages(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The codes that `src_lang` takes: of mBART, M2M100 and PLBart a table, of NLLB special tokens."""
    if not _takes_languages(tokenizer):
        return []
    table = getattr(tokenizer, "lang_code_to_id", None)
    return list(table or [token for token in tokenizer.all_special_tokens if re.fullmatch(r"[a-z]{3}_[A-Z][a-z]{3}", token)])


def _wanted_class(tokenizer: PreTrainedTokenizerBase, folder: Path) -> str:
    """The class that must read the copy of a tokenizer: its own; in another family's folder one of transformers.

    Raises:
        ValueError: if the tokenizer has two vocabularies as only a `TransductTokenizer` can have, or is of a third program.
    """
    name = type(tokenizer).__name__
    if type(tokenizer).__module__.startswith("transformers."):
        return name
    if not isinstance(tokenizer, TransductTokenizer):
        raise ValueError(f"{name} is no tokenizer of transformers: its code would be needed. Remove its files from the folder")
    if _read(folder / "config.json").get("model_type") == "transduct":
        return name
    if tokenizer.separate_vocabularies:
        raise ValueError(
            "this TransductTokenizer has a vocabulary for each side, which no tokenizer of transformers can have: remove its "
            "files from the folder to export the model alone, and give the other tool both files of tokenizer.json"
        )
    return "TokenizersBackend"


def _name_tokenizer(folder: Path, wanted: str) -> bool:
    """Write `tokenizer_class` where AutoTokenizer would find another class; says whether it was written."""
    try:
        found = type(AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)).__name__
    except Exception:  # TransductTokenizer refuses the files of others
        found = ""
    if found == wanted:
        return False
    _write(folder / TOKENIZER_CONFIG, _read(folder / TOKENIZER_CONFIG) | {"tokenizer_class": wanted})
    return True


def _name_processor(source: Path, target: Path, with_tokenizer: bool) -> None:
    """Write the classes of the feature extractor and of the processor, which has a tokenizer too, where they are not named.

    Raises:
        ValueError: if the copies differ.
    """
    loaders = {"feature_extractor_type": AutoFeatureExtractor} | ({"processor_class": AutoProcessor} if with_tokenizer else {})
    options = {"trust_remote_code": False, "local_files_only": True}
    originals = {name: loader.from_pretrained(source, **options) for name, loader in loaders.items()}
    classes = {name: type(original).__name__ for name, original in originals.items()}
    if (target / FEATURES).is_file() and not classes.keys() <= (_read(target / FEATURES) | _read(target / PROCESSOR)).keys():
        _write(target / FEATURES, classes | _read(target / FEATURES))
    copies = {name: loader.from_pretrained(target, **options) for name, loader in loaders.items()}
    for name, original in originals.items():
        if type(copies[name]) is not type(original):
            raise ValueError(f"{name} in {str(target)!r} is {type(copies[name]).__name__}, there {classes[name]}")
    expected, found = (made["feature_extractor_type"].to_dict() for made in (originals, copies))
    if found != expected:
        raise ValueError(f"the feature extractor in {str(target)!r} is {found}, that in {str(source)!r} is {expected}")


def _read(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
