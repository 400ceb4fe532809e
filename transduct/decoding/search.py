"""The searches as `generate` calls them: `model.generate(**inputs, custom_generate=transduct.decoding.beam_search, ...)`."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from transformers import EosTokenCriteria, GenerationConfig, LogitsProcessorList, MaxLengthCriteria, StoppingCriteriaList
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput, GenerateEncoderDecoderOutput

from transduct.decoding.beam import NEVER, BeamOptions, BeamSearch, Hypotheses, Observer, Stopping
from transduct.decoding.constraints import ConstrainedBeamSearch, Phrase, Phrases
from transduct.decoding.coverage import Coverage
from transduct.decoding.cross_attention import attention_weights
from transduct.decoding.diverse import DiverseBeamSearch
from transduct.decoding.ensemble import Mean, make_rows
from transduct.decoding.normalization import Normalization, Scoring
from transduct.decoding.prefixes import ForcedPrefixes
from transduct.decoding.processors import RowProcessors
from transduct.decoding.rows import Rows
from transduct.decoding.source_error import SourceError
from transduct.decoding.tries import InTrie
from transduct.generation import SourceLengthCriteria
from transduct.training.checks import check_number

STOPPING: dict[Any, Stopping] = {False: "heuristic", True: "first", "never": "exact"}
"""transformers' `early_stopping`: by the current length's score, at the first N hypotheses, or when nothing can improve."""
IGNORED = (
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",  # of each step; those of hypotheses are always told
    "prompt_lookup_num_tokens",
    "penalty_alpha",
    "dola_layers",
    "constraints",
    "force_words_ids",
    "low_memory",
    "token_healing",
)
"""Options of `generate` that a search here cannot honour."""

FORBIDDEN = "logits processors (prefixes, tries, forbidden words) forbid every continuation"
"""Why a source has no output."""


@dataclass
class SearchOutput(GenerateEncoderDecoderOutput):
    """Ids as `sequences`, and for each row:

    Args:
        lengths: (rows), generated tokens, the end included; log_probs: (rows), what the model thinks of them, summed.
    """

    lengths: torch.Tensor | None = None
    log_probs: torch.Tensor | None = None


@dataclass
class BeamSearchOutput(GenerateBeamEncoderDecoderOutput):
    """As transformers' output, with `sequences` and `sequences_scores`, and for each hypothesis:

    Args:
        lengths: (rows), generated tokens, the end included; log_probs: (rows), their sums, not normalised.
    """

    lengths: torch.Tensor | None = None
    log_probs: torch.Tensor | None = None


def beam_search(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    length_normalization: Normalization = "hf",
    length_offset: float = 0.0,
    word_reward: float = 0.0,
    coverage_penalty: float = 0.0,
    coverage_layer: int = -1,
    max_length_by_source: tuple[float, float] | None = None,
    min_length_by_source: tuple[float, float] | None = None,
    phrases: Sequence[Sequence[Phrase]] | None = None,
    ordered_phrases: bool = False,
    beam_groups: int = 1,
    diversity_penalty: float = 0.0,
    ensemble: Sequence[Any] = (),
    ensemble_mean: Mean = "probability",
    observer: Observer | None = None,
    inputs_tensor: torch.Tensor | None = None,
    synced_gpus: bool = False,
    **model_kwargs: Any,
) -> torch.Tensor | BeamSearchOutput:
    """Beam search as `model.generate(custom_generate=beam_search, ...)`; `num_beams=1` is greedy search.

    Args:
        length_normalization, length_offset, word_reward: see `normalization.py`; the exponent is generate's `length_penalty`.
        coverage_penalty, coverage_layer: see `coverage.py`.
        max_length_by_source, min_length_by_source: see `length_limits`.
        phrases, ordered_phrases: what the targets of each source must contain, see `constraints.py`.
        beam_groups, diversity_penalty: see `diverse.py`.
        ensemble, ensemble_mean: further models, see `ensemble.py`. inputs_tensor: the source, which `generate` passes itself.
        observer: is called with a `SearchStep` after each step; of searches without phrases and groups alone.

    Returns:
        What `generate` returns: ids (sources * num_return_sequences, longest), or an output with `sequences_scores` and more.

    Raises:
        ValueError: for an option that it cannot honour, and for options that leave a source no output.
    """
    check_options("beam_search", generation_config, synced_gpus)
    beams = generation_config.num_beams
    scoring = Scoring(length_normalization, generation_config.length_penalty, length_offset, word_reward)
    rows = make_rows(model, input_ids, beams, generation_config, model_kwargs, ensemble, ensemble_mean, inputs_tensor)
    most, least, own = length_limits(
        rows,
        logits_processor,
        stopping_criteria,
        generation_config,
        model_kwargs,
        max_length_by_source,
        min_length_by_source,
    )
    if coverage_penalty:
        rows.coverage = Coverage(coverage_penalty, coverage_layer, rows)
    options = BeamOptions(
        beams=beams,
        wanted=generation_config.num_return_sequences,
        scoring=scoring,
        stopping="first" if beams == 1 else STOPPING[generation_config.early_stopping],
        end=end_tokens(generation_config, most.device),
        pad=padding(generation_config) if beams == 1 else beam_padding(generation_config),
        most=most,
        least=least,
        observer=observer,
        scored=beams > 1 or observer is not None or generation_config.return_dict_in_generate,
    )
    with torch.no_grad(), attention_weights(model) if coverage_penalty else nullcontext():
        found = _search(rows, logits_processor, own, options, phrases, ordered_phrases, beam_groups, diversity_penalty)
    without = (found.scores[:, 0] == NEVER).nonzero().flatten().tolist()
    if without:
        raise SourceError(without[0], f"has no possible output: {_contradiction(phrases)}")
    wanted = options.wanted
    lengths = found.lengths[:, :wanted].max()
    ids = found.ids[:, :wanted, : input_ids.shape[1] + int(lengths)].flatten(0, 1)
    if not generation_config.return_dict_in_generate:
        return ids
    scores, lengths, log_probs = (each[:, :wanted].flatten() for each in (found.scores, found.lengths, found.log_probs))
    return BeamSearchOutput(sequences=ids, sequences_scores=scores, lengths=lengths, log_probs=log_probs)


def _contradiction(phrases: Any) -> str:
    if phrases is None:
        return FORBIDDEN
    return "none contains all its phrases, because other options (prefixes, tries, forbidden words) forbid their tokens"


def _search(
    rows: Rows, processors: Any, criteria: Any, options: BeamOptions, phrases: Any, ordered: bool, groups: int, penalty: float
) -> Hypotheses:
    """Run the search that the options ask for.

    Raises:
        ValueError: for options that do not go together.
    """
    own = RowProcessors(processors, rows.sources, options.beams)
    if rows.coverage is not None and groups > 1:
        raise ValueError(f"coverage_penalty and beam_groups={groups} exclude each other")
    if options.observer is not None and (phrases is not None or groups > 1):
        raise ValueError("observer is shown plain beam search alone: leave out phrases and beam_groups")
    if phrases is not None:
        if groups > 1:
            raise ValueError(f"phrases and beam_groups={groups} exclude each other")
        if len(phrases) != rows.sources:
            raise ValueError(f"phrases has {len(phrases)} lists, but there are {rows.sources} sources; it needs one each")
        return ConstrainedBeamSearch(rows, own, criteria, options, Phrases(phrases, ordered, rows.ids.device)).run()
    if ordered:
        raise ValueError("ordered_phrases=True belongs to phrases")
    if groups == 1:
        if penalty:
            raise ValueError(f"diversity_penalty={penalty} acts between groups: set beam_groups to 2 or more")
        return BeamSearch(rows, own, criteria, options).run()
    return DiverseBeamSearch(rows, own, criteria, options, groups, penalty).run()


def check_options(search: str, config: GenerationConfig, synced_gpus: bool, sampling: bool = False) -> None:
    """Refuse what would be ignored.

    Raises:
        ValueError: naming the option.
    """
    wrong = {name: getattr(config, name, None) for name in IGNORED}
    wrong |= {"synced_gpus": synced_gpus} | ({} if sampling else {"do_sample": config.do_sample})
    for name, value in wrong.items():
        if value:
            raise ValueError(f"{name}={value!r} cannot be had with {search}; leave it out, or custom_generate")
    if sampling and (config.num_beams > 1 or not config.do_sample):
        raise ValueError(f"{search} needs do_sample=True and num_beams=1, not {config.do_sample!r} and {config.num_beams}")
    if (getattr(config, "num_beam_groups", None) or 1) > 1:
        raise ValueError(f"num_beam_groups={config.num_beam_groups} cannot be had with {search}: beam_search has beam_groups")
    if config.num_beams < 1:
        raise ValueError(f"num_beams={config.num_beams} must be at least 1, which is greedy search")
    if config.num_return_sequences < 1:
        raise ValueError(f"num_return_sequences={config.num_return_sequences} must be at least 1")
    if config.early_stopping not in STOPPING:
        raise ValueError(f"early_stopping={config.early_stopping!r} must be False, True or 'never'")


def padding(config: GenerationConfig) -> int:
    """What follows the end of a shorter output."""
    return 0 if config._pad_token_tensor is None else int(config._pad_token_tensor)


def beam_padding(config: GenerationConfig) -> int:
    """The same as transformers' beam search fills it: the end token where the padding token is 0."""
    return padding(config) or next(iter(end_tokens(config, "cpu").tolist()), 0)


