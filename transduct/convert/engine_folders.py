"""What exports to other engines share: the folder that is written, its card, and the comparison with our model.

Once a folder is written, the engine loads it and is asked the same as our model: the log-probabilities of given pairs, and the
answers of a beam search of 4. What differs stands in the output and in README.md of the folder. Weights in float32 must agree;
of rounded ones it is told how closely they do.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

import transduct
from transduct.configuration import TransductConfig
from transduct.convert.memory import quiet
from transduct.convert.verifying import ready
from transduct.convert.writing import new_folder
from transduct.decoding import beam_search
from transduct.decoding.forcing import forced, padded

TOLERANCE = 1e-4
"""Of a log-probability, or of the largest where that is over one."""
PAIRS = 8
LONGEST = 24
"""Tokens of the longest source and target that are compared."""
BEAMS = 4


@dataclass(frozen=True)
class Comparison:
    """How an engine agrees with our model.

    Args:
        pairs, tokens: how many were scored, the ends of targets included.
        largest, mean: differences of the log-probabilities of tokens; scale: the largest of these themselves.
        same, ties: answers of beam search that are identical; those that differ, but are equally good to our model.
        apart: the largest difference of our scores of two answers that differ.
    """

    pairs: int
    tokens: int
    largest: float
    mean: float
    scale: float
    same: int
    ties: int
    apart: float

    @property
    def agrees(self) -> bool:
        return self.largest <= TOLERANCE * max(1.0, self.scale) and self.same + self.ties == self.pairs

    def __str__(self) -> str:
        lines = [
            f"log-probabilities of {self.tokens} tokens of {self.pairs} random pairs: they differ by {self.largest:.1e} at most, "
            f"{self.mean:.1e} on average",
            f"beam-{BEAMS} ids: identical for {self.same} of {self.pairs} sources",
        ]
        lines += [f"{self.ties} more are ties: both answers are equally good to our model"] if self.ties else []
        if self.same + self.ties < self.pairs:
            lines.append(f"our scores of two answers that differ are up to {self.apart:.1e} apart")
        return "\n".join(lines)


@dataclass(frozen=True)
class Exported:
    """What was written, for people.

    Args:
        engine: "ctranslate2" or "onnx"; output: the folder; stored: how weights are stored; files: their names.
        checked: how closely the engine agrees with our model.
    """

    engine: str
    output: Path
    stored: str
    files: list[str]
    checked: Comparison


def write_engine_folder(
    engine: str,
    model: Any,
    tokenizer: Any,
    output: Path,
    stored: str,
    exact: bool,
    write: Callable[[Path], None],
    check: Callable[[Path], Comparison] | None = None,
) -> Exported:
    """Write a folder, and let it be there only if the engine agrees with our model.

    Args:
        stored: how weights are stored; exact: whether they are not rounded, so that the engine must agree.
        write: puts the engine's own files into a folder; check: compares what was written, None: as `compare` does.

    Raises:
        ValueError: if `output` holds something, and where the engine does not agree.
    """
    from transduct.decoding.engines import load_engine

    with new_folder(output) as part:
        write(part)
        with quiet():
            model.generation_config.save_pretrained(part)
            if tokenizer is not None:
                tokenizer.save_pretrained(part)
        checked = compare(model, load_engine(part, engine)) if check is None else check(part)
        if exact and not checked.agrees:
            raise ValueError(f"{engine} does not compute what our model does, so nothing was written: {checked}")
        (part / "README.md").write_text(_card(engine, stored, checked, model.main_input_name), encoding="utf-8")
    return Exported(engine, output, stored, _files(output), checked)


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def export_engine(source: str | Path, output: str | Path, engine: str, quantization: str | None = None) -> Exported:
    """Write a checkpoint of ours for another engine; see `to_ctranslate2` and `to_onnx`.

    Args:
        source: a folder or an id of the Hub; output: the folder to write; quantization: of CTranslate2 alone.

    Raises:
        ValueError: for a checkpoint that is not ours, and as those do.
    """
    from transduct.convert.folders import copy_notices, our_config
    from transduct.convert.sources import locate
    from transduct.convert.tokenizers import load_processor, load_tokenizer

    located = locate(source)
    config, our_class = our_config(located)
    with quiet():
        model = our_class.from_pretrained(located.path, config=config, local_files_only=True).eval()
    tokenizer = load_processor(located.path) if config.encoder_input == "features" else load_tokenizer(located.path)
    if engine == "ctranslate2":
        from transduct.convert.ctranslate2 import to_ctranslate2

        result = to_ctranslate2(model, tokenizer, output, quantization)
    else:
        from transduct.convert.onnx import to_onnx

        result = to_onnx(model, tokenizer, output)
    copy_notices(located.path, result.output)
    return replace(result, files=_files(result.output))


def write_config(model: Any, folder: Path, name: str) -> None:
    """Our config as JSON, under a name that no other program reads."""
    text = json.dumps(model.config.to_diff_dict(), indent=2, sort_keys=True) + "\n"
    (folder / name).write_text(text, encoding="utf-8")


def compare(model: Any, engine: Any, seed: int = 0) -> Comparison:
    """Ask both the same: random pairs that suit the vocabularies.

    Args:
        model: ours; half precision is compared in float32. engine: see `decoding/engines.py`.
    """
    with ready(model) as ours:
        sources, targets = sample(ours, seed)
        wanted = token_log_probs(ours, sources, targets)
        found = engine.token_log_probs(sources, targets)
        gaps = torch.tensor(
            [abs(a - b) for one, other in zip(wanted, found, strict=True) for a, b in zip(one, other, strict=True)]
        )
        answers = [_answers(each, sources) for each in (ours, engine)]
        differing = [row for row, (one, other) in enumerate(zip(*answers, strict=True)) if one != other]
        apart = [_gap(ours, sources[row], answers[0][row], answers[1][row]) for row in differing]
    return Comparison(
        pairs=len(sources),
        tokens=len(gaps),
        largest=float(gaps.max()) if gaps.isfinite().all() else float("inf"),
        mean=float(gaps.mean()),
        scale=max(abs(value) for row in wanted for value in row),
        same=len(sources) - len(differing),
        ties=sum(gap <= TOLERANCE for gap in apart),
        apart=max(apart, default=0.0),
    )


def sample(model: Any, seed: int) -> tuple[list[list[int]], list[list[int]]]:
    """Sources and targets without special tokens but their ends."""
    config, generator = model.config, torch.Generator().manual_seed(seed)
    learned = config.positions == "learned"
    limits = (config.max_positions, config.resolved_decoder_max_positions) if learned else (LONGEST, LONGEST)
    sides = []
    for size, limit in zip((config.vocab_size, config.resolved_decoder_vocab_size), limits, strict=True):
        special = {config.pad_token_id, config.bos_token_id, one_end(config), start_token(model)}
        ids = torch.tensor([token for token in range(size) if token not in special])
        lengths = torch.randint(1, max(2, min(LONGEST, limit)), (PAIRS,), generator=generator).tolist()
        end = one_end(config)
        ends = [end] if end is not None and end < size else []
        sides.append([ids[torch.randint(len(ids), (length,), generator=generator)].tolist() + ends for length in lengths])
    return sides[0], sides[1]


def token_log_probs(model: Any, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
    """What a model thinks of each token of given targets."""
    ids, mask = (each.to(model.device) for each in padded(sources, model.config.pad_token_id or 0))
    start = start_token(model)
    output, wanted, _ = forced(model, {"input_ids": ids, "attention_mask": mask}, targets, 0 if start is None else start)
    log_probs = output.logits.float().log_softmax(-1).gather(2, wanted[:, :, None]).squeeze(2)  # (B, T)
    return [row[: len(target)] for row, target in zip(log_probs.tolist(), targets, strict=True)]


def _answers(model: Any, sources: list[list[int]]) -> list[list[int]]:
    """The best answer to each source, as all engines search: until as many hypotheses are found as there are beams."""
    ids, mask = (each.to(model.device) for each in padded(sources, model.config.pad_token_id or 0))
    config, start = model.config, start_token(model)
    limit = config.resolved_decoder_max_positions if config.positions == "learned" else LONGEST
    with plain_generation(model), torch.no_grad():
        output = model.generate(
            input_ids=ids, attention_mask=mask, num_beams=BEAMS, max_new_tokens=min(LONGEST, limit), early_stopping=True,
            length_penalty=1.0, return_dict_in_generate=True, decoder_start_token_id=0 if start is None else start,
            custom_generate=beam_search,
        )  # fmt: skip
    return [row[1 : 1 + length] for row, length in zip(output.sequences.tolist(), output.lengths.tolist(), strict=True)]


def _gap(model: Any, source: list[int], one: list[int], other: list[int]) -> float:
    scores = [sum(token_log_probs(model, [source], [each])[0]) / len(each) for each in (one, other)]
    return abs(scores[0] - scores[1])


@contextmanager
def plain_generation(model: Any) -> Iterator[None]:
    """Inside, the model's generation config asks for nothing."""
    config, own = model.config, model.generation_config
    model.generation_config = GenerationConfig(pad_token_id=config.pad_token_id, eos_token_id=config.eos_token_id)
    try:
        yield
    finally:
        model.generation_config = own


