"""Tokenizers: train, save and load, with one vocabulary for both sides or one for each.

- `TransductTokenizer.train` learns BPE, byte-level BPE, unigram, character or word vocabularies from files or any iterable.
- `tokenizer(text, text_target=...)` gives `input_ids`, `attention_mask` and `labels`; each sequence is its side's prefix,
  the text, its side's suffix and `</s>`, also after truncation. Only a sentence pair has two `</s>`.
- The target side: `decode` reads ids as the target's, everything else works on the source unless inside `as_target()`.
- Ids: `<pad>` 0, `</s>` 1, `<unk>` 2, then other special tokens, then pieces, then T5's sentinels, `<extra_id_0>` last.

Saved, it is a stock `tokenizer.json`, which `AutoTokenizer` also loads where this package is absent, without code (all but the
target's own prefix and suffix). Two vocabularies are two stock files, the target's in `target/`; since no stock class decodes
with one and encodes with the other, `AutoTokenizer` then asks for `trust_remote_code=True` instead of being silently wrong.

Text is taken as it is: by "byte_bpe" without any loss, by "chars" except for characters never seen; "bpe", "unigram"
and "words" make each run of white space one space. What a vocabulary lacks becomes `<unk>`, or bytes with `byte_fallback`.
A special token that is written out in a text is that token, unless the call has `split_special_tokens=True`.

References: BPE (arXiv 1508.07909), byte-level BPE (GPT-2), unigram (arXiv 1804.10959), sentinels (T5, arXiv 1910.10683).
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer, processors
from transformers import BatchEncoding, PreTrainedTokenizerFast

from .vocabulary import Corpus, Kind, VocabularyTrainer, at_least

NAMED_TOKENS = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
AFFIXES = ("source_prefix", "source_suffix", "target_prefix", "target_suffix")
TARGET_FOLDER = "target"
OPTIONS = (*AFFIXES, "model_max_length", "padding_side", "truncation_side", "split_special_tokens")


def language_token(code: str) -> str:
    """The token of a language: "de" -> "<2de>", as MADLAD writes it. A name that no text holds as a word stays: "__de__"."""
    return f"<2{code}>" if re.fullmatch(r"[A-Za-z][\w-]*", code) else code


def _affix(name: str) -> property:
    """One of the four lists of tokens around a text. Setting it acts at once, on tokens that the side's vocabulary has."""

    def get(self) -> list[str]:
        return list(self._affixes[name])

    def set_(self, tokens: Sequence[str]) -> None:
        self._set_affixes({**self._affixes, name: tokens})

    return property(get, set_, doc=f"The {name.replace('_', ' ')}: tokens of the {name.split('_')[0]} vocabulary.")


