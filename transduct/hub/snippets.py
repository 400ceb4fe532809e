"""A program for the model card: it loads the model from the Hub, and shows what it does."""

from transduct.configuration import AUTO_MAP
from transduct.hub.facts import SEQ2SEQ, Facts

AUTO_CLASSES = {reference.split(".")[1]: name for name, reference in AUTO_MAP.items() if name != "AutoModelForSpeechSeq2Seq"}
"""What loads each class of model."""
EXAMPLE = "Hello!"


def snippet(facts: Facts, repository: str) -> str:
    """Python code that runs, with this package or without it."""
    if facts.config.encoder_input == "features":
        return _of_features(facts, repository)
    if not facts.has_tokenizer:
        return _of_ids(facts, repository)
    if facts.model_class == SEQ2SEQ and any(facts.languages):
        return _of_languages(facts, repository)
    return _of_text(facts, repository)


def example(facts: Facts) -> str:
    """A source: one of the recipe's own, behind the text that stands before each source."""
    inputs = facts.section("evaluation").get("inputs") or [EXAMPLE]
    return str(facts.split("test", "validation", "train").get("source_prefix") or "") + str(inputs[0])


def _loading(facts: Facts, repository: str, tokenizer: bool = False, own_code: bool = True) -> list[str]:
    """Lines that import what is needed and load the model, with the code that travels along unless this package is needed."""
    auto, trust = AUTO_CLASSES[facts.model_class], ", trust_remote_code=True" if own_code else ""
    return [
        f"from transformers import {auto}{', AutoTokenizer' if tokenizer else ''}",
        "",
        f'name = "{repository}"',
        *([f"tokenizer = AutoTokenizer.from_pretrained(name{trust})"] if tokenizer else []),
        f"model = {auto}.from_pretrained(name{trust}).eval()",
    ]


def _options(facts: Facts) -> str:
    return "" if facts.has_length else ", max_new_tokens=64"


def _of_text(facts: Facts, repository: str) -> str:
    lines = _loading(facts, repository, tokenizer=True)
    lines.append(f'batch = tokenizer([{example(facts)!r}], return_tensors="pt")')
    if facts.model_class in (SEQ2SEQ, "TransductForCausalLM"):
        lines += [
            f"ids = model.generate(**batch{_options(facts)})",
            "print(tokenizer.batch_decode(ids, skip_special_tokens=True)[0])",
        ]
        return "\n".join(lines)
    return "\n".join([*lines, *_outputs(facts)])


def _outputs(facts: Facts) -> list[str]:
    """Lines that call the model with a batch of ids and print what comes out."""
    if facts.model_class == "TransductModel":
        return ['print(model(**batch, decoder_input_ids=batch["input_ids"]).last_hidden_state.shape)']
    if facts.model_class == "TransductForQuestionAnswering":
        return ["print(model(**batch).start_logits.shape)"]
    output = "last_hidden_state" if facts.model_class == "TransductEncoderModel" else "logits"
    return [f"print(model(**batch).{output}.shape)"]


def _of_languages(facts: Facts, repository: str) -> str:
    """The languages' tokens stand where this package puts them."""
    named = zip(("src_lang", "tgt_lang"), facts.languages, strict=True)
    languages = "".join(f", {option}={code!r}" for option, code in named if code is not None)
    lines = ["import transduct", *_loading(facts, repository, tokenizer=True, own_code=False)]
    lines.append(f"print(transduct.translate(model, tokenizer, [{example(facts)!r}]{languages})[0])")
    return "\n".join(lines)


def _of_ids(facts: Facts, repository: str) -> str:
    lines = ["import torch", *_loading(facts, repository), 'batch = {"input_ids": torch.tensor([[4, 5, 6]])}']
    if facts.model_class in (SEQ2SEQ, "TransductForCausalLM"):
        return "\n".join([*lines, f"print(model.generate(**batch{_options(facts)}))"])
    return "\n".join([*lines, *_outputs(facts)])


def _of_features(facts: Facts, repository: str) -> str:
    config = facts.config
    frames = 2 * config.max_positions if config.feature_padding == "seen" and config.feature_stem == "conv" else 100
    shape = (frames, config.feature_size) if config.feature_layout == "time_first" else (config.feature_size, frames)
    lines = ["import torch", *_loading(facts, repository)]
    lines.append(f"features = torch.zeros(1, {shape[0]}, {shape[1]})  # one source of {frames} frames")
    if facts.model_class == SEQ2SEQ:
        return "\n".join([*lines, f"print(model.generate(input_features=features{_options(facts)}))"])
    more = ", decoder_input_ids=torch.tensor([[0]])" if facts.model_class == "TransductModel" else ""
    return "\n".join([*lines, f"print(model(input_features=features{more})[0].shape)"])
