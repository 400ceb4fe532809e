"""Sampling (arXiv 1904.09751): several targets of each source drawn at random; a source leaves when all of its own are done.

    model.generate(**inputs, do_sample=True, num_return_sequences=8, top_p=0.9, custom_generate=transduct.decoding.sample)

Temperature, top-k, nucleus, typical and epsilon sampling are transformers' own processors, chosen by generate's arguments. The
draws of a source do not depend on the other sources of its batch if each is given a `seed`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation.utils import GenerateEncoderDecoderOutput

from transduct.decoding.ensemble import Mean, make_rows
from transduct.decoding.processors import RowProcessors
from transduct.decoding.rows import Rows
from transduct.decoding.search import check_options, limits_and_criteria, padding


def sample(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    seeds: list[int] | None = None,
    ensemble: Sequence[Any] = (),
    ensemble_mean: Mean = "probability",
    inputs_tensor: torch.Tensor | None = None,
    synced_gpus: bool = False,
    **model_kwargs: Any,
) -> torch.Tensor | GenerateEncoderDecoderOutput:
    """Draw targets, as `model.generate(custom_generate=sample, do_sample=True, ...)`.

    Args:
        seeds: one number a source, which fixes its draws whatever else is in the batch; None: torch's global generator.
        ensemble, ensemble_mean: further models, see `ensemble.py`. inputs_tensor: the source, which `generate` passes itself.

    Returns:
        What `generate` returns: ids (sources * num_return_sequences, longest).

    Raises:
        ValueError: for an option that it cannot honour, or seeds of another number than sources.
    """
    check_options("sample", generation_config, synced_gpus, sampling=True)
    candidates = max(1, generation_config.num_return_sequences)
    rows = make_rows(model, input_ids, candidates, generation_config, model_kwargs, ensemble, ensemble_mean, inputs_tensor)
    draw = Draws(seeds, rows.sources, candidates, input_ids.device)
    limits, criteria = limits_and_criteria(stopping_criteria, rows.sources, input_ids.shape[1])
    ends = generation_config._eos_token_tensor
    processors = RowProcessors(logits_processor, rows.sources, candidates)
    with torch.no_grad():
        ids = _draw_all(rows, processors, criteria, limits.clamp(min=1), draw, ends, padding(generation_config))
    return GenerateEncoderDecoderOutput(sequences=ids) if generation_config.return_dict_in_generate else ids


class Draws:
    """Random tokens, from one generator a source where there are seeds."""

    def __init__(self, seeds: list[int] | None, sources: int, candidates: int, device: torch.device):
        if seeds is not None and len(seeds) != sources:
            raise ValueError(f"seeds holds {len(seeds)} numbers, but there are {sources} sources; it needs one each")
        self.candidates = candidates
        self.generators = None if seeds is None else [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def __call__(self, probabilities: torch.Tensor, alive: torch.Tensor) -> torch.Tensor:
        """One token (B*N) for each row of `probabilities` (B*N, V) of the sources numbered `alive` (B)."""
        if self.generators is None:
            return torch.multinomial(probabilities, 1).squeeze(1)
        own = zip(probabilities.split(self.candidates), alive.tolist(), strict=True)
        return torch.cat([torch.multinomial(part, 1, generator=self.generators[number]).squeeze(1) for part, number in own])


def _draw_all(rows: Rows, processors: RowProcessors, criteria, limits, draw: Draws, ends, pad: int) -> torch.Tensor:
    """Ids (sources * N, longest) of all sources."""
    candidates, prompt, device = rows.candidates, rows.ids.shape[1], rows.ids.device
    sources = rows.sources
    out = rows.ids.new_full((sources, candidates, prompt + int(limits.max())), pad)
    alive, limits = torch.arange(sources, device=device), limits.to(device)
    done = torch.zeros(len(rows.ids), dtype=torch.bool, device=device)  # (B*N)
    longest = prompt
    while len(alive):
        logits = rows.logits()  # (B*N, V)
        if processors:
            logits = processors(rows.ids, logits, alive)
        tokens = draw(logits.softmax(-1), alive).masked_fill(done, pad)  # (B*N)
        rows.append(tokens)
        longest = rows.ids.shape[1]
        out[alive, :, :longest] = rows.ids.view(-1, candidates, longest)
        if ends is not None:
            done = done | torch.isin(tokens, ends.to(device))
        done = done | (longest - prompt >= limits[alive]).repeat_interleave(candidates)
        if criteria:
            done = done | criteria(rows.ids, None)
        stays = ~done.view(-1, candidates).all(1)  # (B)
        if not stays.any():
            break
        if not stays.all() and rows.can_leave:
            order = rows.compact(stays)
            alive, done = alive[order], done.view(-1, candidates)[order].flatten()
    return out[:, :, :longest].flatten(0, 1)
