"""Marian's vocabularies: which files a model uses, and a tokenizer of them.

- `.yml`, `.yaml`, `.json`: token to id; `.txt`: a token a line; `.spm`: SentencePiece, which cuts text itself.
- Text is cut by SentencePiece where the vocabulary is one or `source.spm` and `target.spm` lie beside the model (OPUS-MT); the
  tokenizer is then transformers' `MarianTokenizer`, with the files that transformers' own conversions have. Otherwise words are
  cut at white space, and the text must have been prepared as the model's data was.
- A padding token is added; see `marian_npz.py`.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import yaml
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase

from transduct.tokenization import NAMED_TOKENS, TransductTokenizer

PAD = NAMED_TOKENS["pad_token"]
TABLES = (".yml", ".yaml", ".json")


def decoder_options(model: Path) -> dict[str, Any]:
    """The options of marian-decoder beside a model, {} if there are none: beam-size, normalize, vocabs.

    Raises:
        ValueError: for a file that holds no options by name.
    """
    for name in (f"{model.name}.decoder.yml", f"{model.name}.yml", "decoder.yml", "config.yml"):
        path = model.parent / name
        if path.is_file():
            options = _yaml(path)
            if not isinstance(options, dict):
                raise ValueError(f"{path} must hold options by name")
            return options
    return {}


def _yaml(path: Path, loader: Any = yaml.SafeLoader) -> Any:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {error}") from error


def vocabulary_files(model: Path, said: dict[str, Any], given: tuple[str | Path, ...] | None) -> tuple[Path, Path]:
    """The files of the source's and the target's vocabulary.

    Args:
        said: the decoder's options; given: the caller's choice, one file or two.

    Raises:
        ValueError: if it is not known which they are, or one is missing.
    """
    named = list(given) if given is not None else said.get("vocabs") or []
    if not isinstance(named, list) or len(named) not in (1, 2):
        raise ValueError(
            f"it is not known which vocabularies {str(model)!r} uses: name them with vocabularies=(source, target), or as "
            "vocabs in decoder.yml beside it"
        )
    files = []
    for name in named:
        options = [Path(name), model.parent / name, model.parent / Path(name).name]  # it may have been moved from elsewhere
        found = next((path for path in options if path.is_file()), None)
        if found is None:
            raise ValueError(f"the vocabulary {str(name)!r} of {str(model)!r} is missing")
        files.append(found)
    return files[0], files[-1]


def read_vocabulary(path: Path, size: int) -> dict[str, int]:
    """Token to id of a file, of which there must be `size`.

    Raises:
        ValueError: for a file of another kind or size, ids that are none, or no `</s>` or `<unk>`.
    """
    if path.suffix == ".spm":
        from sentencepiece import SentencePieceProcessor

        pieces = SentencePieceProcessor(model_file=str(path))
        ids = {pieces.id_to_piece(number): number for number in range(pieces.get_piece_size())}
    elif path.suffix in TABLES:
        table = _yaml(path, getattr(yaml, "CBaseLoader", yaml.BaseLoader))  # everything is text there
        if not isinstance(table, dict) or not all(isinstance(number, str) and number.isdecimal() for number in table.values()):
            raise ValueError(f"{path} must map tokens to ids")
        ids = {token: int(number) for token, number in table.items()}
    elif path.suffix == ".txt":
        ids = {token: number for number, token in enumerate(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"))}
    else:
        raise ValueError(f"{path} is a vocabulary of a kind that is not imported: .yml, .json, .txt and .spm are")
    if sorted(ids.values()) != list(range(size)):
        raise ValueError(f"{path} has {len(ids)} tokens, but the model {size}: they do not belong together, or ids are missing")
    lacking = [token for token in ("</s>", "<unk>") if token not in ids]
    if lacking or PAD in ids:
        raise ValueError(f"{path} must have </s> and <unk>, and no {PAD}, which is added: {lacking or PAD}")
    return ids


def make_tokenizer(
    model: Path, said: dict[str, Any], given: tuple[str | Path, ...] | None, sizes: list[int], pad: int
) -> tuple[PreTrainedTokenizerBase, str]:
    """A tokenizer with the model's ids and `<pad>` at `pad`, and what text it takes."""
    files = vocabulary_files(model, said, given)
    vocabularies = [read_vocabulary(path, size) for path, size in zip(files, sizes, strict=True)]
    if len({vocabulary["</s>"] for vocabulary in vocabularies}) > 1:
        raise ValueError(f"{files[0]} and {files[1]} have </s> at different ids, but a model has one")
    for vocabulary in vocabularies:
        vocabulary[PAD] = pad
    separate = vocabularies[0] != vocabularies[1]
    cutters = [
        path if path.suffix == ".spm" else model.parent / f"{side}.spm"
        for path, side in zip(files, ("source", "target"), strict=True)
    ]
    if all(path.is_file() for path in cutters):
        return _sentencepiece(vocabularies, cutters, separate), "plain text, cut by SentencePiece"
    sides = [_words(vocabulary) for vocabulary in vocabularies]
    tokenizer = TransductTokenizer(sides[0], sides[1] if separate else None, split_special_tokens=True)
    return tokenizer, "text prepared as the model's data was (tokenised, cut into subwords): words separated by blanks"


def _sentencepiece(vocabularies: list[dict[str, int]], cutters: list[Path], separate: bool) -> PreTrainedTokenizerBase:
    from transformers import MarianTokenizer

    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("vocab.json", "target_vocab.json")]
        for path, vocabulary in zip(files, vocabularies, strict=True):
            path.write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
        return MarianTokenizer(
            source_spm=str(cutters[0]),
            target_spm=str(cutters[1]),
            vocab=str(files[0]),
            target_vocab_file=str(files[1]) if separate else None,
            separate_vocabs=separate,
        )


def _words(vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(vocabulary, NAMED_TOKENS["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer
