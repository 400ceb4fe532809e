"""fairseq's dictionaries, and tokenizers that give the ids that fairseq gives.

A dictionary numbers `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, then the lines of dict.txt, "token count" each, then the tokens that
the task adds. Text is cut at white space and looked up word by word; whatever cut it into subwords before stands outside:

- `word_tokenizer` is that: it expects text as the model's data was prepared (tokenised, with BPE or SentencePiece applied) and
  decodes to the same, words joined by blanks. A special token is one only where it stands as a word.
- `gpt2_tokenizer` is for dictionaries whose words are ids of GPT-2's byte-level BPE (BART), with its encoder.json and vocab.bpe:
  it takes plain text. A special token written out in a text is that token, as in `BartTokenizer`.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from transduct.tokenization import TransductTokenizer

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
BOS, PAD, EOS, UNK = range(4)
OVERWRITE = "#fairseq:overwrite"
GPT2_FILES = ("encoder.json", "vocab.bpe")
WHITE_SPACE = "".join(re.escape(character) for character in map(chr, range(0x3001)) if character.isspace())
"""What Python's `str.split` cuts at; the `tokenizers` package knows fewer characters."""


@dataclass(frozen=True)
class Dictionary:
    """Words by id; of a word that occurs twice, which `#fairseq:overwrite` allows, text means the later one."""

    words: tuple[str, ...]
    where: str

    def __len__(self) -> int:
        return len(self.words)

    def ids(self) -> dict[str, int]:
        """Word to id, with a made-up name ("<s>#0") for an id that no text can mean."""
        last = {word: index for index, word in enumerate(self.words)}
        return {word if last[word] == index else f"{word}#{index}": index for index, word in enumerate(self.words)}

    def special_names(self) -> dict[str, Any]:
        """The names of `<s>`, `<pad>`, `</s>` and `<unk>` in `ids`, as tokenizers of transformers are told."""
        names = list(self.ids())
        return dict(bos_token=names[BOS], pad_token=names[PAD], eos_token=names[EOS], unk_token=names[UNK])


def read_dictionary(path: str | Path, added: tuple[str, ...] = ()) -> Dictionary:
    """Read dict.txt as fairseq does.

    Args:
        added: tokens that the task puts after the file's, those that the file has already left out.

    Raises:
        ValueError: for a line that is no word and count, or a word that occurs twice.
    """
    words = list(SPECIAL)
    known = set(words)
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from error
    if lines[-1] == "":
        lines.pop()
    for number, line in enumerate(lines, start=1):
        word, _, count = line.rstrip().rpartition(" ")
        overwrites = count == OVERWRITE
        if overwrites:
            word, _, count = word.rpartition(" ")
        if not word or not re.fullmatch(r"[+-]?\d+", count):
            raise ValueError(f"{path}, line {number}: {line!r} is not a word and its count, separated by a blank")
        if word in known and not overwrites:
            raise ValueError(f"{path}, line {number}: {word!r} occurs twice, which fairseq allows only with {OVERWRITE}")
        words.append(word)
        known.add(word)
    words += [token for token in dict.fromkeys(added) if token not in known]
    return Dictionary(tuple(words), str(path))


def word_tokenizer(source: Dictionary, target: Dictionary | None = None) -> TransductTokenizer:
    """A tokenizer for prepared text: each side's words, then `</s>`.

    Args:
        target: the target's dictionary, where it is another one.

    Raises:
        ValueError: if the two name their special tokens differently, by #fairseq:overwrite.
    """
    names = source.special_names()
    if target is not None and target.special_names() != names:
        raise ValueError(
            f"{target.where} overwrites other special tokens than {source.where}: one tokenizer has one name for each"
        )
    sides = [None if side is None else _word_model(side) for side in (source, target)]
    return TransductTokenizer(sides[0], sides[1], split_special_tokens=True, **names)


def _word_model(dictionary: Dictionary) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(dictionary.ids(), dictionary.special_names()["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(f"[{WHITE_SPACE}]+"), "removed")
    return tokenizer


def is_gpt2(dictionary: Dictionary) -> bool:
    """Whether the words are ids of another vocabulary: numbers, but for special and made-up ones."""
    words = [word for word in dictionary.words[len(SPECIAL) :] if not word.startswith(("madeupword", "<", "["))]
    return bool(words) and all(re.fullmatch(r"\d+", word) for word in words)


def gpt2_tokenizer(dictionary: Dictionary, folder: Path) -> TransductTokenizer:
    """A byte-level BPE of plain text with the dictionary's ids: `<s>`, the text, `</s>`, on both sides.

    Args:
        folder: holds GPT-2's encoder.json and vocab.bpe.

    Raises:
        ValueError: if the dictionary lacks a piece of the vocabulary.
    """
    encoder = _read_json(folder / GPT2_FILES[0])
    ids = dictionary.ids()
    missing = sorted(number for number in encoder.values() if str(number) not in ids)
    if missing:
        raise ValueError(f"{dictionary.where} lacks {len(missing)} ids of {folder / GPT2_FILES[0]}, such as {missing[:5]}")
    pieces = {piece: ids[str(number)] for piece, number in encoder.items()}
    numbers = {str(number) for number in encoder.values()}
    rest = {word: index for word, index in ids.items() if word not in numbers}
    lines = (folder / GPT2_FILES[1]).read_text(encoding="utf-8").split("\n")
    pairs = [line.partition(" ") for line in lines if line and not line.startswith("#version")]
    tokenizer = Tokenizer(models.BPE(pieces | rest, [(left, right) for left, _, right in pairs]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = dictionary.special_names()
    start = [names["bos_token"]]
    if "<mask>" in ids:
        tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])  # takes the blank before it, as words do
        names["mask_token"] = "<mask>"
    return TransductTokenizer(tokenizer, source_prefix=start, target_prefix=start, **names)


def _read_json(path: Path) -> dict[str, int]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict) or not all(isinstance(number, int) for number in values.values()):
        raise ValueError(f"{path} must map pieces to ids")
    return values
