"""The model card: a README.md that says what is known, and only that, with metadata that the Hub reads.

A card that this module wrote ends with a mark, which holds a checksum of the text before it. One that bears no such mark, or was
changed since, is a person's: it is never replaced unless that is asked for.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCardData

from transduct.accounting import ModelDescription
from transduct.hub.facts import SEQ2SEQ, Facts, Result, data_name
from transduct.hub.private import holds_token, public_text
from transduct.hub.snippets import snippet
from transduct.terminal import printable
from transduct.training.history import logged_points
from transduct.training.metrics import without_timings
from transduct.training.report import number

MARK = "<!-- Written by transduct from the facts of this checkpoint; remove this line if you edit the card. {} -->"
LANGUAGE = "[a-z]{2,3}|code|multilingual"
"""What the Hub takes for one; it refuses the longer tags, such as pt-BR."""
WORD = r"[a-z0-9]+([.+-][a-z0-9]+)*"
"""What a licence and a task are named by."""
ROWS = 12
"""Of the table of the training at most."""
TASKS = {
    "TransductForMaskedLM": "fill-mask", "TransductForCausalLM": "text-generation",
    "TransductForSequenceClassification": "text-classification", "TransductForTokenClassification": "token-classification",
    "TransductForQuestionAnswering": "question-answering", "TransductEncoderModel": "feature-extraction",
}  # fmt: skip
"""What the Hub calls the tasks that a class says by itself."""
PART_NAMES = {"cross_attention": "cross-attention", "output": "output projection", "stem": "stem of features"}


@dataclass(frozen=True)
class Said:
    """What only a person can say of a model.

    Raises:
        ValueError: for words that the Hub's metadata cannot take.
    """

    license: str | None = None
    """As the Hub writes it, such as apache-2.0."""
    languages: Sequence[str] = ()
    """ISO 639 codes; without them, those of the recipe."""
    task: str | None = None
    """As the Hub calls it, such as translation or summarization."""

    def __post_init__(self) -> None:
        for name, value in (("license", self.license), ("task", self.task)):
            if value is not None and not re.fullmatch(WORD, value):
                example = "apache-2.0, or other" if name == "license" else "translation"
                raise ValueError(f"{name}={value!r} must be the Hub's own word for it, in small letters, such as {example}")
        for code in self.languages:
            if not re.fullmatch(LANGUAGE, code):
                raise ValueError(
                    f"language={code!r} must be a code of ISO 639 alone, in small letters, such as en, or pt for pt-BR"
                )

    def __bool__(self) -> bool:
        """Whether anything was said."""
        return bool(self.license or self.languages or self.task)

    def completed(self, before: "Said") -> "Said":
        """What is said now and, of what is not, what was said before."""
        return Said(self.license or before.license, self.languages or before.languages, self.task or before.task)


def write_card(facts: Facts, repository: str, said: Said | None = None, token: str | None = None) -> str:
    """The card of a model that will be `repository`, with its mark.

    Args:
        token: that must not be in it, of whatever form.

    Raises:
        ValueError: if it would hold a token.
    """
    said = said or Said()
    parts = [
        f"---\n{_metadata(facts, repository, said).to_yaml()}\n---",
        f"# {repository.split('/')[-1]}",
        _summary(facts, said),
        "## Use\n\n" + _use(facts, repository),
        _section("Results", _results(facts.results)),
        _section("Import", _comparison(facts)),
        _section("Architecture", _architecture(facts)),
        _section("Data", _data(facts)),
        _section("Training", _training(facts)),
    ]
    text = "\n\n".join(part for part in parts if part) + "\n"
    if holds_token(text, token):
        raise ValueError("the card would hold a token: take it out of the recipe or the names of the metrics")
    return f"{text}\n{MARK.format(_checksum(text))}\n"


def is_ours(card: str) -> bool:
    """Whether this module wrote a card, and nobody has changed it since."""
    text, mark, _ = card.rstrip().rpartition("\n" + MARK.split("{}")[0])
    return bool(mark) and card.rstrip() == f"{text}\n{MARK.format(_checksum(text))}"


def said_in(card: str) -> Said:
    """What the metadata of a card state of what only a person can say, as far as the Hub takes their words."""
    data = _data_of(card)
    languages = data.get("language")
    named = ["no" if one is False else one for one in (languages if isinstance(languages, list) else [languages])]
    return Said(
        _word(data.get("license")),
        tuple(one for one in named if isinstance(one, str) and re.fullmatch(LANGUAGE, one)),
        _word(data.get("pipeline_tag")),
    )


def license_in(card: str) -> str | None:
    """The licence that the metadata of a card state."""
    return said_in(card).license


def evaluated_in(card: str) -> list[str]:
    """The names of the test sets of which the metadata of a card tell results."""
    results = (result for model in _mappings(_data_of(card).get("model-index")) for result in _mappings(model.get("results")))
    names = (data.get("name") for result in results for data in _mappings([result.get("dataset")]))
    return list(dict.fromkeys(name for name in names if isinstance(name, str)))


def _data_of(card: str) -> Mapping[str, Any]:
    """A card's metadata, empty where there are none that can be read: they may be anybody's."""
    found = re.match(r"\s*---\s*?\n(.*?)\n---\s*?(\n|$)", card, re.DOTALL)
    try:
        data = yaml.safe_load(found[1]) if found else None
    except (ValueError, RecursionError, yaml.YAMLError):
        data = None
    return data if isinstance(data, dict) else {}


def _mappings(values: Any) -> list[Mapping[str, Any]]:
    """Those among what should be a list of mappings."""
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and re.fullmatch(WORD, value) else None


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# ---- metadata -----------------------------------------------------------------------------------------------------------------
def _metadata(facts: Facts, repository: str, said: Said) -> ModelCardData:
    task = task_of(facts, said)
    results = [
        EvalResult(
            task_type=task or "text2text-generation",
            dataset_type=re.sub(r"[^\w./-]+", "-", result.data).strip("-"),
            dataset_name=result.data,
            metric_type=one.metric,
            metric_value=round(one.value, 4),
            metric_name=one.name,
            metric_args=None if one.signature is None else {"signature": one.signature},
        )
        for result in facts.results
        for one in result.measurements
    ]
    return ModelCardData(
        base_model=base_model(facts),
        language=languages_of(facts, said) or None,
        license=said.license,
        library_name="transformers",
        pipeline_tag=task,
        tags=["transduct", "custom_code", *(["encoder-decoder"] if facts.config.is_encoder_decoder else [])],
        model_name=repository.split("/")[-1] if results else None,
        eval_results=results or None,
    )


def task_of(facts: Facts, said: Said) -> str | None:
    """The Hub's name of what the model does, where that is known."""
    between_languages = facts.model_class == SEQ2SEQ and None not in facts.languages
    return said.task or TASKS.get(facts.model_class) or ("translation" if between_languages else None)