def end_tokens(config: GenerationConfig, device: torch.device | str) -> torch.Tensor:
    """The ids (E) of the tokens that end an output, maybe none."""
    end = config._eos_token_tensor
    return torch.empty(0, dtype=torch.long, device=device) if end is None else end.to(device)


def length_limits(
    rows: Rows,
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    config: GenerationConfig,
    arguments: dict[str, Any],
    most_by_source: tuple[float, float] | None = None,
    least_by_source: tuple[float, float] | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, StoppingCriteriaList]:
    """How long the targets of each source may be.

    Args:
        processors, criteria, config, arguments: what `generate` made for the search and the model.
        most_by_source: (a, b): at most `a * S + b` tokens for a source of S tokens; (1, 50) is the paper's.
        least_by_source: the same for the least.

    Returns:
        The most tokens (sources) that may be generated, the least, None: any, and the criteria that are neither limit nor end.

    Raises:
        ValueError: for lengths, or prefixes and a length, that contradict each other.
    """
    prompt = rows.ids.shape[1]
    limits, own = _limits_and_criteria(criteria, rows.sources, prompt)
    most, least = (
        None if ratio is None else length_by_source(name, ratio, source_lengths(name, arguments, rows.sources))
        for name, ratio in (("max_length_by_source", most_by_source), ("min_length_by_source", least_by_source))
    )
    limits = limits.to(rows.ids.device)
    limits = (limits if most is None else torch.minimum(limits, most.to(limits.device))).clamp(min=1)
    check_lengths(limits, least, config, prompt)
    for processor in processors:
        if isinstance(processor, (ForcedPrefixes, InTrie)):
            processor.check_room(limits, prompt)
    return limits, None if least is None else least.to(limits.device), own


