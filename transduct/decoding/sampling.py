"""Sampling (arXiv 1904.09751): several targets of each source drawn at random; a source leaves when all of its own are done.

    model.generate(**inputs, do_sample=True, num_return_sequences=8, top_p=0.9, custom_generate=transduct.decoding.sample)

Temperature, top-k, nucleus, typical and epsilon sampling are transformers' own processors, chosen by generate's arguments. The
draws of a source do not depend on the other sources of its batch if each is given a seed; without seeds they are generate's own
until the first source leaves.

Shapes: `B` sources whose targets are still drawn, `N` targets a source, `T` tokens so far, `V` vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from transduct.decoding.beam import NEVER
from transduct.decoding.ensemble import Mean, make_rows
from transduct.decoding.processors import RowProcessors
from transduct.decoding.rows import Rows
from transduct.decoding.search import FORBIDDEN, SearchOutput, check_options, end_tokens, length_limits, padding
from transduct.decoding.source_error import SourceError
from transduct.training.checks import check_count


def sample(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    seeds: Sequence[int] | None = None,
    max_length_by_source: tuple[float, float] | None = None,
    min_length_by_source: tuple[float, float] | None = None,
    ensemble: Sequence[Any] = (),
    ensemble_mean: Mean = "probability",
    inputs_tensor: torch.Tensor | None = None,
    synced_gpus: bool = False,
    **model_kwargs: Any,
) -> torch.Tensor | SearchOutput:
    """Draw targets, as `model.generate(custom_generate=sample, do_sample=True, ...)`.

    Args:
        seeds: one number a source, which fixes its draws whatever else is in the batch; None: torch's global generator.
        max_length_by_source, min_length_by_source: see `length_limits` in `search.py`.
        ensemble, ensemble_mean: further models, see `ensemble.py`. inputs_tensor: the source, which `generate` passes itself.

    Returns:
        What `generate` returns: ids (sources * num_return_sequences, longest), or an output with them. Its `log_probs` are those
        of the model, before temperature and the like; a token that is forced is certain.

    Raises:
        ValueError: for an option that it cannot honour, seeds of another number than sources, and a source without any output.
    """
    check_options("sample", generation_config, synced_gpus, sampling=True)
    candidates = max(1, generation_config.num_return_sequences)
    rows = make_rows(model, input_ids, candidates, generation_config, model_kwargs, ensemble, ensemble_mean, inputs_tensor)
    draw = Draws(seeds, rows.sources, candidates, input_ids.device)
    most, least, criteria = length_limits(
        rows,
        logits_processor,
        stopping_criteria,
        generation_config,
        model_kwargs,
        max_length_by_source,
        min_length_by_source,
    )
    end = end_tokens(generation_config, most.device)
    processors = RowProcessors(logits_processor, rows.sources, candidates)
    sampling = Sampling(rows, processors, criteria, draw, end, padding(generation_config), most, least)
    with torch.no_grad():
        output = sampling.run()
    return output if generation_config.return_dict_in_generate else output.sequences


class Draws:
    """Random tokens, from one generator a source where there are seeds."""

    def __init__(self, seeds: Sequence[int] | None, sources: int, candidates: int, device: torch.device):
        if seeds is not None and len(seeds) != sources:
            raise ValueError(f"seeds holds {len(seeds)} numbers, but there are {sources} sources; it needs one each")
        for number, seed in enumerate(seeds or ()):
            check_count(seed, f"seeds[{number}]")
        self.candidates = candidates
        self.generators = None if seeds is None else [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def __call__(self, probabilities: torch.Tensor, alive: torch.Tensor) -> torch.Tensor:
        """One token (B*N) for each row of `probabilities` (B*N, V) of the sources numbered `alive` (B)."""
        if self.generators is None:
            return torch.multinomial(probabilities, 1).squeeze(1)
        own = zip(probabilities.split(self.candidates), alive.tolist(), strict=True)
        return torch.cat([torch.multinomial(part, 1, generator=self.generators[number]).squeeze(1) for part, number in own])


class Sampling:
    """The draws of one batch.

    Args:
        draw: what draws; end: ids (E) of end tokens; pad: what follows them.
        most, least: (sources), tokens that may be generated, and must be before an end; None: any.
    """

    def __init__(
        self,
        rows: Rows,
        processors: RowProcessors,
        criteria: StoppingCriteriaList,
        draw: Draws,
        end: torch.Tensor,
        pad: int,
        most: torch.Tensor,
        least: torch.Tensor | None,
    ):
        self.rows, self.processors, self.criteria, self.draw = rows, processors, criteria, draw
        self.end, self.pad, self.most, self.least = end, pad, most, least
        sources, device = rows.sources, rows.ids.device
        self.prompt = rows.ids.shape[1]
        self.alive = torch.arange(sources, device=device)  # (B)
        self.done = torch.zeros(sources, rows.candidates, dtype=torch.bool, device=device)  # (B, N)
        room = self.prompt + int(most.max())
        self.ids = rows.ids.new_full((sources, rows.candidates, room), pad)  # (sources, N, room)
        self.ids[:, :, : self.prompt] = rows.ids.view(sources, rows.candidates, -1)
        self.lengths = torch.zeros(sources, rows.candidates, dtype=torch.long, device=device)
        self.log_probs = torch.zeros(sources, rows.candidates, device=device)

    def run(self) -> SearchOutput:
        """Draw until all are done."""
        while len(self.alive):
            self.step()
        longest = self.prompt + int(self.lengths.max())
        return SearchOutput(
            sequences=self.ids[:, :, :longest].flatten(0, 1),
            lengths=self.lengths.flatten(),
            log_probs=self.log_probs.flatten(),
        )

    def step(self) -> None:
        """One more token for every target that is not done."""
        logits = self.rows.logits()  # (B*N, V)
        total = logits.logsumexp(-1)  # (B*N)
        drawn = self.draw(self.processed(logits).softmax(-1), self.alive)  # (B*N)
        log_probs = (logits.gather(1, drawn[:, None]).squeeze(1) - total).view_as(self.done)  # (B, N)
        if self.processors.force(self.rows.ids):
            log_probs = torch.zeros_like(log_probs)
        tokens = drawn.view_as(self.done).masked_fill(self.done, self.pad)
        self.lengths[self.alive] += ~self.done
        self.log_probs[self.alive] += log_probs.masked_fill(self.done, 0.0)
        self.rows.append(tokens.flatten())
        length = self.rows.ids.shape[1]
        self.ids[self.alive, :, length - 1] = tokens
        self.done = self.done | torch.isin(tokens, self.end) | (length - self.prompt >= self.most[self.alive])[:, None]
        if self.criteria:
            self.done = self.done | self.criteria(self.rows.ids, None).view_as(self.done)
        self.leave()

    def processed(self, logits: torch.Tensor) -> torch.Tensor:
        """What is drawn from: logits (B*N, V) without ends that would come too early, after the caller's processors."""
        if not self.processors and self.least is None:
            return logits
        values = logits.clone()
        if self.least is not None:  # first: truncation must leave something else than an end
            early = self.rows.ids.shape[1] - self.prompt < self.least[self.alive] - 1  # (B)
            values[early.repeat_interleave(self.rows.candidates).nonzero(), self.end] = NEVER
        values = self.processors(self.rows.ids, values, self.alive)
        dead = ((values.amax(1) == NEVER).view_as(self.done) & ~self.done).any(1).nonzero().flatten().tolist()
        if dead:
            raise SourceError(int(self.alive[dead[0]]), f"has no possible output: {FORBIDDEN}")
        return values

    def leave(self) -> None:
        """Let the sources go all of whose targets are done."""
        stays = ~self.done.all(1)  # (B)
        if not stays.any():
            self.alive = self.alive[:0]
        elif not stays.all() and self.rows.can_leave:
            order = self.rows.compact(stays)
            self.alive, self.done = self.alive[order], self.done[order]