class TransductTokenizer(PreTrainedTokenizerFast):
    """A fast tokenizer with a source and a target side.

    Args:
        tokenizer_object, target_tokenizer_object: `tokenizers.Tokenizer`s of the source (or of both sides) and the target.
        source_prefix, source_suffix, target_prefix, target_suffix: tokens around each text of a side, such as a language
            token before the source. The suffix stands before `</s>`. They are saved, and may be set at any time.
        separate_vocabularies: set by `save_pretrained`: whether the target has its own file.
        kwargs: what `PreTrainedTokenizerFast` takes.

    Raises:
        ValueError: for a prefix or suffix that is no token of its side, and for a file that another class has saved.
    """

    vocab_files_names = {"tokenizer_file": "tokenizer.json", "target_tokenizer_file": f"{TARGET_FOLDER}/tokenizer.json"}
    model_input_names = ["input_ids", "attention_mask"]

    _in_target_context_manager: bool
    source_prefix = _affix("source_prefix")
    source_suffix = _affix("source_suffix")
    target_prefix = _affix("target_prefix")
    target_suffix = _affix("target_suffix")

    def __init__(
        self,
        tokenizer_object: Tokenizer | None = None,
        target_tokenizer_object: Tokenizer | None = None,
        tokenizer_file: str | None = None,
        target_tokenizer_file: str | None = None,
        separate_vocabularies: bool | None = None,
        **kwargs: Any,
    ):
        affixes = {name: kwargs.pop(name, None) or [] for name in AFFIXES}
        if tokenizer_object is None and tokenizer_file is None:
            raise ValueError("tokenizer_file=None: there is no tokenizer.json here; train one with TransductTokenizer.train")
        if tokenizer_object is None and separate_vocabularies is None:
            rule = "its own prefix and suffix would be lost. Load it with AutoTokenizer, or pass separate_vocabularies=False"
            raise ValueError(f"tokenizer_file={tokenizer_file!r} was not saved by TransductTokenizer: {rule} to accept that")
        if target_tokenizer_object is None and separate_vocabularies:
            target_tokenizer_object = _load_target(target_tokenizer_file)
        self._other = deepcopy(target_tokenizer_object)  # of the side not in use; None: one vocabulary for both
        if self._other is not None:
            self._auto_class = "AutoTokenizer"  # no stock class has two vocabularies: this code travels along
        self._on_target = False
        self._affixes: dict[str, list[str]] = {name: [] for name in AFFIXES}
        # named here so that save_pretrained writes their values
        saved = {"separate_vocabularies": self.separate_vocabularies, **affixes}
        super().__init__(tokenizer_object=tokenizer_object, tokenizer_file=tokenizer_file, **{**NAMED_TOKENS, **kwargs}, **saved)
        self._set_affixes(affixes)

    @classmethod
    def convert_to_native_format(cls, trust_remote_code: bool = False, **kwargs: Any) -> dict[str, Any]:
        """Keeps `tokenizer_file` as it is: the inherited method would rebuild a subclass's tokenizer from its vocabulary."""
        return kwargs

    @classmethod
    def train(
        cls,
        files_or_iterator: Corpus,
        kind: Kind = "bpe",
        vocab_size: int | None = None,
        *,
        target: Corpus | None = None,
        target_kind: Kind | None = None,
        target_vocab_size: int | None = None,
        extra_ids: int = 0,
        languages: Sequence[str] = (),
        special_tokens: Sequence[str] = (),
        bos_token: str | None = None,
        mask_token: str | None = None,
        byte_fallback: bool = False,
        normalization: Literal["nfc", "nfkc"] | None = None,
        min_frequency: int = 1,
        **kwargs: Any,
    ) -> "TransductTokenizer":
        """Learn a vocabulary. The same input always gives the same one.

        Args:
            files_or_iterator: a path, a list of paths (UTF-8 text, a line is a text), or an iterable of texts. A list of
                strings is a list of paths if one of them is a file or all end in ".txt"; an iterator never is. Without
                `target` it is the text of both sides, and both share one vocabulary.
            kind: "bpe", "byte_bpe" (byte-level), "unigram", "chars" (each character, spaces too) or "words" (symbols
                between white space, such as phones).
            vocab_size: ids in all, the special ones included; fewer where the text has no more pieces. "chars" and
                "words" need none; if given, it is a bound.
            target, target_kind, target_vocab_size: a vocabulary of its own for the target; the kind and size of the
                source unless given.
            extra_ids: number of sentinels `<extra_id_N>`.
            languages: codes, each with the token `language_token(code)`.
            special_tokens: more of them, such as UL2's "[NLU]".
            bos_token, mask_token: "<s>", "<mask>", where the recipe has them. To begin texts with it, add it to the prefixes.
            byte_fallback: "bpe", "unigram" and "chars" write what they lack as bytes (256 more ids) instead of `<unk>`.
            normalization: Unicode's NFC or NFKC for all text.
            min_frequency: rarer characters and words are `<unk>`, rarer pairs are not merged.
            kwargs: `source_prefix`, `source_suffix`, `target_prefix`, `target_suffix`, `model_max_length`, `padding_side`,
                `truncation_side`, `split_special_tokens`, as in the constructor.

        Raises:
            ValueError: for an unknown kind, an empty text, a vocabulary too small for the characters (naming the least size).
            FileNotFoundError: for a file that does not exist.
        """
        if unknown := sorted(set(kwargs) - set(OPTIONS)):
            raise TypeError(f"train() has no argument {unknown[0]!r}; beside its own it takes {OPTIONS}")
        if target is None and (target_kind, target_vocab_size) != (None, None):
            given = f"target_kind={target_kind!r}, target_vocab_size={target_vocab_size!r}"
            raise ValueError(f"{given} belong to a vocabulary of the target: pass its text as target")
        named = NAMED_TOKENS | {k: v for k, v in {"bos_token": bos_token, "mask_token": mask_token}.items() if v is not None}
        extra = [*map(language_token, languages), *special_tokens]
        sentinels = [f"<extra_id_{i}>" for i in reversed(range(at_least("extra_ids", extra_ids, 0)))]
        trainer = VocabularyTrainer([*named.values(), *extra], sentinels, byte_fallback, normalization, min_frequency)
        source = trainer.train(files_or_iterator, kind, vocab_size)
        other = None if target is None else trainer.train(target, target_kind or kind, target_vocab_size or vocab_size)
        return cls(source, other, extra_special_tokens=[*extra, *sentinels], **{**named, **kwargs})

    # ---- the two sides --------------------------------------------------------------------------------------------
    @property
    def separate_vocabularies(self) -> bool:
        """Whether source and target have a vocabulary each."""
        return self._other is not None

    @property
    def decoder_vocab_size(self) -> int:
        """`len` of the target's vocabulary, for the config's field of this name; `len(tokenizer)` where it is shared."""
        with self.as_target():
            return len(self)

    @contextmanager
    def as_target(self) -> Iterator["TransductTokenizer"]:
        """Inside, every method works on the target: `len`, `convert_tokens_to_ids`, `encode`, `tokenize`, a call with text."""
        with self._side(target=True):
            before, self._in_target_context_manager = self._in_target_context_manager, True
            try:
                yield self
            finally:
                self._in_target_context_manager = before

    @contextmanager
    def _side(self, target: bool) -> Iterator[None]:
        before = self._on_target
        self._switch(target)
        try:
            yield
        finally:
            self._switch(before)

    def _switch(self, target: bool) -> None:
        if target == self._on_target:
            return
        self._on_target = target
        if self._other is not None:
            self._tokenizer, self._other = self._other, self._tokenizer
        else:
            self.update_post_processor()

    def _switch_to_input_mode(self) -> None:
        self._switch(False)

    def _switch_to_target_mode(self) -> None:
        self._switch(True)

    def _set_affixes(self, affixes: dict[str, Sequence[str]]) -> None:
        for name, tokens in affixes.items():
            backend = self._other if self._other is not None and (name[:6] == "target") != self._on_target else self._tokenizer
            if isinstance(tokens, str):
                raise ValueError(f"{name}={tokens!r} must be a list of tokens, such as [{tokens!r}]")
            for token in tokens:
                if backend.token_to_id(token) is None or ":" in token or token.startswith("$"):
                    rule = "is no token of this side, or has ':' or '$'. Add it with add_tokens, or name it in train's languages"
                    raise ValueError(f"{name}={list(tokens)!r}: {token!r} {rule}")
        self._affixes = {name: list(tokens) for name, tokens in affixes.items()}
        self.update_post_processor()

    def update_post_processor(self) -> None:
        """Give each side its template: prefix, text, suffix, `</s>`."""
        self._tokenizer.post_processor = self._template(self._tokenizer, self._on_target)
        if self._other is not None:
            self._other.post_processor = self._template(self._other, not self._on_target)

    def _template(self, backend: Tokenizer, target: bool) -> processors.TemplateProcessing:
        side = "target" if target else "source"
        prefix, suffix = self._affixes[f"{side}_prefix"], self._affixes[f"{side}_suffix"]
        single = [*prefix, "$A", *suffix, self.eos_token]
        pair = [*prefix, "$A", self.eos_token, "$B", *suffix, self.eos_token]
        used = sorted({*prefix, *suffix, self.eos_token})
        return processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=[(token, backend.token_to_id(token)) for token in used]
        )

    # ---- encoding and decoding ------------------------------------------------------------------------------------
    def __call__(self, *args: Any, **kwargs: Any) -> BatchEncoding:
        """As any tokenizer's: `(text, text_pair, text_target, ...)`. Leaves the side as it was, after an error too."""
        with self._side(self._on_target):
            return super().__call__(*args, **kwargs)

    def _decode(self, token_ids, skip_special_tokens: bool = False, use_source_tokenizer: bool = False, **kwargs: Any) -> str:
        """`decode` and `batch_decode` read ids of the target; those of the source with `use_source_tokenizer=True`."""
        if self._other is None:  # one vocabulary: a side has its own template, which decoding does not see
            return super()._decode(token_ids, skip_special_tokens=skip_special_tokens, **kwargs)
        with self._side(target=not use_source_tokenizer):
            return super()._decode(token_ids, skip_special_tokens=skip_special_tokens, **kwargs)

    def _add_tokens(self, new_tokens: list[str | AddedToken], special_tokens: bool = False) -> int:
        """To both sides, so that a tag may stand in either. Returns how many are new in the side in use."""
        added = super()._add_tokens(new_tokens, special_tokens)
        if self._other is not None:
            (self._other.add_special_tokens if special_tokens else self._other.add_tokens)(new_tokens)
        return added

    def get_sentinel_tokens(self) -> list[str]:
        """T5's sentinels, `<extra_id_0>` first."""
        found = [token for token in self.extra_special_tokens if re.fullmatch(r"<extra_id_\d+>", token)]
        return sorted(found, key=lambda token: int(token[len("<extra_id_") : -1]))

    def get_sentinel_token_ids(self) -> list[int]:
        """Their ids, falling; of the target's vocabulary inside `as_target()`."""
        return self.convert_tokens_to_ids(self.get_sentinel_tokens())

    # ---- saving ---------------------------------------------------------------------------------------------------
    def _save_pretrained(self, save_directory, file_names, legacy_format=None, filename_prefix=None) -> tuple[str, ...]:
        with self._side(target=False):
            for backend in filter(None, (self._tokenizer, self._other)):  # these belong to the last call
                backend.no_truncation()
                backend.no_padding()
            files = super()._save_pretrained(save_directory, file_names, legacy_format, filename_prefix)
            if self._other is None:
                return files
            stock = PreTrainedTokenizerFast(
                tokenizer_object=self._other,
                extra_special_tokens=self.extra_special_tokens,
                model_max_length=self.model_max_length,
                padding_side=self.padding_side,
                truncation_side=self.truncation_side,
                **self.special_tokens_map,
            )
        return files + stock.save_pretrained(os.path.join(save_directory, TARGET_FOLDER), filename_prefix=filename_prefix)


def _load_target(path: str | None) -> Tokenizer:
    if path is None or not os.path.isfile(path):
        raise ValueError(
            f"target_tokenizer_file={path!r}: the file of the target's vocabulary is missing; save the tokenizer again"
        )
    return Tokenizer.from_file(path)
