"""From rows of text to token ids.

Each encoder is called with rows and yields examples, or a `BadRow` for a row that is too long. What `datasets` shall store of
an example is in `features`, and `key` tells all that decides what becomes of a row, so that results are only used again where
they would be the same.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Protocol, TypeVar

from datasets import Features, List, Value
from transformers import PreTrainedTokenizerFast

from transduct.tokenization import TransductTokenizer, language_token
from transduct.training.alignments import token_alignments
from transduct.training.reading import BadRow, Row
from transduct.training.recipe_data import SplitSource

ROWS_AT_ONCE = 1000
"""Rows in one call of the tokenizer, which spreads them over threads."""

IDS = List(Value("int32"))
TEXTS = Features({"source": Value("string"), "targets": List(Value("string"))})

Example = dict[str, Any]
Item = TypeVar("Item")


def in_pieces(rows: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of `size` rows, the last one shorter."""
    rows = iter(rows)
    while piece := list(islice(rows, size)):
        yield piece


class Encoder(Protocol):
    """What all encoders have in common."""

    documents: ClassVar[bool]
    """Whether a row is a document, not a pair."""

    @property
    def features(self) -> Features: ...

    def key(self) -> Any:
        """Everything that decides what becomes of a row, as JSON."""

    def __call__(self, rows: Iterable[Row]) -> Iterator[Example | BadRow]: ...


class KeepTexts:
    """Source and targets as they are, for a test set whose tokenizer is another's business."""

    documents: ClassVar[bool] = False
    features = TEXTS

    def key(self) -> Any:
        return "texts"

    def __call__(self, rows: Iterable[Row]) -> Iterator[Example | BadRow]:
        return ({"source": row.source, "targets": list(row.targets)} for row in rows)


