"""Texts in, texts out by `transformers.pipeline`: the tasks that version 5 took away, with the calls and results of version 4.

`import transduct` makes them known again (`pipeline_tasks.py`), for every `AutoModelForSeq2SeqLM` that reads text. They are
built on transformers' own `Pipeline`: batches, data sets, generators, devices and `generate`'s arguments are as everywhere else.

An argument of `generate` has the value that the call names, else the pipeline, else the config's settings of the task
(`task_specific_params`, of an imported model too), else the generation config, else 4 beams and 256 tokens.

What differs from version 4, where that did less than it said:
- languages act wherever the tokenizer or the config knows any, see `decoding/languages.py`; unknown ones are refused;
- `stop_sequence` stops at the whole of it, and the end token still ends an output;
- `return_text` is heeded; the summariser warns of short inputs only where somebody chose a length.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig, Pipeline
from transformers.utils import ModelOutput, logging

from transduct.decoding.languages import Direction, direction, setting, target_codes
from transduct.decoding.models import check_model, source_positions
from transduct.decoding.texts import check_text
from transduct.pipeline_tasks import languages_of_task
from transduct.tokenization import TransductTokenizer
from transduct.training.checks import check_count

logger = logging.get_logger(__name__)


class Text2TextGenerationPipeline(Pipeline):
    """What an encoder-decoder makes of texts: `pipeline("text2text-generation", model=...)`.

    Raises:
        ValueError: for a model that does not turn texts into texts.
    """

    return_name = "generated"
    _pipeline_calls_generate = True
    _load_processor = False
    _load_image_processor = False
    _load_video_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True
    _default_generation_config = GenerationConfig(max_new_tokens=256, num_beams=4)

    def __init__(self, model: Any, *args: Any, assistant_model: Any = None, **kwargs: Any):
        check_model(model)
        if isinstance(assistant_model, str):  # by itself transformers finds models of its own alone
            kwargs.setdefault("assistant_tokenizer", AutoTokenizer.from_pretrained(assistant_model))
            assistant_model = AutoModelForSeq2SeqLM.from_pretrained(assistant_model, dtype=model.dtype).to(model.device)
        for config in (each.config for each in (model, assistant_model) if assistant_model is not None):
            if not hasattr(config, "bos_token_id"):  # T5's; transformers compares those of both
                config.bos_token_id = None
        super().__init__(model, *args, assistant_model=assistant_model, **kwargs)

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Write a text for each text.

        Args:
            inputs: a text, a list of texts or a column of a data set; or a generator or `KeyDataset`, for an iterator of results.
            prefix: text before each input; as the config says if not given.
            truncation: of the tokenizer, True to cut texts that are too long.
            return_tensors, return_text: give the ids, the text (if neither is named) or both.
            clean_up_tokenization_spaces: of the tokenizer's `decode`.
            stop_sequence: a text or several; an output ends behind the first one that it writes.
            kwargs: arguments of `generate`, and `batch_size` and `num_workers`.

        Returns:
            For a text a list with a dict for each of `num_return_sequences` outputs. For a list of texts a list of such lists, or
            of dicts where each has one output. The keys are `generated_text` and `generated_token_ids`; other tasks say
            `summary_` or `translation_`.

        Raises:
            ValueError: for what is no text, has no tokens, or has more than the model has positions.
        """
        if isinstance(inputs, Sequence) and not isinstance(inputs, (str, list)):
            inputs = list(inputs)
        if isinstance(inputs, list) and not inputs:
            return []
        found = super().__call__(inputs, *args, **kwargs)
        if isinstance(inputs, list) and all(len(records) == 1 for records in found):
            return [records[0] for records in found]
        return found

    def _sanitize_parameters(
        self,
        return_tensors: bool | None = None,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        prefix: str | None = None,
        truncation: Any = None,
        stop_sequence: str | Sequence[str] | None = None,
        **generation: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        before = {"prefix": prefix, "truncation": truncation}
        after = {
            "return_tensors": return_tensors,
            "return_text": return_text,
            "clean_up_tokenization_spaces": clean_up_tokenization_spaces,
        }
        if stop_sequence is not None:
            generation["stop_strings"] = [stop_sequence] if isinstance(stop_sequence, str) else list(stop_sequence)
        if self.assistant_model is not None:
            generation["assistant_model"] = self.assistant_model
        if self.assistant_tokenizer is not None:
            generation |= {"tokenizer": self.tokenizer, "assistant_tokenizer": self.assistant_tokenizer}
        return _given(before), generation, _given(after)

    def direction(self) -> Direction:
        """What stands before the inputs, and what the config has for the task."""
        settings = dict((setting(self.model.config, "task_specific_params") or {}).get(self.task, {}))
        prefix = settings.pop("prefix", None)
        return Direction(setting(self.model.config, "prefix") or "" if prefix is None else prefix, task=settings)

    def preprocess(self, text: Any, prefix: str | None = None, truncation: Any = False, **languages: Any) -> dict[str, Any]:
        """The ids and the mask of a text, each (1, S)."""
        check_text(text, _shown(text) if isinstance(text, str) else "an input of the pipeline")
        found = self.direction(**languages)
        prefix = found.prefix if prefix is None else prefix
        check_text(prefix, f"prefix={prefix!r}")
        written = prefix + text
        with found.applied(self.tokenizer):
            inputs = self.tokenizer(written, truncation=truncation, return_tensors="pt")
        self._check_length(inputs["input_ids"].shape[1], text)
        inputs.pop("token_type_ids", None)
        return dict(inputs)

    def _check_length(self, tokens: int, text: str) -> None:
        most = source_positions(self.model)
        if most is not None and tokens > most:
            raise ValueError(
                f"{_shown(text)} has {tokens} tokens, more than the {most} positions of the model: truncation=True cuts"
            )
        if not tokens:
            raise ValueError(f"{_shown(text)} has no tokens: this tokenizer needs at least one character")

    def _forward(self, inputs: dict[str, torch.Tensor], **called: Any) -> dict[str, torch.Tensor]:
        """The ids of the outputs (B, outputs of each, T)."""
        languages = {name: called.pop(name) for name in ("src_lang", "tgt_lang") if name in called}
        said, required = self._said(called, self.direction(**languages))
        chosen = self._get_set_generation_params(said)
        for name in ("num_beams", "num_return_sequences"):
            if chosen.get(name) is not None:
                check_count(chosen[name], name, 1)
        self._check_lengths(inputs["input_ids"].shape[1], chosen)
        if chosen.get("stop_strings") is not None:
            said["tokenizer"] = self.tokenizer
        with getattr(self.tokenizer, "as_target", nullcontext)():  # stop strings are the target's
            output = self.model.generate(**inputs, **self._prepare_generate_kwargs(said, **required))
        ids = output.sequences if isinstance(output, ModelOutput) else output  # (B*R, T)
        rows = inputs["input_ids"].shape[0]
        return {"output_ids": ids.reshape(rows, ids.shape[0] // rows, -1)}

    def _said(self, called: dict[str, Any], found: Direction) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arguments of `generate` that somebody chose, and those of languages. A whole config replaces the others."""
        said = called if "generation_config" in called else {**self._generate_kwargs, **called}
        required = {name: value for name, value in found.generation.items() if name not in said}
        if "generation_config" in said:
            return said, required
        of_task = {name: value for name, value in found.task.items() if name != "max_length" or "max_new_tokens" not in said}
        return {**of_task, **said}, required

    def _check_lengths(self, tokens: int, chosen: dict[str, Any]) -> None:
        most = next((chosen[name] for name in ("max_new_tokens", "max_length") if chosen.get(name) is not None), None)
        self.check_inputs(tokens, chosen.get("min_new_tokens") or chosen.get("min_length") or 0, most)

    def check_inputs(self, input_length: int, min_length: int, max_length: int | None) -> bool:
        """Whether lengths suit each other, in tokens; a warning says what does not. None: nobody chose one."""
        return True

    def postprocess(
        self,
        outputs: dict[str, torch.Tensor],
        return_tensors: bool = False,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool = False,
    ) -> list[dict[str, Any]]:
        """A dict for each output of a text, best first."""
        with_text = not return_tensors if return_text is None else return_text
        if not with_text and not return_tensors:
            raise ValueError("return_text=False leaves nothing to return: add return_tensors=True")
        records = []
        for ids in outputs["output_ids"][0]:
            record: dict[str, Any] = {f"{self.return_name}_token_ids": ids} if return_tensors else {}
            if with_text:
                record[f"{self.return_name}_text"] = self.tokenizer.decode(
                    ids, skip_special_tokens=True, clean_up_tokenization_spaces=clean_up_tokenization_spaces
                )
            records.append(record)
        return records


class SummarizationPipeline(Text2TextGenerationPipeline):
    """Summaries of documents: `pipeline("summarization", model=...)`; the keys are `summary_text` and `summary_token_ids`."""

    return_name = "summary"

    def check_inputs(self, input_length: int, min_length: int, max_length: int | None) -> bool:
        if max_length is None:
            return True
        if max_length < min_length:
            logger.warning(f"min_length={min_length} should not exceed max_length={max_length}: no summary can have both")
        if input_length < max_length:
            logger.warning(
                f"max_length={max_length} lets a summary be longer than its input of {input_length} tokens; a smaller one, such "
                f"as max_length={max(1, input_length // 2)}, may be meant"
            )
        return min_length <= max_length <= input_length


class TranslationPipeline(Text2TextGenerationPipeline):
    """Translations: `pipeline("translation", model=..., src_lang=..., tgt_lang=...)`, or the task "translation_en_to_de".

    The pipeline or a call names languages as the tokenizer or the config has them; see `decoding/languages.py`. The keys are
    `translation_text` and `translation_token_ids`.
    """

    return_name = "translation"

    def _sanitize_parameters(  # type: ignore[override]  # by name alone, as in transformers
        self, src_lang: str | None = None, tgt_lang: str | None = None, **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        before, generation, after = super()._sanitize_parameters(**kwargs)
        languages = _given({"src_lang": src_lang, "tgt_lang": tgt_lang})
        return {**before, **languages}, {**generation, **languages}, after

    def direction(self, src_lang: str | None = None, tgt_lang: str | None = None) -> Direction:
        """What languages make of inputs and outputs: those that are named, else those of the task's name."""
        tasks = setting(self.model.config, "task_specific_params") or {}
        if src_lang is None and tgt_lang is None:
            return self._of_name(languages_of_task(self.task), tasks)
        pairs = any(name.startswith("translation_") for name in tasks)
        if hasattr(self.tokenizer, "tgt_lang") or target_codes(self.tokenizer) or pairs:
            return direction(self.model, self.tokenizer, src_lang, tgt_lang)
        logger.warning_once(f"src_lang={src_lang!r}, tgt_lang={tgt_lang!r} do nothing: this model knows one pair of languages")
        return direction(self.model, self.tokenizer)

    def _of_name(self, pair: tuple[str, str] | None, tasks: dict[str, Any]) -> Direction:
        """As the name of the task says, which of a model of one pair of languages does not say anything."""
        if self.task in tasks:
            return direction(self.model, self.tokenizer, task=self.task)
        if pair is not None and hasattr(self.tokenizer, "tgt_lang"):
            return direction(self.model, self.tokenizer, *pair)
        codes = target_codes(self.tokenizer)
        if pair is not None and (pair[1] in codes or (codes and isinstance(self.tokenizer, TransductTokenizer))):
            return direction(self.model, self.tokenizer, tgt_lang=pair[1])
        return direction(self.model, self.tokenizer)

    def check_inputs(self, input_length: int, min_length: int, max_length: int | None) -> bool:
        most = self._default_generation_config.max_new_tokens if max_length is None else max_length
        if input_length > 0.9 * most:
            logger.warning(f"an input of {input_length} tokens may need a translation of more than max_length={most}: raise it")
        return input_length <= 0.9 * most


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _shown(text: str) -> str:
    return f"the text {text!r}" if len(text) <= 40 else f"the text {text[:40]!r}..."
