"""Greedy search that checks several guessed tokens at once: the same output in fewer steps (arXiv 2211.17192, greedy case).

    model.generate(**inputs, custom_generate=transduct.decoding.greedy_with_drafts)                    # guesses from the source
    model.generate(**inputs, custom_generate=transduct.decoding.greedy_with_drafts, draft_model=small) # from a smaller model

- From the source (arXiv 2205.10350; "prompt lookup"): the tokens that follow the last n-gram of the output in the source. It pays
  where outputs copy much: correction, post-editing, summarisation.
- From a smaller model of the same vocabulary, which decodes greedily ahead.

A step reads the last token and all guesses. The guesses are right as long as each is the most probable token after those before
it; the first that is not is replaced by that token. Each row of a batch keeps its own number of them (see `slots.py`). The output
is that of greedy search but for ties within rounding, which differs with the number of tokens that a step reads.

Logits processors see what greedy search would show them, guess by guess, up to the first wrong one. Those that may remember
something from step to step are refused by name, as are your own unless they have a method `at_sources` (see `processors.py`).

Shapes: `B` rows still decoded, `k` guesses a step, `S` source length, `V` vocabulary.
"""

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from transduct.decoding.beam import NEVER
from transduct.decoding.ensemble import member_rows
from transduct.decoding.processors import RowProcessors
from transduct.decoding.rows import Rows
from transduct.decoding.search import FORBIDDEN, SearchOutput, check_options, end_tokens, length_limits, padding
from transduct.decoding.slots import Slots
from transduct.decoding.source_error import SourceError
from transduct.decoding.top import best_tokens


