"""Log-probabilities of given targets: per token, per sentence, and the perplexity of all.

A target is scored as the search scores its own: after the same first tokens, by the same formula, its end included. A token that
generation forces (`forced_bos_token_id`) is certain. What a processor forbids or changes in a search is no part of it.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from transduct.decoding.forcing import forced, padded
from transduct.decoding.languages import direction
from transduct.decoding.models import check_model, check_tokenizer, first_tokens, source_limit, target_limit, target_vocabulary
from transduct.decoding.normalization import Normalization, Scoring
from transduct.decoding.progress import progress_bar
from transduct.decoding.sharing import Processes
from transduct.decoding.texts import check_text, check_texts, target_ids
from transduct.decoding.translator import PENALTIES
from transduct.decoding.windows import WINDOW, length_batches, windows


@dataclass(frozen=True)
class ScoredTarget:
    """What a model thinks of one target.

    Args:
        score: normalised; log_prob: the sum over tokens; token_ids, token_log_probs: its tokens, the end included.
        certain: how many of them generation would force.
    """

    score: float
    log_prob: float
    token_ids: tuple[int, ...]
    token_log_probs: tuple[float, ...]
    certain: int = 0


@dataclass(frozen=True)
class ScoringOptions:
    """How targets are scored; see `score`."""

    length_normalization: Normalization = "none"
    length_penalty: float | None = None
    length_offset: float = 0.0
    word_reward: float = 0.0
    max_tokens_per_batch: int = 4096
    src_lang: str | None = None
    tgt_lang: str | None = None
    task: str | None = None
    prefix: str | None = None
    max_source_length: int | None = None

    def scoring(self) -> Scoring:
        penalty = PENALTIES.get(self.length_normalization, 1.0) if self.length_penalty is None else self.length_penalty
        return Scoring(self.length_normalization, penalty, self.length_offset, self.word_reward)


Target = str | Sequence[int]
"""A text, or the ids of its tokens as in `Translation.token_ids`, which need not be how the tokenizer would cut the text."""


class Scorer:
    """Scores windows of pairs.

    Args:
        model: an encoder-decoder; tokenizer: its own; options: see `score`.
    """

    def __init__(self, model: Any, tokenizer: Any, options: ScoringOptions):
        check_model(model)
        check_tokenizer(tokenizer)
        self.model, self.tokenizer, self.options = model, tokenizer, options
        self.direction = direction(model, tokenizer, options.src_lang, options.tgt_lang, options.task, options.prefix)
        self.start, self.first = first_tokens(model, self.direction.generation)
        self.limits = source_limit(model, tokenizer, options.max_source_length), target_limit(model)
        self.scoring = options.scoring()

    def __call__(self, pairs: Sequence[tuple[str, Target]], numbers: Sequence[int] | None = None) -> list[ScoredTarget]:
        """The scores of pairs, in order. A pair of two texts of white space alone scores 0.

        Args:
            numbers: of the pairs, for messages; None: from 1 on.

        Raises:
            ValueError: for a text that is none or too long, naming its number.
        """
        numbers = range(1, len(pairs) + 1) if numbers is None else numbers
        for (source, target), number in zip(pairs, numbers, strict=True):
            check_text(source, f"the source of line {number}")
            _check_target(target, number, target_vocabulary(self.model))
        results = [ScoredTarget(0.0, 0.0, (), ())] * len(pairs)
        full = [number for number, (source, target) in enumerate(pairs) if source.strip() or not _is_blank(target)]
        sources, targets = self.encode([pairs[number] for number in full], [numbers[number] for number in full])
        was_training = self.model.training
        self.model.eval()
        try:
            lengths = [len(source) + len(target) for source, target in zip(sources, targets, strict=True)]
            for batch in length_batches(lengths, self.options.max_tokens_per_batch):
                scored = self._score([sources[number] for number in batch], [targets[number] for number in batch])
                for number, result in zip(batch, scored, strict=True):
                    results[full[number]] = result
        finally:
            self.model.train(was_training)
        return results

    def encode(self, pairs: Sequence[tuple[str, Target]], numbers: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
        """The ids of sources and of targets; errors as of a call."""
        if not pairs:
            return [], []
        with self.direction.applied(self.tokenizer):
            sources = self.tokenizer([self.direction.prefix + source for source, _ in pairs], verbose=False)["input_ids"]
            named = zip(pairs, numbers, strict=True)
            targets = [self._target(target, f"the target of line {number}") for (_, target), number in named]
        for ids, number in zip(zip(sources, targets, strict=True), numbers, strict=True):
            for side, own, limit in zip(("source", "target"), ids, self.limits, strict=True):
                if limit is not None and len(own) > limit:
                    raise ValueError(f"the {side} of line {number} has {len(own)} tokens, more than the {limit} that fit")
                if not own:
                    raise ValueError(f"the {side} of line {number} has no tokens")
        return sources, targets

    def _target(self, target: Target, name: str) -> list[int]:
        """The ids that a search would generate for a target."""
        return target_ids(self.tokenizer, target, self.first, name) if isinstance(target, str) else list(map(int, target))

    def _score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[ScoredTarget]:
        ids, mask = padded(sources, self.tokenizer.pad_token_id, self.tokenizer.padding_side)
        inputs = {"input_ids": ids.to(self.model.device), "attention_mask": mask.to(self.model.device)}
        output, wanted, real = forced(self.model, inputs, targets, self.start)
        logits = output.logits.float()  # (B, T, V)
        log_probs = (logits.gather(2, wanted[:, :, None]).squeeze(2) - logits.logsumexp(2)).cpu()  # (B, T)
        wanted, real = wanted.cpu(), real.cpu()
        certain = wanted[:, 0] == (-1 if self.first is None else self.first)  # (B)
        log_probs[:, 0] = log_probs[:, 0].masked_fill(certain, 0.0)
        totals = (log_probs.double() * real).sum(1)  # (B)
        scores = self.scoring.score(totals, real.sum(1))
        return [
            ScoredTarget(score, total, tuple(target), tuple(row[: len(target)]), int(sure))
            for score, total, target, row, sure in zip(
                scores.tolist(), totals.tolist(), targets, log_probs.tolist(), certain.tolist(), strict=True
            )
        ]


def _check_target(target: Any, number: int, vocabulary: int) -> None:
    """Raises ValueError for what is neither a text nor ids of the target vocabulary."""
    if isinstance(target, str):
        check_text(target, f"the target of line {number}")
        return
    ids: list[Any] = list(target) if isinstance(target, Iterable) and not isinstance(target, bytes) else [""]
    wrong = [token for token in ids if isinstance(token, bool) or not hasattr(token, "__index__") or not 0 <= token < vocabulary]
    if wrong:
        what = f"a text, or ids of the {vocabulary} tokens of the target vocabulary"
        raise ValueError(f"the target of line {number} must be {what}, not {target!r}")


def _is_blank(target: Target) -> bool:
    return not target.strip() if isinstance(target, str) else len(target) == 0


def score(
    model: Any,
    tokenizer: Any,
    sources: Iterable[str],
    targets: Iterable[Target],
    length_normalization: Normalization = "none",
    *,
    length_penalty: float | None = None,
    length_offset: float = 0.0,
    word_reward: float = 0.0,
    max_tokens_per_batch: int = 4096,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    task: str | None = None,
    prefix: str | None = None,
    max_source_length: int | None = None,
    per_token: bool = False,
    window: int = WINDOW,
    progress: bool = False,
    share: bool = False,
) -> list[Any]:
    """Score pairs of texts.

    Args:
        model: of transduct, or any AutoModelForSeq2SeqLM; tokenizer: its own.
        sources, targets: as many of one as of the other. A target is a text, or token ids such as `Translation.token_ids`.
        length_normalization, length_penalty, length_offset, word_reward: see `normalization.py`; as of `translate`, but that
            "none" is the default: plain log-probabilities.
        max_tokens_per_batch: source and target tokens of a batch, padding included.
        src_lang, tgt_lang, task, prefix: see `languages.py`.
        per_token: return a `ScoredTarget` for each pair, with its tokens and their log-probabilities.
        window: pairs that are sorted together. progress: show a bar on stderr. share: as of `translate`.

    Returns:
        In order, for each pair its score, natural logarithms; see also `perplexity`.

    Raises:
        ValueError: for lists of different lengths, a text that is too long or none, and unknown options.
    """
    for name, texts in (("sources", sources), ("targets", targets)):
        check_texts(name, texts)
    options = ScoringOptions(
        length_normalization, length_penalty, length_offset, word_reward, max_tokens_per_batch, src_lang, tgt_lang, task, prefix,
        max_source_length,
    )  # fmt: skip
    found = list(score_stream(model, tokenizer, _paired(sources, targets), options, window, progress, share))
    return found if per_token else [each.score for each in found]


def score_stream(
    model: Any,
    tokenizer: Any,
    pairs: Iterable[tuple[str, Target]],
    options: ScoringOptions | None = None,
    window: int = WINDOW,
    progress: bool = False,
    share: bool = False,
) -> Iterator[ScoredTarget]:
    """The scores of pairs, in order, while no more than a window of them is held."""
    scorer = Scorer(model, tokenizer, options or ScoringOptions())
    processes = Processes(share)
    first = 1
    with progress_bar(progress and processes.is_main) as bar:
        task = bar.add_task("scoring", total=None)
        for some in processes.windows(windows(pairs, window)):
            yield from processes.share(scorer, some, first)
            first += len(some)
            bar.update(task, completed=first - 1)


def _paired(sources: Iterable[str], targets: Iterable[Target]) -> Iterator[tuple[str, Target]]:
    """Pairs, or ValueError once one of them has more than the other."""
    nothing = object()
    ones, others = iter(sources), iter(targets)
    for number, source in enumerate(ones, start=1):
        target: Any = next(others, nothing)
        if target is nothing:
            raise ValueError(f"there are more sources than targets, of which there are {number - 1}: each needs one")
        yield source, target
    if next(others, nothing) is not nothing:
        raise ValueError("there are more targets than sources: each needs one")


def perplexity(scored: Iterable[ScoredTarget]) -> float:
    """`exp(-log-probability per token)` of all targets together; tokens that generation forces do not count.

    Raises:
        ValueError: without a token.
    """
    total, tokens = 0.0, 0
    for each in scored:
        total += each.log_prob
        tokens += len(each.token_ids) - each.certain
    if not tokens:
        raise ValueError("there is no token whose perplexity could be told")
    return perplexity_of(total, tokens)


def perplexity_of(log_prob: float, tokens: int) -> float:
    """`exp(-log_prob / tokens)`, infinite where a float does not hold it."""
    try:
        return math.exp(-log_prob / tokens)
    except OverflowError:
        return math.inf
