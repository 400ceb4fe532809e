"""One encoder-decoder Transformer for the Hugging Face ecosystem: by configuration alone Vaswani et al. 2017, T5 or BART.

`import transduct` makes the Auto classes know the model type "transduct", and `transformers.pipeline` the tasks translation,
summarization and text2text-generation. Names load on first use. The `transduct` command registers nothing before it needs a
model, so that `transduct --help` does not wait for torch.
"""

import importlib
import sys
from pathlib import Path

__version__ = "0.1.0"

_NAMES = {
    "TransductConfig": "configuration",
    "TransductTokenizer": "tokenization",
    "TransductCache": "cache",
    "TransductModel": "modeling",
    "TransductForConditionalGeneration": "modeling",
    "TransductEncoderModel": "modeling",
    "TransductForCausalLM": "modeling",
    "TransductForMaskedLM": "modeling",
    "TransductForSequenceClassification": "modeling",
    "TransductForQuestionAnswering": "modeling",
    "TransductForTokenClassification": "modeling",
    "config_from_preset": "presets",
    "preset_names": "presets",
    "describe": "accounting",
    "translate": "decoding.translate",
    "score": "decoding.score",
    "evaluate": "decoding.evaluate",
}
_SUBPACKAGES = ("convert", "decoding", "hub", "plot", "training")

__all__ = ["__version__", "register", *_NAMES]


def register() -> None:
    """Tell transformers' Auto classes of the model type "transduct", and its pipelines of ours; more than once is harmless."""
    import transformers
    from transformers import AutoConfig, AutoTokenizer
    from transformers.models.auto.modeling_auto import MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES

    from .configuration import AUTO_MAP, TransductConfig
    from .pipeline_tasks import register_pipelines
    from .tokenization import TransductTokenizer

    AutoConfig.register(TransductConfig.model_type, TransductConfig, exist_ok=True)
    modeling = importlib.import_module(".modeling", __name__)
    for auto_name, reference in AUTO_MAP.items():
        if auto_name != "AutoConfig":
            getattr(transformers, auto_name).register(TransductConfig, getattr(modeling, reference.split(".")[1]), exist_ok=True)
    AutoTokenizer.register(TransductConfig, fast_tokenizer_class=TransductTokenizer, exist_ok=True)
    speech = (
        "TransductForConditionalGeneration"  # by this name the pipeline of speech recognition knows what it may generate with
    )
    MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES.setdefault(TransductConfig.model_type, speech)
    register_pipelines()


def __getattr__(name: str):
    if name in _SUBPACKAGES:
        return importlib.import_module(f".{name}", __name__)
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _is_command():
        register()
    return getattr(importlib.import_module(f".{_NAMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBPACKAGES])


def _is_command() -> bool:
    return Path(sys.argv[0]).stem == "transduct" if sys.argv else False


if not _is_command():
    register()