class Draft(Protocol):
    """What guesses."""

    def guess(self, ids: torch.Tensor, lengths: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Guesses (B, k) for what follows the first `lengths` (B) tokens of `ids` (B, room), and which of them are meant."""

    def settle(self, right: torch.Tensor) -> None:
        """Only the first `right` (B) of the guesses were right."""

    def keep(self, order: torch.Tensor) -> None:
        """Go on with the rows `order` alone."""


class SourceLookup:
    """Guesses what follows in the source where the output's last tokens stand.

    Args:
        source: ids (B, S); real: (B, S), False at padding; prompt: tokens that the decoder starts with.
        longest: tokens of the longest n-gram that is looked up; a longer one that is found overrules a shorter one.
    """

    def __init__(self, source: torch.Tensor, real: torch.Tensor, prompt: int, longest: int):
        self.source = source.masked_fill(~real, -1)
        self.prompt = prompt
        self.longest = longest
        self.last = torch.zeros(len(source), dtype=torch.long, device=source.device)  # (B), up to where the source was followed

    def guess(self, ids: torch.Tensor, lengths: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        size = self.source.shape[1]
        places = torch.arange(size, device=ids.device)
        start = torch.where(lengths == self.prompt, 0, -1)  # (B), the output begins as the source does
        for width in range(1, min(self.longest, size) + 1):
            last = ids.gather(1, (lengths[:, None] - width + torch.arange(width, device=ids.device)).clamp(min=0))  # (B, width)
            found = (self.source.unfold(1, width, 1) == last[:, None]).all(2)  # (B, S - width + 1)
            found = found & (lengths - self.prompt >= width)[:, None]
            ends = places[width - 1 :] + 1  # (S - width + 1), where the guess would begin
            distance = (ends - 1 - self.last[:, None]) % (size + 1)  # the nearest place behind the last, then from the beginning
            best = distance.masked_fill(~found, size + 1).argmin(1)  # (B)
            start = torch.where(found.any(1), ends[best], start)  # a longer n-gram overrules
        self.last = torch.where(start >= 0, start, self.last)
        index = start[:, None] + torch.arange(count, device=ids.device)  # (B, k)
        inside = (start >= 0)[:, None] & (index < size)
        guesses = self.source.gather(1, index.clamp(0, size - 1)).masked_fill(~inside, -1)
        return guesses.clamp(min=0), (guesses >= 0).cumprod(1).bool()

    def settle(self, right: torch.Tensor) -> None:
        self.last = self.last + right

    def keep(self, order: torch.Tensor) -> None:
        self.source, self.last = self.source[order], self.last[order]


class ModelDraft:
    """Guesses what a smaller model would write.

    Args:
        slots: that model, which has read nothing yet.
    """

    def __init__(self, slots: Slots):
        self.slots = slots

    def guess(self, ids: torch.Tensor, lengths: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        read = self.slots.real.sum(1)  # (B), of which some may be wrong guesses by now
        behind = lengths - read  # (B), at least 1
        width = int(behind.max())
        index = lengths[:, None] - width + torch.arange(width, device=ids.device)  # (B, width)
        logits = self.slots.feed(ids.gather(1, index.clamp(min=0)), index >= read[:, None])
        token = logits[:, -1].argmax(-1)  # (B)
        guesses = [token]
        for _ in range(count - 1):
            token = self.slots.feed(token[:, None], torch.ones_like(token[:, None], dtype=torch.bool))[:, -1].argmax(-1)
            guesses.append(token)
        self.guessed = torch.stack(guesses, dim=1)  # (B, k), all but the last one read
        return self.guessed, torch.ones_like(self.guessed, dtype=torch.bool)

    def settle(self, right: torch.Tensor) -> None:
        """Take back what was read of the guesses beyond the first `right` (B)."""
        count = self.guessed.shape[1] - 1
        if count:
            self.slots.take_back(torch.arange(count, device=right.device) < right[:, None])

    def keep(self, order: torch.Tensor) -> None:
        self.slots.keep(order)


def greedy_with_drafts(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    draft_model: Any = None,
    draft_tokens: int = 8,
    draft_ngram: int = 3,
    max_length_by_source: tuple[float, float] | None = None,
    inputs_tensor: torch.Tensor | None = None,
    synced_gpus: bool = False,
    **model_kwargs: Any,
) -> torch.Tensor | SearchOutput:
    """Greedy search as `model.generate(custom_generate=greedy_with_drafts, ...)`.

    Args:
        draft_model: a smaller model with the same vocabularies; None: guesses come from the source.
        draft_tokens: guesses a step; draft_ngram: longest n-gram that is looked up in the source.
        max_length_by_source: see `length_limits` in `search.py`. inputs_tensor: the source, which `generate` passes itself.

    Returns:
        The ids that greedy search gives: (sources, longest), or an output with them.

    Raises:
        ValueError: for models that are not of this package, and options that it cannot honour.
    """
    check_options("greedy_with_drafts", generation_config, synced_gpus)
    processors = RowProcessors(logits_processor, len(input_ids), 1)
    _check(model, draft_model, processors, generation_config, draft_tokens, draft_ngram)
    if "decoder_attention_mask" in model_kwargs:
        raise ValueError("decoder_attention_mask cannot be had with greedy_with_drafts: give prompts of one length")
    others = [] if draft_model is None else [draft_model]
    rows = member_rows(model, input_ids, 1, generation_config, model_kwargs, others, inputs_tensor)
    most, _, criteria = length_limits(
        rows[0], logits_processor, stopping_criteria, generation_config, model_kwargs, max_length_by_source
    )
    if criteria:
        raise ValueError(f"stopping_criteria {[type(each).__name__ for each in criteria]} cannot be had with greedy_with_drafts")
    draft: Draft = _lookup(rows[0], inputs_tensor, draft_ngram) if draft_model is None else ModelDraft(Slots(rows[1]))
    end = end_tokens(generation_config, most.device)
    decoding = _Decoding(Slots(rows[0]), draft, processors, input_ids, most, end, draft_tokens, padding(generation_config))
    with torch.no_grad():
        output = decoding.run()
    return output if generation_config.return_dict_in_generate else output.sequences


def _check(model: Any, draft_model: Any, processors: RowProcessors, config: Any, tokens: int, ngram: int) -> None:
    for name, each in (("the model", model), ("draft_model", draft_model)):
        if each is not None and not hasattr(each, "generate"):
            raise ValueError(f"{name} is a {type(each).__name__}, which is no model: load it first")
        if each is not None and not (each.config.model_type == "transduct" and each.config.is_encoder_decoder):
            raise ValueError(f"{name} is a {type(each).__name__}: greedy_with_drafts needs encoder-decoders of transduct")
        if each is not None and not hasattr(each, "parameters"):
            raise ValueError(f"{name} is a {type(each).__name__}, which tells no logits: drafts need a model of torch")
        if each is not None and next(each.parameters(), None) is None:
            raise ValueError(f"{name} is a {type(each).__name__}, which reads one token a step: drafts need a model of torch")
    if names := processors.with_memory():
        raise ValueError(f"greedy_with_drafts cannot run logits processors {names}: leave out the options that need them")
    if config.num_beams > 1 or config.num_return_sequences > 1:
        raise ValueError(f"num_beams={config.num_beams}, num_return_sequences={config.num_return_sequences}: drafts are for one")
    for name, value in (("draft_tokens", tokens), ("draft_ngram", ngram)):
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")


def _lookup(rows: Rows, source: torch.Tensor | None, ngram: int) -> SourceLookup:
    if source is None or source.is_floating_point():
        raise ValueError("guesses from the source need its token ids: pass input_ids, or a draft_model")
    config = rows.model.config
    if config.resolved_decoder_vocab_size != config.vocab_size:
        raise ValueError("guesses from the source need a vocabulary that both sides share: pass a draft_model")
    mask = rows.arguments.get("attention_mask")
    real = torch.ones_like(source, dtype=torch.bool) if mask is None else mask.bool()
    return SourceLookup(source, real, rows.ids.shape[1], ngram)


class _Decoding:
    """Greedy search over one batch.

    Args:
        slots: the model, which has read nothing yet; processors: those of `generate`.
        prompt: (sources, T), what the decoder starts with.
        most: (sources), tokens that may be generated; end: ids (E) of end tokens; count: guesses a step; pad: behind ends.
    """

    def __init__(
        self,
        slots: Slots,
        draft: Draft,
        processors: RowProcessors,
        prompt: torch.Tensor,
        most: torch.Tensor,
        end: torch.Tensor,
        count: int,
        pad: int,
    ):
        self.slots, self.draft, self.processors, self.end, self.count, self.pad = slots, draft, processors, end, count, pad
        self.prompt = prompt.shape[1]
        self.limits = self.prompt + most  # (B), lengths at which rows are done
        self.ids = F.pad(prompt, (0, int(most.max()) + count + 1), value=pad)  # (B, room)
        self.lengths = torch.full_like(most, self.prompt)  # (B), tokens of each row, the prompt included
        self.alive = torch.arange(len(prompt), device=prompt.device)  # (B), the numbers of the rows still decoded
        self.out = self.ids.clone()  # (sources, room)
        self.out_lengths = self.lengths.clone()  # (sources)
        self.log_probs = torch.zeros(len(prompt), device=prompt.device)  # (sources)

    def run(self) -> SearchOutput:
        """Decode until all rows are done."""
        while len(self.alive):
            guesses, meant = self.guess()  # (B, k)
            best, log_probs = self.check(guesses, meant)  # (B, k + 1)
            right = ((best[:, :-1] == guesses) & meant).cumprod(1).sum(1)  # (B)
            self.slots.take_back(self.counted(self.count) < right[:, None])
            self.draft.settle(right)
            self.leave(self.write(best, log_probs, right))
        longest = int(self.out_lengths.max())
        return SearchOutput(sequences=self.out[:, :longest], lengths=self.out_lengths - self.prompt, log_probs=self.log_probs)

    def counted(self, count: int) -> torch.Tensor:
        """0 to `count` - 1."""
        return torch.arange(count, device=self.ids.device)

    def guess(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The draft's guesses (B, k), and which of them are meant; those behind which nothing more is written are not."""
        guesses, meant = self.draft.guess(self.ids, self.lengths, self.count)
        return guesses, meant & (self.counted(self.count) < (self.limits - self.lengths - 1)[:, None])

    def check(self, guesses: torch.Tensor, meant: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The most probable tokens (B, k + 1) after what is written and after each guess, and their log-probabilities."""
        width = int(
            (self.lengths - self.slots.real.sum(1)).max()
        )  # tokens that are yet to be read: the prompt at first, then one
        index = self.lengths[:, None] - width + self.counted(width)  # (B, width)
        tokens = torch.cat([self.ids.gather(1, index), guesses], dim=1)  # (B, width + k)
        real = torch.cat([torch.ones_like(index, dtype=torch.bool), meant], dim=1)
        logits = self.slots.feed(tokens, real)[:, width - 1 :]  # (B, k + 1, V)
        if self.processors:
            return self.best_processed(logits, guesses, meant)
        values, best = self.best(logits)
        return best, values - logits.logsumexp(-1)

    @staticmethod
    def best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The largest of each of the logits (B, k + 1, V) and its token, (B, k + 1) each."""
        values, tokens = best_tokens(logits.flatten(0, 1))  # (B*(k + 1), 1)
        return values.view(logits.shape[:2]), tokens.view(logits.shape[:2])

    def best_processed(
        self, logits: torch.Tensor, guesses: torch.Tensor, meant: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `check`, after the processors, whose answer depends on the tokens before: so one guess after the other.

        Behind a wrong guess, both have no meaning; no token there is the next guess.
        """
        best = torch.full(logits.shape[:2], -1, device=logits.device)  # (B, k + 1)
        log_probs = logits.new_zeros(best.shape)
        ids = self.ids.scatter(1, self.lengths[:, None] + self.counted(self.count), guesses)  # (B, room)
        right = self.counted(len(ids))  # (b), the rows whose guesses have been right so far
        for place in range(self.count + 1):
            best[right, place], log_probs[right, place] = self.processed(ids, right, place, logits[right, place])
            if place < self.count:
                right = right[(best[right, place] == guesses[right, place]) & meant[right, place]]
        return best, log_probs

    def processed(
        self, ids: torch.Tensor, rows: torch.Tensor, place: int, logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The best tokens (b) of the `rows` (b) by their logits (b, V) after the processors, and their log-probabilities.

        Before the tokens stand `place` guesses of `ids` (B, room).
        """
        result, total = logits.clone(), logits.logsumexp(1)  # (b, V), (b)
        lengths = self.lengths[rows] + place  # (b)
        for length in lengths.unique().tolist():
            same = (lengths == length).nonzero().squeeze(1)  # processors take rows of one length
            before = ids[rows[same], :length]
            result[same] = self.processors(before, logits[same], self.alive[rows[same]])
            if self.processors.give_log_probs(before):
                total[same] = 0.0
        values, tokens = result.max(1)  # (b)
        dead = (values == NEVER).nonzero().flatten().tolist()
        if dead:
            raise SourceError(int(self.alive[rows[dead[0]]]), f"has no possible output: {FORBIDDEN}")
        return tokens, values - total

    def write(self, best: torch.Tensor, log_probs: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Write the right guesses and one more token, up to an end or the limit; which rows (B) are done."""
        steps = self.counted(best.shape[1])
        ended = torch.isin(best, self.end)
        before = ended.cumsum(1) - ended.int()  # (B, k + 1), ends before each
        new = (steps <= right[:, None]) & (before == 0) & (steps < (self.limits - self.lengths)[:, None])
        self.ids.scatter_(1, self.lengths[:, None] + steps, torch.where(new, best, self.pad))
        self.lengths = self.lengths + new.sum(1)
        self.out[self.alive], self.out_lengths[self.alive] = self.ids, self.lengths
        self.log_probs[self.alive] += log_probs.masked_fill(~new, 0.0).sum(1)
        return (ended & new).any(1) | (self.lengths >= self.limits)

    def leave(self, done: torch.Tensor) -> None:
        """Let the rows (B) go that are done."""
        stay = (~done).nonzero().squeeze(1)
        if len(stay) == len(done):
            return
        self.alive, self.ids, self.lengths, self.limits = (
            each[stay] for each in (self.alive, self.ids, self.lengths, self.limits)
        )
        if len(stay):
            self.slots.keep(stay)
            self.draft.keep(stay)