def one_end(config: TransductConfig) -> int | None:
    """The token that ends a target, or None where there is none, or several do."""
    ends = config.eos_token_id
    if isinstance(ends, list):
        return ends[0] if len(ends) == 1 else None
    return ends


def start_token(model: Any) -> int | None:
    """The token that the decoder starts with, or None where each source has its own."""
    start = model.generation_config.decoder_start_token_id
    return model.config.decoder_start_token_id if start is None else start


USES = {
    "input_ids": "Translate lines with\n\n    transduct translate FOLDER --engine {engine} < in.txt > out.txt",
    "input_features": 'Load it with `ctranslate2.models.Whisper("FOLDER")`, or with programs that are built on it.',
}
"""What a folder is for, by what its model reads."""


def _card(engine: str, stored: str, checked: Comparison, reads: str) -> str:
    """README.md of the folder."""
    title = {"ctranslate2": "CTranslate2", "onnx": "ONNX Runtime"}[engine]
    report = "\n".join(f"- {line}" for line in str(checked).splitlines())
    return f"""---
library_name: transduct
tags: [{engine}]
---

# A transduct model for {title}

Written by transduct {transduct.__version__}; weights are stored as {stored}. {USES[reads].format(engine=engine)}

When it was written, it was compared with the model that it was made from (in float32):

{report}
"""