@dataclass
class PairEncoder:
    """`input_ids` and `labels` of pairs, with what the split puts around them.

    Args:
        tokenizer: called with the sources, and with the targets as `text_target`.
        split: its prefix, tag and languages.
        max_source_tokens, max_target_tokens: longest allowed; None: any length.
        truncate: "source", "target" or "both": longer texts are cut there, before the tokens that end them; None: they are bad.
        keep_texts: "no"; "pair": `source` and `target` too, to segment them anew; "all": one row for each source, with its
            first target, and `source` and all `targets`, for evaluation.

    Raises:
        ValueError: for a tag or language whose token the tokenizer lacks, or puts elsewhere than the split has it.
    """

    tokenizer: Any
    split: SplitSource
    max_source_tokens: int | None = None
    max_target_tokens: int | None = None
    keep_texts: str = "no"
    truncate: str | None = None

    documents: ClassVar[bool] = False

    def __post_init__(self):
        assert self.keep_texts in ("no", "pair", "all")
        assert self.truncate in (None, "source", "target", "both")
        self.around = Around.of(self.split, self.tokenizer)
        self._set_languages()

    @property
    def features(self) -> Features:
        ids = Features({"input_ids": IDS, "labels": IDS})
        if self.split.aligned:
            return Features(ids | {"alignments": List(IDS)})
        if self.keep_texts == "no":
            return ids
        return Features(ids | (TEXTS if self.keep_texts == "all" else {"source": Value("string"), "target": Value("string")}))

    def key(self) -> Any:
        self._set_languages()
        limits = [self.max_source_tokens, self.max_target_tokens, *([self.truncate] if self.truncate else [])]
        return ["pairs", tokenizer_key(self.tokenizer), asdict(self.around), limits, self.keep_texts]

    def __call__(self, rows: Iterable[Row]) -> Iterator[Example | BadRow]:
        if self.split.aligned:
            yield from map(self._aligned, rows)
            return
        for some in in_pieces(rows, ROWS_AT_ONCE):
            pairs = [(row, target) for row in some for target in row.targets[: 1 if self.keep_texts == "all" else None]]
            sources = self.encode_sources([row.source for row, _ in pairs])
            targets = self.tokenizer(
                text_target=[target for _, target in pairs], return_attention_mask=False, **self._cut("target")
            )["input_ids"]
            for (row, target), source_ids, target_ids in zip(pairs, sources, targets, strict=True):
                example = {"input_ids": source_ids, "labels": self.around.before_target + target_ids}
                yield self._too_long(row, example) or example | self._texts(row, target)

    def _aligned(self, row: Row) -> Example | BadRow:
        """A pair with the positions of tokens whose words are aligned."""
        assert row.alignment is not None
        try:
            example = token_alignments(self.tokenizer, row.source, row.targets[0], row.alignment)
        except ValueError as error:
            return BadRow(row.origin, str(error), "alignment")
        before = self.around
        shift = (len(before.before_source), len(before.before_target))
        example = {
            "input_ids": before.before_source + example["input_ids"],
            "labels": before.before_target + example["labels"],
            "alignments": [[source + shift[0], target + shift[1]] for source, target in example["alignments"]],
        }
        return self._too_long(row, example) or example

    @property
    def first_target_token(self) -> int | None:
        """What every target begins with, and every output must: the token of its language; None where that is free."""
        before = self._around_target()[0] if self._puts_target_language else self.around.before_target
        return before[0] if before else None

    @property
    def start_token(self) -> int | None:
        """What the decoder must start from: the language's token, where the tokenizer puts it behind a target as mBART's does."""
        before, behind = self._around_target() if self._puts_target_language else ([], [])
        return behind[-1] if behind and not before else None

    def encode_sources(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of sources as the model is given them."""
        self._set_languages()
        texts = [self.around.text + text for text in texts]
        encoded = self.tokenizer(texts, return_attention_mask=False, **self._cut("source"))["input_ids"]
        return [self.around.before_source + ids for ids in encoded] if self.around.before_source else encoded

    def _set_languages(self) -> None:
        """Of a tokenizer that puts them itself, which several splits may share."""
        if puts_languages(self.tokenizer):
            for name, code in (("src_lang", self.split.source_language), ("tgt_lang", self.split.target_language)):
                if code is not None:
                    setattr(self.tokenizer, name, code)

    @property
    def _puts_target_language(self) -> bool:
        return puts_languages(self.tokenizer) and self.split.target_language is not None

    def _around_target(self) -> tuple[list[int], list[int]]:
        self._set_languages()
        whole, bare = (self.tokenizer(text_target="a", add_special_tokens=special)["input_ids"] for special in (True, False))
        start = _place(whole, bare)
        return whole[:start], whole[start + len(bare) :]

    def _cut(self, side: str) -> dict[str, Any]:
        """How the tokenizer is called, so that its texts, with what stands before them, keep to the limit of a side."""
        if self.truncate not in (side, "both"):
            return {}
        limit, before = {
            "source": (self.max_source_tokens, self.around.before_source),
            "target": (self.max_target_tokens, self.around.before_target),
        }[side]
        return {} if limit is None else {"truncation": True, "max_length": limit - len(before)}

    def _texts(self, row: Row, target: str) -> Example:
        if self.keep_texts == "all":
            return {"source": row.source, "targets": list(row.targets)}
        return {"source": row.source, "target": target} if self.keep_texts == "pair" else {}

    def _too_long(self, row: Row, example: Example) -> BadRow | None:
        sides = (
            ("source", row.origin, "input_ids", self.max_source_tokens),
            ("target", row.target_origin, "labels", self.max_target_tokens),
        )
        for side, origin, column, limit in sides:
            if limit is not None and len(example[column]) > limit:
                tokens = len(example[column])
                return BadRow(origin, f"the {side} has {tokens} tokens, more than data.max_{side}_tokens={limit}", f"long {side}")
        return None


@dataclass(frozen=True)
class Around:
    """What stands before sources and targets, beside what the tokenizer itself puts there."""

    text: str
    """Before the text of a source."""
    before_source: list[int]
    before_target: list[int]

    @classmethod
    def of(cls, split: SplitSource, tokenizer: Any) -> "Around":
        """Tag, language of the target, language of the source, in this order; no language if the tokenizer puts them itself."""
        target_first = split.target_language_in == "target"
        source = [] if split.tag is None else [_token_id(tokenizer, split.tag, [split.tag], "tag", "special_tokens")]
        if puts_languages(tokenizer):
            _check_languages(split, tokenizer)
            return cls(split.source_prefix, source, [])
        target: list[int] = []
        if split.target_language is not None:
            side = target if target_first else source
            side.append(_language_id(tokenizer, split.target_language, "target_language", target_first))
        if split.source_language is not None:
            source.append(_language_id(tokenizer, split.source_language, "source_language", False))
        return cls(split.source_prefix, source, target)


def puts_languages(tokenizer: Any) -> bool:
    """Whether a tokenizer itself puts the languages' tokens around texts, by `src_lang` and `tgt_lang`, as NLLB's does."""
    return "src_lang" in dir(type(tokenizer))


def _check_languages(split: SplitSource, tokenizer: Any) -> None:
    """A tokenizer that puts languages itself must know them, and has its own place for the target's."""
    for option in ("source_language", "target_language"):
        code = getattr(split, option)
        if code is not None:
            _language_id(tokenizer, code, option, False)
    if split.target_language is not None and split.target_language_in != "target":
        raise ValueError(
            f"target_language_in={split.target_language_in!r}: {type(tokenizer).__name__} puts the target's language with the "
            "target; write target_language_in: target"
        )


def _language_id(tokenizer: Any, code: str, option: str, of_target: bool) -> int:
    spellings = [language_token(code), code, f"__{code}__"]  # MADLAD's, mBART's and NLLB's, M2M-100's
    if of_target and isinstance(tokenizer, TransductTokenizer):
        with tokenizer.as_target():
            return _token_id(tokenizer, code, spellings, option, "languages")
    return _token_id(tokenizer, code, spellings, option, "languages")


def _token_id(tokenizer: Any, value: str, spellings: Sequence[str], option: str, trained_with: str) -> int:
    vocabulary = tokenizer.get_vocab() | getattr(tokenizer, "lang_code_to_id", {})  # M2M100 does not count them among its own
    for token in spellings:
        if token in vocabulary:
            return vocabulary[token]
    rule = f"the tokenizer has no token {' or '.join(dict.fromkeys(spellings))}"
    raise ValueError(f"{option}={value!r}: {rule}. Train it with tokenizer.{trained_with}=[{value}], or take one that has it")


@dataclass
class DocumentEncoder:
    """Documents cut into texts of a fixed length, each with the tokenizer's own tokens before and behind it: `input_ids`.

    Args:
        tokenizer: its tokens around a text do not count to `text_tokens`.
        text_tokens: length of a text.
        join: go on with the next document where one ends, as T5 does; only the last text is then shorter. False: no text
            holds more than one document, and what is left of each is a shorter text (BART's "complete documents").
    """

    tokenizer: Any
    text_tokens: int
    join: bool

    documents: ClassVar[bool] = True
    features: ClassVar[Features] = Features({"input_ids": IDS})

    def __post_init__(self):
        self.before, self.behind = tokens_around(self.tokenizer)

    def key(self) -> Any:
        return ["documents", tokenizer_key(self.tokenizer), self.text_tokens, self.join]

    def __call__(self, rows: Iterable[Row]) -> Iterator[Example | BadRow]:
        rest: list[int] = []
        for some in in_pieces(rows, ROWS_AT_ONCE):
            for ids in self.tokenizer([row.source for row in some], add_special_tokens=False, return_attention_mask=False)[
                "input_ids"
            ]:
                text = rest + ids if self.join else ids
                whole = len(text) - len(text) % self.text_tokens if self.join else len(text)
                for start in range(0, whole, self.text_tokens):
                    yield self._example(text[start : min(start + self.text_tokens, whole)])
                rest = text[whole:]
        if rest:
            yield self._example(rest)

    def _example(self, ids: list[int]) -> Example:
        return {"input_ids": [*self.before, *ids, *self.behind]}


def tokens_around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """What the tokenizer puts before and behind a text, such as [] and [</s>]."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    start = _place(whole, bare)
    return whole[:start], whole[start + len(bare) :]


def _place(whole: list[int], bare: list[int]) -> int:
    """Where the tokens of a text begin among those of the same text with the tokenizer's own around it."""
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return start
    raise ValueError(f"the tokenizer makes {bare} of a text alone and {whole} of it with special tokens: its texts cannot be cut")


def tokenizer_key(tokenizer: Any) -> str:
    """A hash of all that decides how a tokenizer cuts texts on either side."""
    around = repr([tokenizer(["a"])["input_ids"], tokenizer(text_target=["a"])["input_ids"]])  # first: it ends a truncation
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        parts = [tokenizer.backend_tokenizer.to_str()]
    else:
        parts = _saved_files(tokenizer)
    if isinstance(tokenizer, TransductTokenizer):
        with tokenizer.as_target():
            parts.append(tokenizer.backend_tokenizer.to_str())
    parts.append(around)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _saved_files(tokenizer: Any) -> list[str]:
    """Hashes of the files that a tokenizer is saved as: all there is of one without a backend, such as M2M100's."""
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        return [f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files]
