"""How good outputs are: error rates against the closest of several references, exact match, BLEU and chrF.

- `token_error`: edits (insertions, deletions, substitutions) over the length of the closest reference, summed over the
  corpus. With phones as tokens it is the phoneme error rate, with words the word error rate of speech recognition.
- `sequence_error`: share of the outputs that equal none of their references. For pronunciations it is called word error rate.
- `bleu`, `chrf`: sacreBLEU's, with its default tokenizer.

Texts are split into tokens at white space. A reference is one text, or a list of texts that are all right.
"""

from collections.abc import Callable, Sequence

References = Sequence[str | Sequence[str]]


def edit_distance(first: Sequence, second: Sequence) -> int:
    """Fewest insertions, deletions and substitutions that turn `first` into `second` (Levenshtein)."""
    row = list(range(len(second) + 1))  # distances of the empty prefix of `first` to each prefix of `second`
    for i, a in enumerate(first, start=1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(second, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (a != b))
    return row[-1]


def closest_edits(prediction: str, references: Sequence[str]) -> tuple[int, int]:
    """Edits to the closest reference and its length in tokens. Among equally close ones the first counts."""
    tokens = prediction.split()
    return min(
        ((edit_distance(tokens, reference.split()), len(reference.split())) for reference in references), key=lambda e: e[0]
    )


def token_error(predictions: Sequence[str], references: References) -> float:
    """Edits to the closest references over their length, over the whole corpus. 0 is perfect; it may exceed 1."""
    pairs = _checked(predictions, references)
    edits, length = map(sum, zip(*(closest_edits(text, accepted) for text, accepted in pairs), strict=True))
    if length == 0:
        raise ValueError("references: every closest reference is empty, so that there is no length to divide the edits by")
    return edits / length


def sequence_error(predictions: Sequence[str], references: References) -> float:
    """Share of the outputs that differ, token by token, from each of their references."""
    return 1 - exact_match(predictions, references)


def exact_match(predictions: Sequence[str], references: References) -> float:
    """Share of the outputs that equal one of their references, token by token."""
    pairs = _checked(predictions, references)
    return sum(any(text.split() == other.split() for other in accepted) for text, accepted in pairs) / len(pairs)


def bleu(predictions: Sequence[str], references: References) -> float:
    """sacreBLEU's corpus BLEU, 0 to 100. Several references count as such."""
    import sacrebleu

    pairs = _checked(predictions, references)
    return sacrebleu.corpus_bleu(list(predictions), _streams([accepted for _, accepted in pairs])).score


def chrf(predictions: Sequence[str], references: References) -> float:
    """sacreBLEU's corpus chrF2, 0 to 100. Several references count as such."""
    import sacrebleu

    pairs = _checked(predictions, references)
    return sacrebleu.corpus_chrf(list(predictions), _streams([accepted for _, accepted in pairs])).score


METRICS: dict[str, Callable[[Sequence[str], References], float]] = {
    function.__name__: function for function in (token_error, sequence_error, exact_match, bleu, chrf)
}
"""By the names that a recipe uses."""


def _checked(predictions: Sequence[str], references: References) -> list[tuple[str, Sequence[str]]]:
    """Each output with the list of its references."""
    if len(predictions) != len(references):
        raise ValueError(f"{len(predictions)} predictions and {len(references)} references: each output needs its own")
    if len(predictions) == 0:
        raise ValueError("predictions is empty: there is nothing to measure")
    accepted_texts = [[entry] if isinstance(entry, str) else list(entry) for entry in references]
    pairs: list[tuple[str, Sequence[str]]] = list(zip(predictions, accepted_texts, strict=True))
    for i, (text, accepted) in enumerate(pairs):
        if not isinstance(text, str) or not accepted or not all(isinstance(r, str) for r in accepted):
            raise ValueError(
                f"entry {i} (counted from 0) must be a text with at least one reference, not {text!r} with {accepted!r}"
            )
    return pairs


def _streams(references: list[Sequence[str]]) -> list[list[str | None]]:
    """Reference k of each output, for k = 0, 1, ...; None where an output has fewer."""
    most = max(map(len, references))
    return [[accepted[k] if k < len(accepted) else None for accepted in references] for k in range(most)]
