"""Tokenizer and settings of generation: whether they belong to the model."""

from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from transduct.convert.checkpoint import read_json
from transduct.convert.memory import quiet
from transduct.convert.tokenizers import check_vocabulary, load_tokenizer
from transduct.doctor.findings import Findings

GENERATION = "generation_config.json"
TOKEN_FIELDS = (
    "decoder_start_token_id", "bos_token_id", "eos_token_id", "pad_token_id", "forced_bos_token_id", "forced_eos_token_id",
    "suppress_tokens", "begin_suppress_tokens", "bad_words_ids",
)  # fmt: skip
USUAL_LENGTH = 20
"""What transformers writes as `max_length` where nobody has chosen one."""


def examine_tokenizer(folder: Path, config: Any, findings: Findings) -> Any:
    """The tokenizer of a folder, or None; each of its ids must have an embedding, and special ones mean the same."""
    tokenizer = None
    with findings.problems_of("tokenizer"), quiet():
        tokenizer = load_tokenizer(folder)
        if tokenizer is None:
            text = "there is none, so the model takes ids only: save it into the folder with save_pretrained"
            findings.note("tokenizer", text)
            return None
        rows, target_rows = config.vocab_size, config.resolved_decoder_vocab_size
        check_vocabulary(tokenizer, folder, rows, target_rows)
        ids = 1 + max(tokenizer.get_vocab().values(), default=-1)
        findings.ok("tokenizer", f"{type(tokenizer).__name__} with {ids:,} ids for {rows:,} embeddings", ids)
        if getattr(tokenizer, "separate_vocabularies", False):
            _examine_target(tokenizer, target_rows, findings)
        _compare_special_ids(tokenizer, config, findings)
    return tokenizer


def _examine_target(tokenizer: Any, rows: int, findings: Findings) -> None:
    """The same of the target's own vocabulary."""
    with tokenizer.as_target():
        ids = 1 + max(tokenizer.get_vocab().values(), default=-1)
    if ids > rows:
        findings.problem(
            "tokenizer", f"has {ids:,} ids of the target, but the decoder {rows:,} embeddings: they do not belong together"
        )
    else:
        findings.ok("tokenizer", f"{ids:,} ids of the target for {rows:,} embeddings", ids)


def _compare_special_ids(tokenizer: Any, config: Any, findings: Findings) -> None:
    """Padding and end must have one id in tokenizer and config."""
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    for name, known in (("pad_token_id", [config.pad_token_id]), ("eos_token_id", ends)):
        theirs = getattr(tokenizer, name)
        if theirs is not None and theirs not in known:
            ours = getattr(config, name)
            findings.problem(name, f"is {theirs} in the tokenizer, but {ours} in config.json: texts would not end where they end")


def examine_generation(folder: Path, config: Any, findings: Findings) -> None:
    """The settings that `generate` takes from the folder."""
    path = folder / GENERATION
    if not path.is_file():
        findings.note(GENERATION, "there is none: generate goes by config.json")
        return
    with findings.problems_of(GENERATION):
        values = read_json(path)
        with quiet():
            generation = GenerationConfig.from_pretrained(folder, local_files_only=True)
        before = len(findings)
        _check_ids(generation, config, findings)
        _check_length(generation, config, findings)
        with findings.problems_of(GENERATION):
            generation.validate(strict=True)
        if len(findings) == before:
            chosen = sorted(set(values) - {"_from_model_config", "transformers_version"})
            findings.ok(GENERATION, f"sets {', '.join(chosen)}" if chosen else "sets nothing")


def _check_ids(generation: Any, config: Any, findings: Findings) -> None:
    """Ids must lie in the target's vocabulary, start and end must be known, and mean what config.json means."""
    rows = config.resolved_decoder_vocab_size
    for name in TOKEN_FIELDS:
        outside = [token for token in _flat(getattr(generation, name, None)) if not 0 <= token < rows]
        if outside:
            findings.problem(GENERATION, f"{name}={outside[0]} lies outside the vocabulary of {rows:,} tokens")
    if config.is_encoder_decoder and generation.decoder_start_token_id is None and generation.bos_token_id is None:
        findings.problem(GENERATION, "has no decoder_start_token_id, so generate does not know how to begin")
    if generation.eos_token_id is None:
        findings.problem(GENERATION, "has no eos_token_id, so outputs only end at their greatest length")
    for name in ("decoder_start_token_id", "eos_token_id", "pad_token_id"):
        ours, theirs = getattr(config, name), getattr(generation, name)
        if None not in (ours, theirs) and ours != theirs:
            findings.note(GENERATION, f"{name} is {theirs}, in config.json {ours}: generate goes by {theirs}")


def _check_length(generation: Any, config: Any, findings: Findings) -> None:
    """A greatest length that positions cannot reach, or that nobody has chosen."""
    length = generation.max_length
    most = config.resolved_decoder_max_positions
    if length is not None and config.positions == "learned" and length > most + 1:
        findings.problem(GENERATION, f"max_length={length} exceeds what {most} learned positions can decode: lower it")
    if length == USUAL_LENGTH:
        findings.note(GENERATION, f"max_length={length} cuts outputs after {length} tokens: remove it unless that is wanted")


def _flat(value: Any) -> list[int]:
    """The ids in a number, a list, or a list of lists."""
    if isinstance(value, (list, tuple)):
        return [token for part in value for token in _flat(part)]
    return [value] if isinstance(value, int) and not isinstance(value, bool) else []
