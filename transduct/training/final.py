"""A finished model is saved; and what it is worth: loaded as anybody would, measured on the test set, and shown at work."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from rich.console import Console
from rich.progress import track
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from transduct.files import save_whole
from transduct.training.adapters import finished_model, is_adapted
from transduct.training.collators import Seq2SeqCollator
from transduct.training.encoding import PairEncoder
from transduct.training.metrics import METRICS
from transduct.training.recipe import EvaluationSection, SplitSource
from transduct.training.report import Sample


class SavedModel:
    """A model folder, loaded through the Auto classes, that turns texts into texts by beam search.

    Args:
        folder: of `save_pretrained`.
        device: where the model works.
        split: a part of the data whose prefix, tag and languages belong before the sources, or before the outputs.
        auto_class: what loads the model.
        max_source_tokens: where longer sources are cut; None: nowhere.
        trust_remote_code: run code that lies in the folder.
    """

    def __init__(
        self,
        folder: str | Path,
        device: torch.device | str = "cpu",
        split: SplitSource | None = None,
        auto_class: Any = AutoModelForSeq2SeqLM,
        max_source_tokens: int | None = None,
        trust_remote_code: bool = False,
    ):
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
        self.encoder = PairEncoder(self.tokenizer, split or SplitSource(), max_source_tokens, truncate="source")
        self.model = auto_class.from_pretrained(folder, trust_remote_code=trust_remote_code).to(device).eval()

    @torch.inference_mode()
    def outputs(self, texts: Sequence[str], options: EvaluationSection, console: Console) -> list[str]:
        """The best hypothesis for each text, in their order. Batches hold texts of like length."""
        collate = Seq2SeqCollator(self.tokenizer)
        sources = self.encoder.encode_sources(texts)
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        results = [""] * len(sources)
        tokens = {"forced_bos_token_id": self.encoder.first_target_token, "decoder_start_token_id": self.encoder.start_token}
        tokens = {name: token for name, token in tokens.items() if token is not None}
        starts = range(0, len(order), options.batch_size)
        for start in track(starts, "decoding", console=console, transient=True, disable=not console.is_terminal):
            rows = order[start : start + options.batch_size]
            batch = {
                name: tensor.to(self.model.device) for name, tensor in collate([{"input_ids": sources[i]} for i in rows]).items()
            }
            ids = self.model.generate(
                **batch, **tokens, num_beams=options.num_beams, length_penalty=options.length_penalty
            )  # (B, T)
            for i, text in zip(rows, self.tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True):
                results[i] = text.strip()
        return results


def measure(
    model: SavedModel, test: Dataset, options: EvaluationSection, console: Console
) -> tuple[dict[str, float], list[Sample]]:
    """The metrics of the recipe on a test set with the columns `source` and `targets`, and its first outputs, which it prints."""
    texts, references = test["source"], test["targets"]
    outputs = model.outputs(texts, options, console)
    samples = [Sample(*row) for row in islice(zip(texts, outputs, references, strict=True), options.samples)]
    for sample in samples:
        verdict = "right" if sample.equals_a_reference else f"not {' / '.join(sample.references)}"
        console.print(f"  {sample.source} -> {sample.output}  ({verdict})", highlight=False, markup=False, soft_wrap=True)
    return {name: METRICS[metric](outputs, references) for name, metric in options.metrics.items()}, samples


def signatures(metrics: Mapping[str, str], references: Sequence[Sequence[str]]) -> dict[str, str]:
    """How each metric counts on these references, as sacreBLEU writes it; none where there are no references.

    Args:
        metrics: names to show, and those of `METRICS`.
    """
    from transduct.decoding.measuring import measure as measure_with_signatures

    kinds = {len(accepted): accepted for accepted in references if any(text.strip() for text in accepted)}
    if not kinds:
        return {}
    outputs = [next(text for text in accepted if text.strip()) for accepted in kinds.values()]
    found = measure_with_signatures(outputs, list(kinds.values()), metrics, resamples=0)
    return {name: values["signature"] for name, values in found.items()}


def show(model: SavedModel, options: EvaluationSection, console: Console) -> list[Sample]:
    """What the model makes of the texts of `evaluation.inputs`, which is printed too."""
    samples = [Sample(*row) for row in zip(options.inputs, model.outputs(options.inputs, options, console), strict=True)]
    for sample in samples:
        console.print(f"  {sample.source} -> {sample.output}", highlight=False, markup=False, soft_wrap=True)
    return samples


def save_finished(trainer: Any, output: Path) -> None:
    """The trainer's model and tokenizer into `output/model`, for `from_pretrained`, and its adapter into `output/adapter`.

    All processes call it, since each of them may hold a piece of the weights; the main one writes. It returns when all is there.

    Raises:
        ValueError: for an adapter of a model in pieces, which cannot be merged into it; the adapter itself is written before.
    """
    accelerator = trainer.accelerator
    in_pieces = (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled) and len(accelerator._models) > 0
    weights = accelerator.get_state_dict(trainer.model_wrapped) if in_pieces else None
    if accelerator.is_main_process:
        model = accelerator.unwrap_model(trainer.model)
        if is_adapted(model):
            save_whole(output / "adapter", partial(model.save_pretrained, state_dict=weights))
            if in_pieces:
                raise ValueError(
                    f"the adapter is in {output / 'adapter'}: a model in pieces forbids merging, so use peft's merge_and_unload"
                )
        model = finished_model(model)
        save_whole(output / "model", partial(model.save_pretrained, state_dict=weights), trainer.processing_class.save_pretrained)
    accelerator.wait_for_everyone()
