"""How good outputs are: error rates against the closest of several references, exact match, BLEU, chrF, TER and ROUGE.

- `token_error`: edits (insertions, deletions, substitutions) over the length of the closest reference, summed over the
  corpus. With phones as tokens it is the phoneme error rate, with words the word error rate of speech recognition.
- `sequence_error`: share of the outputs that equal none of their references. For pronunciations it is called word error rate.
- `bleu`, `chrf`, `ter`: sacreBLEU's, with its default tokenizers. TER (Snover et al. 2006) counts edits and shifts, in percent.
- `rouge_1`, `rouge_2`, `rouge_l`, `rouge_lsum`: words, pairs of words and the longest common subsequence that outputs share with
  references, and the last of summaries of several sentences, one a line (Lin 2004, sections 2, 3.1 and 3.2). Each is the mean F1
  in percent. Tokens are runs of letters and digits in lower case, without stemming; for English that is what the `rouge_score`
  package does.

For the error rates and the exact match, texts are split into tokens at white space. A reference is one text, or a list of
texts that are all right; for ROUGE the one with the highest value counts.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain

References = Sequence[str | Sequence[str]]

TIMINGS = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time", "jit_compilation_time")
"""What a trainer logs of an evaluation beside its loss and metrics, each behind the prefix of the evaluation."""


def without_timings(names: Iterable[str]) -> list[str]:
    """Names of what an evaluation measured, without what the trainer notes about time; a metric may have such a name, too."""
    names = list(names)
    prefixes = [name.removesuffix("runtime") for name in names if name.endswith("_runtime")]
    prefix = min(prefixes, key=len, default="")  # the trainer's own; a metric that is called like it has a longer one
    noted = {"epoch", *(prefix + name for name in TIMINGS)}
    return [name for name in names if name not in noted]


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
    return sacrebleu.corpus_bleu(list(predictions), reference_streams([accepted for _, accepted in pairs])).score


def chrf(predictions: Sequence[str], references: References) -> float:
    """sacreBLEU's corpus chrF2, 0 to 100. Several references count as such."""
    import sacrebleu

    pairs = _checked(predictions, references)
    return sacrebleu.corpus_chrf(list(predictions), reference_streams([accepted for _, accepted in pairs])).score


def ter(predictions: Sequence[str], references: References) -> float:
    """sacreBLEU's corpus TER in percent; 0 is perfect, and it may exceed 100. Several references count as such."""
    import sacrebleu

    pairs = _checked(predictions, references)
    return sacrebleu.corpus_ter(list(predictions), reference_streams([accepted for _, accepted in pairs])).score


def rouge_1(predictions: Sequence[str], references: References) -> float:
    """Mean ROUGE-1 F1 of the outputs, 0 to 100: words."""
    return _mean_f1(partial(_ngram_f1, size=1), predictions, references)


def rouge_2(predictions: Sequence[str], references: References) -> float:
    """Mean ROUGE-2 F1 of the outputs, 0 to 100: pairs of words."""
    return _mean_f1(partial(_ngram_f1, size=2), predictions, references)


def rouge_l(predictions: Sequence[str], references: References) -> float:
    """Mean ROUGE-L F1 of the outputs, 0 to 100: the longest common subsequence, a whole text being one sentence."""
    return _mean_f1(_subsequence_f1, predictions, references)


def rouge_lsum(predictions: Sequence[str], references: References) -> float:
    """Mean ROUGE-Lsum F1 of the outputs, 0 to 100. Sentences are apart by newlines."""
    return _mean_f1(_summary_f1, predictions, references)


def _mean_f1(f1: Callable[[str, str], float], predictions: Sequence[str], references: References) -> float:
    pairs = _checked(predictions, references)
    return 100 * sum(max(f1(text, other) for other in accepted) for text, accepted in pairs) / len(pairs)


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


def _ngram_f1(prediction: str, reference: str, size: int) -> float:
    """F1 of the runs of `size` words that both texts have, each as often as both have it."""
    texts = (_words(prediction), _words(reference))
    predicted, expected = (Counter(zip(*(words[start:] for start in range(size)), strict=False)) for words in texts)
    hits = (predicted & expected).total()
    return 2 * hits / (predicted.total() + expected.total()) if hits else 0.0


def _subsequence_f1(prediction: str, reference: str) -> float:
    predicted, expected = _words(prediction), _words(reference)
    hits = len(_common(expected, predicted))
    return 2 * hits / (len(predicted) + len(expected)) if hits else 0.0


def _summary_f1(prediction: str, reference: str) -> float:
    """F1 of the tokens of each sentence of the reference that lie on a longest common subsequence with one of the prediction."""
    texts = [[_words(line) for line in text.split("\n")] for text in (prediction, reference)]
    predicted, expected = ([line for line in lines if line] for lines in texts)
    left = [Counter(chain.from_iterable(lines)) for lines in (predicted, expected)]
    sizes = [sum(counts.values()) for counts in left]
    hits = 0
    for sentence in expected:
        for place in sorted(set().union(*(_common(sentence, other) for other in predicted))):
            token = sentence[place]
            if all(counts[token] for counts in left):  # no token of either side counts twice
                hits += 1
                left[0][token] -= 1
                left[1][token] -= 1
    return 2 * hits / sum(sizes) if hits else 0.0


def _common(sentence: list[str], other: list[str]) -> set[int]:
    """The places of `sentence` on one longest common subsequence with `other`."""
    longest = [[0] * (len(other) + 1) for _ in range(len(sentence) + 1)]  # of the first i and the first j tokens
    for i, a in enumerate(sentence):
        for j, b in enumerate(other):
            longest[i + 1][j + 1] = longest[i][j] + 1 if a == b else max(longest[i][j + 1], longest[i + 1][j])
    places, i, j = set(), len(sentence), len(other)
    while i and j:
        if sentence[i - 1] == other[j - 1]:
            i, j = i - 1, j - 1
            places.add(i)
        elif longest[i - 1][j] >= longest[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return places


METRICS: dict[str, Callable[[Sequence[str], References], float]] = {
    function.__name__: function
    for function in (token_error, sequence_error, exact_match, bleu, chrf, ter, rouge_1, rouge_2, rouge_l, rouge_lsum)
}
"""By the names that a recipe uses."""
ERRORS = frozenset({"token_error", "sequence_error", "ter"})
"""Those of which less is better."""
_FALLING = re.compile(r"loss$|(^|_)(error|error_rate|perplexity|ter|wer|cer|per)$")


def higher_is_better(name: str) -> bool:
    """What the name of a result says, "eval_loss" or "bleu", whoever measured it: not so for losses and errors."""
    return _FALLING.search(name) is None


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


def reference_streams(references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """Reference k of each output, for k = 0, 1, ...; None where an output has fewer. So sacreBLEU wants them."""
    most = max(map(len, references))
    return [[accepted[k] if k < len(accepted) else None for accepted in references] for k in range(most)]
