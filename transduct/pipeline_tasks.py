"""The tasks "translation", "summarization" and "text2text-generation" of `transformers.pipeline`, which version 5 took away.

Their classes, in `pipelines.py`, load when a pipeline is made. What stands in transformers' registry is their name, as for
transformers' own classes; `register_pipeline` would want the classes themselves, and would have saved pipelines ask for trust in
remote code.
"""

from typing import Any

import transformers.pipelines
from transformers import AutoModelForSeq2SeqLM
from transformers.pipelines import PIPELINE_REGISTRY

T5 = {"model": ("google-t5/t5-base", "a9723ea")}
TASKS: dict[str, tuple[str, dict[Any, Any]]] = {
    "text2text-generation": ("Text2TextGenerationPipeline", T5),
    "summarization": ("SummarizationPipeline", {"model": ("sshleifer/distilbart-cnn-12-6", "a4f8f3e")}),
    "translation": ("TranslationPipeline", {("en", "fr"): T5, ("en", "de"): T5, ("en", "ro"): T5}),
}
"""For each task its class, and the model and revision that version 4 took where none is named."""


def languages_of_task(task: str) -> tuple[str, str] | None:
    """("en", "de") for "translation_en_to_de", None for what does not have this form."""
    parts = task.split("_")
    return (parts[1], parts[3]) if len(parts) == 4 and parts[0] == "translation" and parts[2] == "to" else None


def register_pipelines() -> None:
    """Make `transformers.pipeline` know the tasks; more than once is harmless."""
    removed = vars(transformers.pipelines).get("REMOVED_TASKS", {})  # names that it refuses before it looks them up
    for task, (name, default) in TASKS.items():
        removed.pop(task, None)
        PIPELINE_REGISTRY.supported_tasks[task] = {
            "impl": f"transduct.pipelines.{name}",
            "pt": (AutoModelForSeq2SeqLM,),
            "default": default,
            "type": "text",
        }
    PIPELINE_REGISTRY.check_task = _check_task


def _check_task(task: str) -> tuple[str, dict[str, Any], Any]:
    """The registry's own `check_task`, to which "translation_en_to_de" is "translation" with a pair of languages."""
    languages = languages_of_task(task)
    name, entry, options = type(PIPELINE_REGISTRY).check_task(PIPELINE_REGISTRY, task if languages is None else "translation")
    return name, entry, languages or options