def base_model(facts: Facts) -> str | None:
    """The model of the Hub that the weights were imported from."""
    return facts.imported.get("source") if facts.imported.get("commit") else None


def languages_of(facts: Facts, said: Said) -> list[str]:
    """Codes as the Hub wants them: ISO 639, without the country and the script that a recipe may name."""
    codes = said.languages or [re.split("[-_]", named)[0] for named in facts.languages if named is not None]
    return [one for one in dict.fromkeys(codes) if re.fullmatch(LANGUAGE, one)]


# ---- text ---------------------------------------------------------------------------------------------------------------------
def _section(title: str, text: str) -> str:
    return f"## {title}\n\n{text}" if text else ""


def _summary(facts: Facts, said: Said) -> str:
    kinds = {"TransductForCausalLM": "A decoder-only Transformer", "TransductEncoderModel": "A Transformer encoder"}
    kind = kinds.get(facts.model_class, "An encoder-decoder Transformer" if facts.config.is_encoder_decoder else "A Transformer")
    origin = facts.config.origin or {}
    start = facts.section("model").get("from_pretrained")
    sentences = [f"{kind} of {facts.description.parameters:,} parameters."]
    if origin:
        source = "" if base_model(facts) is None else f", {code(str(base_model(facts)))} at {cell(str(facts.imported['commit']))}"
        family, its_class = (cell(str(origin.get(name))) for name in ("family", "class"))
        sentences.append(f"Its weights were imported from a checkpoint of {family} ({its_class}){source}.")
    if start:
        sentences.append(f"It was trained further from {code(str(start))}.")
    if all(facts.languages):
        sentences.append("From {} to {}.".format(*map(cell, map(str, facts.languages))))
    sentences.append("" if said.license else "Its licence is not stated here: ask whoever published it before you use it.")
    if facts.has_original_card:
        sentences.append("The card of the original is README.original.md; its terms go on to hold.")
    return " ".join(filter(None, sentences))


