"""Greedy search that checks several guessed tokens at once: the same output in fewer steps (arXiv 2211.17192, greedy case).

    model.generate(**inputs, custom_generate=transduct.decoding.greedy_with_drafts)                    # guesses from the source
    model.generate(**inputs, custom_generate=transduct.decoding.greedy_with_drafts, draft_model=small) # from a smaller model

- From the source (arXiv 2205.10350; "prompt lookup"): the tokens that follow the last n-gram of the output in the source. It pays
  where outputs copy much: correction, post-editing, summarisation.
- From a smaller model of the same vocabulary, which decodes greedily ahead.

A step reads the last token and all guesses. The guesses are right as long as each is the most probable token after those before
it; the first that is not is replaced by that token. Each row of a batch keeps its own number of them (see `slots.py`).

Shapes: `B` rows still decoded, `k` guesses a step, `S` source length, `V` vocabulary.
"""

from typing import Any, Protocol

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation.utils import GenerateEncoderDecoderOutput

from transduct.decoding.ensemble import make_rows
from transduct.decoding.rows import Rows
from transduct.decoding.search import check_options, limits_and_criteria, padding
from transduct.decoding.slots import Slots


class Draft(Protocol):
    """What guesses."""

    def guess(self, ids: torch.Tensor, lengths: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Guesses (B, k) for what follows the first `lengths` (B) tokens of `ids` (B, room), and which of them are meant."""

    def keep(self, order: torch.Tensor) -> None:
        """Go on with the rows `order` alone."""


class SourceLookup:
    """Guesses what follows in the source where the output's last tokens stand.

    Args:
        source: ids (B, S); real: (B, S), False at padding; longest: tokens of the n-gram that is looked up first.
    """

    def __init__(self, source: torch.Tensor, real: torch.Tensor, prompt: int, longest: int):
        self.source = source.masked_fill(~real, -1)
        self.prompt = prompt
        self.longest = longest
        self.next = torch.zeros(len(source), dtype=torch.long, device=source.device)  # (B), where the last match ended

    def guess(self, ids: torch.Tensor, lengths: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        size = self.source.shape[1]
        places = torch.arange(size, device=ids.device)
        start = torch.where(lengths == self.prompt, 0, -1)  # (B), the output begins as the source does
        for width in range(1, min(self.longest, size) + 1):
            last = ids.gather(1, (lengths[:, None] - width + torch.arange(width, device=ids.device)).clamp(min=0))  # (B, width)
            found = (self.source.unfold(1, width, 1) == last[:, None]).all(2)  # (B, S - width + 1)
            found = found & (lengths - self.prompt >= width)[:, None]
            ends = places[width - 1 :] + 1  # (S - width + 1), where the guess would begin
            distance = (ends - self.next[:, None]) % (size + 1)  # the nearest one behind the last match, then from the beginning
            best = distance.masked_fill(~found, size + 1).argmin(1)  # (B)
            start = torch.where(found.any(1), ends[best], start)  # a longer n-gram overrules
        self.next = torch.where(start >= 0, start, self.next)
        index = start[:, None] + torch.arange(count, device=ids.device)  # (B, k)
        inside = (start >= 0)[:, None] & (index < size)
        guesses = self.source.gather(1, index.clamp(0, size - 1)).masked_fill(~inside, -1)
        return guesses.clamp(min=0), (guesses >= 0).cumprod(1).bool()

    def keep(self, order: torch.Tensor) -> None:
        self.source, self.next = self.source[order], self.next[order]


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
    inputs_tensor: torch.Tensor | None = None,
    synced_gpus: bool = False,
    **model_kwargs: Any,
) -> torch.Tensor | GenerateEncoderDecoderOutput:
    """Greedy search as `model.generate(custom_generate=greedy_with_drafts, ...)`.

    Args:
        draft_model: a smaller model with the same vocabularies; None: guesses come from the source.
        draft_tokens: guesses a step; draft_ngram: longest n-gram that is looked up in the source.

    Returns:
        The ids that greedy search gives: (sources, longest).

    Raises:
        ValueError: for models that are not of this package, and options that it cannot honour.
    """
    check_options("greedy_with_drafts", generation_config, synced_gpus)
    _check(model, draft_model, logits_processor, generation_config, draft_tokens, draft_ngram)
    members = make_rows(
        model, input_ids, 1, generation_config, model_kwargs, [] if draft_model is None else [draft_model], "log", inputs_tensor
    )
    limits, criteria = limits_and_criteria(stopping_criteria, len(input_ids), input_ids.shape[1])
    if criteria:
        raise ValueError(f"stopping_criteria {[type(each).__name__ for each in criteria]} cannot be had with greedy_with_drafts")
    draft: Any
    if draft_model is None:
        draft = _lookup(members, inputs_tensor, draft_ngram)
    else:
        draft = ModelDraft(Slots(members.members[1]))  # type: ignore[attr-defined]
        members = members.members[0]  # type: ignore[attr-defined]
    ends = generation_config._eos_token_tensor
    ends = input_ids.new_empty(0) if ends is None else ends.to(input_ids.device)
    with torch.no_grad():
        ids = _decode(Slots(members), draft, input_ids, limits.clamp(min=1), ends, draft_tokens, padding(generation_config))
    return GenerateEncoderDecoderOutput(sequences=ids) if generation_config.return_dict_in_generate else ids


def _check(model: Any, draft_model: Any, processors: Any, config: Any, tokens: int, ngram: int) -> None:
    for name, each in (("the model", model), ("draft_model", draft_model)):
        if each is not None and not (each.config.model_type == "transduct" and each.config.is_encoder_decoder):
            raise ValueError(f"{name} is a {type(each).__name__}: greedy_with_drafts needs encoder-decoders of transduct")
    if processors:
        names = [type(processor).__name__ for processor in processors]
        raise ValueError(f"greedy_with_drafts cannot run logits processors {names}: leave out the options that need them")
    if config.num_beams > 1 or config.num_return_sequences > 1:
        raise ValueError(f"num_beams={config.num_beams}, num_return_sequences={config.num_return_sequences}: drafts are for one")
    for name, value in (("draft_tokens", tokens), ("draft_ngram", ngram)):
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")


def _lookup(rows: Rows, source: torch.Tensor | None, ngram: int) -> SourceLookup:
    if source is None or source.is_floating_point():
        raise ValueError("guesses from the source need its token ids: pass input_ids, or a draft_model")
    mask = rows.arguments.get("attention_mask")
    real = torch.ones_like(source, dtype=torch.bool) if mask is None else mask.bool()
    return SourceLookup(source, real, rows.ids.shape[1], ngram)


def _decode(
    slots: Slots, draft: Any, prompt: torch.Tensor, limits: torch.Tensor, ends: torch.Tensor, count: int, pad: int
) -> torch.Tensor:
    """Ids (sources, longest) of all sources."""
    device, start = prompt.device, prompt.shape[1]
    limits = limits.to(device)
    room = start + int(limits.max()) + count + 1
    ids = torch.nn.functional.pad(prompt, (0, room - start), value=pad)  # (B, room)
    out, alive = ids.clone(), torch.arange(len(ids), device=device)
    lengths = torch.full((len(ids),), start, device=device)  # (B)
    longest = start
    while len(alive):
        guesses, meant = draft.guess(ids, lengths, count)  # (B, k)
        width = int((lengths - slots.real.sum(1)).max())  # tokens that are yet to be read: the prompt at first, then one
        index = lengths[:, None] - width + torch.arange(width, device=device)
        tokens = torch.cat([ids.gather(1, index), guesses], dim=1)  # (B, width + k)
        real = torch.cat([torch.ones_like(index, dtype=torch.bool), meant], dim=1)
        best = slots.feed(tokens, real)[:, width - 1 :].argmax(-1)  # (B, k + 1)
        right = ((best[:, :-1] == guesses) & meant).cumprod(1).sum(1)  # (B)
        slots.take_back(torch.arange(width + count, device=device) < width + right[:, None])
        if isinstance(draft, ModelDraft):
            draft.settle(right)
        new = torch.arange(count + 1, device=device) <= right[:, None]  # (B, k + 1), the right guesses and one more
        ended = torch.isin(best, ends) & new
        new = new & (ended.cumsum(1) - ended.int() == 0)  # nothing follows an end
        new = new & (torch.arange(count + 1, device=device) < (start + limits[alive] - lengths)[:, None])
        done = (ended & new).any(1) | (lengths + new.sum(1) >= start + limits[alive])  # (B)
        places = lengths[:, None] + torch.arange(count + 1, device=device)
        ids.scatter_(1, places, torch.where(new, best, pad))
        lengths = lengths + new.sum(1)
        out[alive], longest = ids, max(longest, int(lengths.max()))
        stays = (~done).nonzero().squeeze(1)
        if len(stays) < len(alive):
            order = stays
            alive, ids, lengths = alive[order], ids[order], lengths[order]
            if len(alive):
                slots.keep(order)
                draft.keep(order)
    return out[:, :longest]
