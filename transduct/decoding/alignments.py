"""Which source word each target word came from, read from cross-attention; and unknown words replaced by it.

Each target token is aligned with the source token to which it paid the most attention while it was chosen: the mean over the
heads of one decoder layer, or over chosen heads. The default is the last layer; in decoders of six layers the last but one often
follows alignments better (arXiv 1909.02074). Special tokens are aligned with nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch

from transduct.decoding.cross_attention import attention_weights, mean_attention
from transduct.decoding.forcing import forced
from transduct.training.alignments import words_of_tokens
from transduct.training.checks import check_count, check_type

Alignment = tuple[tuple[int, int], ...]
"""Pairs (source, target) of words or tokens, counted from 0, in rising order."""


@dataclass(frozen=True)
class AlignmentOptions:
    """Where alignments are read.

    Args:
        unit: "words", apart by white space, or "tokens", without the special ones; None: no alignments are asked for.
        layer: of the decoder, counted from 0, or from the last with negative numbers; None: the last.
        heads: of that layer; None: all.
    """

    unit: Literal["words", "tokens"] | None = None
    layer: int | None = None
    heads: Sequence[int] | None = None

    def __post_init__(self):
        if self.unit not in (None, "words", "tokens"):
            raise ValueError(f"alignments={self.unit!r} must be 'words' or 'tokens'")
        if self.layer is not None:
            check_count(self.layer, "alignment_layer")
        check_type(self.heads, list[int] | None, "alignment_heads")


def attended(
    model: Any,
    source: dict[str, torch.Tensor],
    usable: torch.Tensor,
    targets: Sequence[Sequence[int]],
    start: int,
    options: AlignmentOptions,
) -> list[list[int]]:
    """For each target token the position in its row of the source token that it attended to most.

    Args:
        source: what the encoder reads, (B, S); usable: (B, S), the tokens that may be chosen.
        targets: ids of each row; start: what the decoder starts with.
    """
    with attention_weights(model):
        output, _, _ = forced(model, source, targets, start, output_attentions=True)
    layer = -1 if options.layer is None else options.layer
    weights = mean_attention(output.cross_attentions, layer, options.heads)  # (B, T, S)
    best = weights.masked_fill(~usable.to(weights.device)[:, None], -1.0).argmax(-1)  # (B, T)
    return [row[: len(target)] for row, target in zip(best.tolist(), targets, strict=True)]


def pairs(sources: Sequence[int | None], targets: Sequence[int | None], chosen: Sequence[int]) -> Alignment:
    """Aligned words or tokens.

    Args:
        sources, targets: the word that each token belongs to, or None; chosen: for each target token a source token.
    """
    found = {(sources[place], word) for word, place in zip(targets, chosen, strict=True)}
    return tuple(sorted((one, other) for one, other in found if one is not None and other is not None))


def pharaoh(alignment: Alignment) -> str:
    """`i-j` for each pair, with a space between."""
    return " ".join(f"{source}-{target}" for source, target in alignment)


def source_units(tokenizer: Any, text: str, skipped: int, ids: Sequence[int], unit: str | None) -> list[int | None]:
    """The word, or the number, of each source token; None for special tokens and those of a prefix.

    Args:
        text: what was encoded to `ids`; skipped: characters at its beginning that are a prefix.
    """
    spans = _source_spans(tokenizer, text, ids)
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    real = [token not in special and end > skipped for token, (_, end) in zip(ids, spans, strict=True)]
    if unit == "tokens":
        return _numbered(real)
    own = [(max(start - skipped, 0), max(end - skipped, 0)) for start, end in spans]
    words = words_of_tokens(text[skipped:], own)
    return [word if is_real else None for word, is_real in zip(words, real, strict=True)]


def target_units(tokenizer: Any, ids: Sequence[int], unit: str, with_unknown: bool = False) -> list[int | None]:
    """The word, or the number, of each target token; None for special tokens.

    Args:
        with_unknown: whether the text has something in place of unknown tokens; otherwise they are no words.
    """
    unknown = {tokenizer.unk_token_id}
    special = set(tokenizer.all_special_ids) - unknown
    real = [token not in special for token in ids]
    if unit == "tokens":
        return _numbered(real)
    dropped = special if with_unknown else special | unknown
    prefixes = [[token for token in ids[:count] if token not in dropped] for count in range(len(ids) + 1)]
    texts = tokenizer.batch_decode(prefixes, skip_special_tokens=False)
    words = words_of_tokens(texts[-1], _spans(texts))
    return [word if token not in dropped else None for word, token in zip(words, ids, strict=True)]


def _numbered(real: Sequence[bool]) -> list[int | None]:
    count = 0
    numbers: list[int | None] = []
    for each in real:
        numbers.append(count if each else None)
        count += each
    return numbers


def _source_spans(tokenizer: Any, text: str, ids: Sequence[int]) -> list[tuple[int, int]]:
    """Start and end in the text of each token: told by a fast tokenizer, else by how the text grows."""
    if tokenizer.is_fast:
        return tokenizer(text, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    special = set(tokenizer.all_special_ids)
    tokens = [None if token in special else tokenizer.convert_ids_to_tokens(token) for token in ids]
    grown = [[token for token in tokens[:count] if token is not None] for count in range(len(ids) + 1)]
    return _spans([tokenizer.convert_tokens_to_string(part) if part else "" for part in grown])


def _spans(prefixes: Sequence[str]) -> list[tuple[int, int]]:
    """Start and end of each token, given the texts of the first 0, 1, 2, ... of them."""
    return [(len(before), len(after)) for before, after in pairwise(prefixes)]


def with_unknown_replaced(
    tokenizer: Any, source: str, ids: Sequence[int], source_words: Sequence[int | None], chosen: Sequence[int]
) -> str:
    """The target's text with the aligned source word in place of each unknown token.

    Args:
        source_words: the word of each source token; chosen: for each target token a source token.
    """
    unknown, words = tokenizer.unk_token_id, source.split()
    special = set(tokenizer.all_special_ids) - {unknown}
    kept = [(token, place) for token, place in zip(ids, chosen, strict=True) if token not in special]
    parts = tokenizer.decode([token for token, _ in kept], skip_special_tokens=False).split(tokenizer.unk_token)
    places = [place for token, place in kept if token == unknown]
    if len(parts) != len(places) + 1:
        raise ValueError("replace_unknown: this tokenizer does not write its unknown token out, so that it cannot be replaced")
    text = parts[0]
    for place, part in zip(places, parts[1:], strict=True):
        word = source_words[place]
        text += (words[word] if word is not None else tokenizer.unk_token) + part
    return text