def _limits_and_criteria(criteria: StoppingCriteriaList, sources: int, prompt: int) -> tuple[torch.Tensor, StoppingCriteriaList]:
    """The most tokens (sources) that may be generated, and the criteria that are neither a limit nor an end token."""
    limits: list[Any] = []
    own = StoppingCriteriaList()
    for criterion in criteria:
        if isinstance(criterion, MaxLengthCriteria):
            limits.append(torch.full((sources,), criterion.max_length - prompt))
        elif isinstance(criterion, SourceLengthCriteria):
            limits.append(criterion.limits - prompt)
        elif not isinstance(criterion, EosTokenCriteria):
            own.append(criterion)
    return torch.stack([limit.to(limits[0].device) for limit in limits]).amin(0), own


def check_lengths(limits: torch.Tensor, least: torch.Tensor | None, config: GenerationConfig, prompt: int) -> None:
    """Refuse lengths that contradict each other, given the most and the least tokens (sources) that may be generated.

    Raises:
        ValueError: naming a source.
    """
    asked = max((config.min_length or 0) - prompt, config.min_new_tokens or 0)
    least = torch.full_like(limits, asked) if least is None else least.to(limits.device).clamp(min=asked)
    wrong = (least > limits).nonzero().flatten().tolist()
    if wrong:
        raise SourceError(
            wrong[0],
            f"may have at most {int(limits[wrong[0]])} tokens, but {int(least[wrong[0]])} are asked for at least: change "
            "min_length, min_new_tokens or min_length_by_source, or what limits the most",
        )


def source_lengths(name: str, arguments: dict[str, Any], sources: int) -> torch.Tensor:
    """Tokens (sources) of each source, from what `generate` made for the model; `name` is the option that needs them."""
    if "encoder_outputs" not in arguments:
        raise ValueError(f"{name} needs a model that reads a source; this one has a decoder alone")
    mask, states = arguments.get("attention_mask"), arguments["encoder_outputs"][0]  # (rows, S), (rows, S, D)
    every = states.shape[0] // sources  # rows that are repeated for each candidate
    if mask is None:
        return torch.full((sources,), states.shape[1], device=states.device)
    return mask[::every].sum(1)


def length_by_source(name: str, ratio: tuple[float, float], lengths: torch.Tensor) -> torch.Tensor:
    """`a * S + b` tokens (sources), rounded down."""
    check_ratio(name, ratio)
    return (ratio[0] * lengths + ratio[1]).floor().long()


def check_ratio(name: str, ratio: Any) -> None:
    """Raises ValueError for a limit by source that is not two finite numbers, or would fall as sources grow."""
    if not isinstance(ratio, Sequence) or isinstance(ratio, str) or len(ratio) != 2:
        raise ValueError(f"{name}={ratio!r} must be two numbers (a, b), for a * source length + b tokens")
    for number in ratio:
        check_number(number, name)
    if ratio[0] < 0:
        raise ValueError(f"{name}={ratio!r}: a of a * source length + b tokens must be at least 0")
