"""Beam search as one would write it down, on tiny models: what the searches of the package must find."""

from collections.abc import Callable
from functools import cache

import torch
from transformers import LogitsProcessor

from configs import END, START, build, pad_rows, tiny
from transduct import TransductForConditionalGeneration
from transduct.decoding import beam_search
from transduct.decoding.beam import NEVER, BeamSearch

NORMALIZATIONS = [
    {"length_normalization": "hf", "length_penalty": 1.0},
    {"length_normalization": "hf", "length_penalty": -0.5},
    {"length_normalization": "gnmt", "length_penalty": 0.6},
    {"length_normalization": "sockeye", "length_penalty": 1.0, "length_offset": 2.0},
    {"length_normalization": "none"},
    {"length_normalization": "hf", "length_penalty": 0.0, "word_reward": 0.7},
    {"length_normalization": "none", "word_reward": -0.4},
]

Found = list[tuple[float, tuple[int, ...]]]
"""(score, tokens) of hypotheses, best first."""


def tiny_model(vocabulary: int, seed: int):
    """A model of few tokens, of which the end is rather likely."""
    model = build(TransductForConditionalGeneration, tiny(vocab_size=vocabulary, logits_bias=True), torch.float32, seed)
    with torch.no_grad():
        model.lm_head.bias[END] += 2.0
    return model


def log_probabilities(model, source: torch.Tensor) -> Callable[[tuple[int, ...]], list[float]]:
    """Of the next token after given ones: one full pass without a cache for each."""

    @cache
    def following(prefix: tuple[int, ...]) -> list[float]:
        with torch.no_grad():
            logits = model(source[None], decoder_input_ids=torch.tensor([[START, *prefix]]), use_cache=False).logits[0, -1]
        return logits.float().log_softmax(-1).tolist()

    return following


def scoring_of(options: dict) -> Callable[[float, int], float]:
    """The formulas of `normalization.py`, in plain Python."""
    penalty, offset, reward = (options.get(key, 0.0) for key in ("length_penalty", "length_offset", "word_reward"))
    divisors = {
        "hf": lambda length: length**penalty,
        "gnmt": lambda length: ((5 + length) / 6) ** penalty,
        "sockeye": lambda length: ((offset + length) / (offset + 1)) ** penalty,
        "none": lambda length: 1.0,
    }
    divisor = divisors[options["length_normalization"]]
    return lambda total, length: total / divisor(length) + reward * length


def naive_search(
    following: Callable[[tuple[int, ...]], list[float]],
    score: Callable[[float, int], float],
    beams: int,
    most: int,
    stopping: str,
    extra: Callable[[tuple[int, ...]], float] = lambda ids: 0.0,
) -> Found:
    """As many hypotheses as there are beams. With "exact" it goes on to the most tokens, whatever it has found.

    Args:
        extra: what is added to the score of a hypothesis that has ended.
    """
    running: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    found: Found = []
    for length in range(1, most + 1):
        every = [((*ids, token), total + more) for ids, total in running for token, more in enumerate(following(ids))]
        every.sort(key=lambda each: -each[1])
        ends = [ids[-1] == END or length == most for ids, _ in every]
        finished = [each for each, end in zip(every[:beams], ends, strict=False) if end]
        found = sorted(found + [(score(total, length) + extra(ids), ids) for ids, total in finished], reverse=True)[:beams]
        running = [each for each, end in zip(every, ends, strict=True) if not end][:beams]
        if not running or (len(found) == beams and stopping == "first"):
            break
        if len(found) == beams and stopping == "heuristic" and score(running[0][1], length) <= found[-1][0]:
            break
    return found


def decode(model, sources: list[torch.Tensor], **options) -> list[Found]:
    """What `beam_search` finds for each source."""
    ids, mask = pad_rows(sources)
    wanted = options.get("num_return_sequences", 1)
    output = model.generate(ids, attention_mask=mask, custom_generate=beam_search, return_dict_in_generate=True, **options)
    rows = []
    for row in output.sequences[:, 1:].tolist():
        rows.append(tuple(row[: row.index(END) + 1] if END in row else row))
    flat = list(zip(output.sequences_scores.tolist(), rows, strict=True))
    return [flat[start : start + wanted] for start in range(0, len(flat), wanted)]


def never_done(search: BeamSearch) -> torch.Tensor:
    """In place of `BeamSearch.is_done`: each source (B) is searched until its limit has ended every beam."""
    return search.scores.amax(1) == NEVER


def count_rows(model) -> list[int]:
    """The rows of each pass through the decoder from now on."""
    calls: list[int] = []
    decoder = model.get_decoder()
    decoder.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(len(kwargs["input_ids"] if "input_ids" in kwargs else args[0])),
        with_kwargs=True,
    )
    return calls


class Scripted(LogitsProcessor):
    """In place of a model's log-probabilities some that follow from the tokens before alone: the longer, the surer.

    What begins improbably may so have the better score in the end, where lengths are normalised.
    """

    def __init__(self, vocabulary: int, seed: int):
        self.vocabulary, self.seed = vocabulary, seed
        self.known: dict[tuple[int, ...], list[float]] = {}

    def following(self, prefix: tuple[int, ...]) -> list[float]:
        """Log-probabilities of the next token."""
        if prefix not in self.known:
            number = int("".join(map(str, (self.seed, *prefix)))) % 2**31
            logits = torch.randn(self.vocabulary, generator=torch.Generator().manual_seed(number)) * (1 + 2 * len(prefix))
            self.known[prefix] = logits.log_softmax(-1).tolist()
        return self.known[prefix]

    def __call__(self, input_ids, scores):
        return torch.tensor([self.following(tuple(row[1:])) for row in input_ids.tolist()])