def _use(facts: Facts, repository: str) -> str:
    code = snippet(facts, repository)
    text = "This needs the package transduct." if code.startswith("import transduct") else (
        "The code of the model travels along, and `trust_remote_code=True` runs it. Where the package transduct is installed and "
        "imported, leave that out."
    )  # fmt: skip
    return f"{fenced('python', code)}\n\n{text}"


def _results(results: Sequence[Result]) -> str:
    tables = []
    for result in results:
        rows = []
        for one in result.measurements:
            value = number(one.value) + ("" if one.confidence is None else f" ± {number(one.confidence)}")
            rows.append((one.name, value, "" if one.signature is None else code(one.signature)))
        head = f"On {cell(result.data)}, {result.examples:,} examples:"
        tables.append(f"{head}\n\n{table(('metric', 'value', 'signature'), rows)}")
    return "\n\n".join(tables)


def _comparison(facts: Facts) -> str:
    """What an import has compared with the original."""
    checked = facts.imported.get("checked") or []
    lines = "\n".join(f"- {cell(str(line))}" for line in checked)
    return f"Compared with the original when it was imported:\n\n{lines}" if checked else ""


def _architecture(facts: Facts) -> str:
    config, described = facts.config, facts.description
    heads = f"{config.num_heads} heads" + (f", {config.num_key_value_heads} of keys" if config.num_key_value_heads else "")
    feed_forward = f"{config.d_ff:,}, {config.activation}{', gated' if config.gated_ffn else ''}"
    vocabulary = f"{config.vocab_size:,}" + (f" and {config.decoder_vocab_size:,}" if config.decoder_vocab_size else "")
    layers = {"encoder": config.encoder_layers, "decoder": config.decoder_layers}
    source = f"features of {config.feature_size} values" if config.encoder_input == "features" else "tokens"
    rows = [
        ("layers", ", ".join(f"{count} of the {part}" for part, count in layers.items() if described.parameters_by_part[part])),
        ("width", f"{config.d_model:,}, {heads}"),
        ("feed-forward", feed_forward),
        ("norms", f"{config.norm}, {config.norm_position}-norm"),
        ("positions", f"{config.positions}, up to {config.max_positions:,}"),
        ("source", source),
        ("vocabulary", f"{vocabulary} ids, ties: {config.tie_embeddings}"),
        *_parameters(described),
        ("multiply-adds of layers, per source token", f"{described.multiply_adds_per_source_token:,}"),
        ("multiply-adds of layers, per target token", f"{described.multiply_adds_per_target_token:,}"),
    ]  # fmt: skip
    return table(("", ""), rows)


def _parameters(described: ModelDescription) -> list[tuple[str, str]]:
    parts = {PART_NAMES.get(part, part): count for part, count in described.parameters_by_part.items() if count}
    return [
        *((f"parameters, {part}", f"{count:,}") for part, count in parts.items()),
        ("parameters", f"{described.parameters:,}"),
    ]


def _data(facts: Facts) -> str:
    lines = []
    for name, meaning in (("train", "Trained on"), ("validation", "Validated on"), ("test", "Tested on")):
        given = facts.section("data").get(name)
        for split in given if isinstance(given, list) else [given]:
            if isinstance(split, Mapping):
                limit = f", the first {split['limit']:,} rows" if isinstance(split.get("limit"), int) else ""
                lines.append(f"- {meaning} {cell(data_name(split))}{limit}.")
    return "\n".join(lines)


def _training(facts: Facts) -> str:
    rows = facts.history
    steps = max((row["step"] for row in rows if isinstance(row.get("step"), int)), default=0)
    parts = []
    if steps:
        epochs = max((row["epoch"] for row in rows if isinstance(row.get("epoch"), (int, float))), default=0)
        speeds = [speed for _, speed in logged_points(rows, "target_tokens_per_second")]
        speed = f", at {median(speeds):,.0f} target tokens a second" if speeds else ""
        parts += [f"{steps:,} steps, {epochs:,.2f} epochs{speed}.", _curve(rows)]
    if facts.averaged:
        parts.append(f"The weights are the mean of {len(facts.averaged)} checkpoints: {cell(', '.join(facts.averaged))}.")
    if facts.recipe:
        parts.append("The command was `transduct train recipe.yaml`, with this recipe:\n\n" + _yaml(facts.recipe))
    if facts.arguments:
        parts.append("The arguments of the trainer that differ from their defaults:\n\n" + _yaml(facts.arguments))
    return "\n\n".join(filter(None, parts))


def _yaml(values: Mapping[str, Any]) -> str:
    return fenced("yaml", yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True).rstrip())


def _curve(history: Sequence[Mapping[str, Any]]) -> str:
    """Some of the evaluations, or of the steps that were logged, evenly apart, with the last."""
    measured = without_timings({key: None for row in history for key in row if key.startswith("eval_")})
    columns: dict[str, dict[float, float]] = {key: dict(logged_points(history, key)) for key in ("loss", *measured)}
    steps = sorted(set().union(*(columns[key] for key in measured))) or sorted(columns["loss"])
    chosen = [steps[round(i * (len(steps) - 1) / max(1, min(ROWS, len(steps)) - 1))] for i in range(min(ROWS, len(steps)))]
    if not chosen:
        return ""
    columns["loss"] = _at_or_before(columns["loss"], chosen)
    head = ("step", "training loss", *(f"validation {key.removeprefix('eval_').replace('_', ' ')}" for key in measured))
    rows = [
        (f"{step:,}", *("" if columns[key].get(step) is None else number(columns[key][step]) for key in columns))
        for step in chosen
    ]
    return table(head, rows)


def _at_or_before(points: Mapping[float, float], steps: Iterable[float]) -> dict[float, float]:
    """For each step the value that was logged there, or last before it."""
    known = {step: [at for at in points if at <= step] for step in steps}
    return {step: points[max(before)] for step, before in known.items() if before}


# ---- Markdown -----------------------------------------------------------------------------------------------------------------
class Markdown(str):
    """A text in which what is not ours is escaped already."""


def cell(text: str) -> Markdown:
    """A text that stays what it is in a line or a cell of Markdown: no HTML, link or picture, no column, no line of its own."""
    if isinstance(text, Markdown):
        return text
    plain = re.sub(r"[\\`*~|\[\]]|(?<!\w)_|_(?!\w)", r"\\\g<0>", _public_line(text))
    return Markdown(plain.replace("&", "&amp;").replace("<", "&lt;"))


def code(text: str) -> "Markdown":
    """A text as code in a line or a cell, where it has nothing that would end either."""
    plain = _public_line(text)
    return Markdown("`{}`".format(plain.replace("|", "\\|"))) if re.fullmatch(r"[\w.,:;|/@#+=() -]+", plain) else cell(plain)


def _public_line(text: str) -> str:
    return printable(" ".join(public_text(text).split()))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines: list[list[str]] = [[cell(text) for text in row] for row in (head, *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], ["---"] * len(head), *lines[1:]])


def fenced(language: str, text: str) -> str:
    """A block of code, whose fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
