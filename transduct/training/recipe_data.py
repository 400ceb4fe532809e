"""The sections of a recipe that say what is learnt from: `data` and `objective`. See `recipe.py` for the whole.

```yaml
data:
  train: {source: train.en, target: train.de}              # one source of rows, or a list of them: a mixture
  validation: {json: "valid.jsonl", source_field: translation.en, target_field: translation.de}
  bad_rows: skip
objective: {name: span_corruption, inputs_length: 512}     # without it, pairs of source and target are learnt
```

A mixture, the sampling of subwords, a stream and an objective are drawn anew all the time and have no last row: such a run
is as long as `training.max_steps` or `training.max_minutes` says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from transduct.training.checks import check_count, check_number, checked

SPLITS = ("train", "validation", "test")
FILES = ("json", "csv", "tsv", "parquet", "dataset", "function", "text")
"""Ways to name rows beside the pair of `source` and `target`."""


@dataclass(kw_only=True)
class SplitSource:
    """Where rows come from: one of source and target, json, csv, tsv, parquet, dataset, function or text.

    Files are paths, patterns such as "part-*.jsonl", or lists of them, relative to the recipe's folder; names that end in
    ".gz" are unpacked while they are read. Fields are names of keys or columns, "translation.en" is one inside another. A
    list of texts in the target's field is taken as alternatives that are all right.
    """

    source: str | list[str] | None = None
    """Text with one source a line; belongs to `target`."""
    target: str | list[str] | None = None
    """Text with the targets, line by line."""
    alignment: str | list[str] | None = None
    """Text with the word alignments of the pairs of `source` and `target`, "0-0 1-2", for `training.guided_alignment`."""
    json: str | list[str] | None = None
    """JSON lines."""
    csv: str | list[str] | None = None
    """Comma-separated values with a header, quoted where needed."""
    tsv: str | list[str] | None = None
    """Tab-separated values with a header; quotes are text like any other."""
    parquet: str | list[str] | None = None
    dataset: str | None = None
    """A name or folder that `datasets.load_dataset` takes, or a folder that `save_to_disk` wrote."""
    config: str | None = None
    """Configuration of that data set."""
    split: str = "train"
    """Split of that data set."""
    function: str | None = None
    """`file.py:name`, a function that yields (source, target or list of targets), or documents; it runs as code of yours."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of that function."""
    text: str | list[str] | None = None
    """Documents for an objective, as plain text; see `documents`."""
    documents: str = "line"
    """A document of `text` is a "line", or a "paragraph": the lines up to an empty one."""
    source_field: str = "source"
    target_field: str = "target"
    alignment_field: str | None = None
    """The field of word alignments, if there is one."""
    text_field: str = "text"
    """The field of a document, where an objective is given."""
    limit: int | None = None
    """Use the first so many rows only."""
    streaming: bool = False
    """Read and tokenise while training, instead of once before it; for training data only. A run that goes on reads on where it
    stopped; only what a `function` yields is made again from its beginning."""
    source_prefix: str = ""
    """Text before each source, such as "translate English to German: "."""
    tag: str | None = None
    """A token before each source, such as "<BT>" before back-translated ones (Caswell et al. 2019, arXiv 1906.06442)."""
    source_language: str | None = None
    """Language of the sources, whose token stands before them. Tokenizers that put it themselves, as NLLB's do, are told so."""
    target_language: str | None = None
    """Language to be written; its token stands before the source (Johnson et al. 2017, arXiv 1611.04558), or see below."""
    target_language_in: str = "source"
    """"target": the token of the target's language is the first that is written (M2M-100, arXiv 2010.11125), or the one that the
    decoder starts from where the tokenizer has it so (mBART). In an evaluation every output is made to begin so."""
    name: str | None = None
    """What messages call this part of a mixture."""
    weight: float | None = None
    """How often rows of this part of a mixture are drawn, relative to the others'; None: by its number of rows."""
    objective: "ObjectiveSection | None" = None
    """What is made of the rows of this part, where it is not the recipe's `objective`: a mixture of tasks."""

    @property
    def aligned(self) -> bool:
        return self.alignment is not None or self.alignment_field is not None

    def __str__(self) -> str:
        """The name in messages."""
        ways = [str(vars(self)[way]) for way in FILES if vars(self)[way] is not None]
        return self.name or (ways[0] if ways else f"{self.source} and {self.target}")


@dataclass(kw_only=True)
class SubwordSection:
    """Other segmentations of the training texts each time (subword regularisation). One of `dropout` and `alpha`."""

    dropout: float | None = None
    """Of BPE: the probability with which a merge is left out at each step (Provilkov et al. 2020, section 3.1; 0.1)."""
    alpha: float | None = None
    """Of a unigram vocabulary: smoothing of the segmentations' probabilities (Kudo 2018, section 3.2; 0.1 to 0.5)."""
    sides: str = "both"
    """"both", "source" or "target"."""


@dataclass(kw_only=True)
class DataSection:
    train: SplitSource | list[SplitSource]
    """Several sources are a mixture."""
    validation: SplitSource | None = None
    """Evaluated while training, if `training.eval_strategy` says so."""
    test: SplitSource | None = None
    """Evaluated once, with the finished model."""
    max_source_tokens: int | None = None
    max_target_tokens: int | None = None
    """Longer examples are bad rows; None: no limit."""
    truncate: str | None = None
    """"source", "target" or "both": longer texts of that side are cut at their limit instead, before the tokens that end them; in
    an evaluation too, but references are measured whole."""
    bad_rows: str = "refuse"
    """Malformed, empty or too long rows: "refuse" stops at the first, "skip" leaves them out of training and counts them."""
    temperature: float = 1.0
    """T of a mixture without weights: a part of n rows is drawn in proportion to n^(1/T) (T5, section 3.5.2)."""
    cap: int | None = None
    """A part of a mixture counts as no more rows than this (T5's K, section 3.5.2)."""
    subwords: SubwordSection | None = None
    buffer_rows: int = 16_384
    """Rows of data without a last row that are shuffled and arranged in batches together; so many at most are read again when
    a run goes on."""

    @property
    def parts(self) -> list[SplitSource]:
        """The sources of the training data, one or several."""
        return self.train if isinstance(self.train, list) else [self.train]


@dataclass(kw_only=True)
class ObjectiveSection:
    """What is made of documents; see `objectives/`. A field that its objective does not have is refused."""

    name: str = "seq2seq"
    """seq2seq (pairs), span_corruption, text_infilling, token_masking, token_deletion, sentence_permutation,
    document_rotation, bart (permutation and infilling), composition, ul2, prefix_lm, masked_lm or causal_lm."""
    inputs_length: int = 512
    """Tokens of an input at most, its special tokens included; documents are cut to fill it."""
    join: bool | None = None
    """Whether a text may go on from one document to the next; None: as T5 for span_corruption and ul2, and for language
    models; not as BART for its noises, and not for masked_lm."""
    density: float | None = None
    """Share of hidden tokens of span_corruption."""
    mean_span: float | None = None
    """Mean length of a hidden span of span_corruption, in tokens."""
    share: float | None = None
    """Share of words or tokens of a noise, or of masked_lm."""
    mean_words: float | None = None
    """Mean length of a span of text_infilling, in words."""
    target_share: float | None = None
    """Share that prefix_lm has to write; None: any."""
    form: str | None = None
    """Of prefix_lm: "encoder_decoder" or "decoder"."""
    weights: list[float] | None = None
    """Of ul2's seven denoisers; None: all equally often."""
    noises: list[dict[str, Any]] | None = None
    """Of a composition: each a mapping with the name and fields of a noise, applied in this order."""

    @property
    def of_pairs(self) -> bool:
        return self.name == "seq2seq"


def build_data(raw: Any, objective: ObjectiveSection) -> DataSection:
    """The checked section of a recipe with this objective."""
    values = checked(raw, DataSection, "data")
    values["train"] = _build_train(values["train"], objective)
    for name in SPLITS[1:]:
        if values.get(name) is not None:
            values[name] = _build_split(values[name], f"data.{name}", objective)
            _check_part_of_no_mixture(values[name], f"data.{name}")
            if values[name].objective is not None:
                raise ValueError(f"data.{name}.objective: only training data have their own; this is the recipe's objective")
            if values[name].aligned:
                raise ValueError(f"data.{name}: only training data are aligned; an evaluation has no use for it")
            if values[name].streaming:
                raise ValueError(f"data.{name}.streaming: only training data are streamed; an evaluation needs its last row")
    if values.get("subwords") is not None:
        values["subwords"] = SubwordSection(**checked(values["subwords"], SubwordSection, "data.subwords"))
    data = DataSection(**values)
    _check_data(data, documents=all(not (part.objective or objective).of_pairs for part in data.parts))
    return data


def _build_train(raw: Any, objective: ObjectiveSection) -> SplitSource | list[SplitSource]:
    if not isinstance(raw, list):
        train = _build_split(raw, "data.train", objective)
        _check_part_of_no_mixture(train, "data.train")
        return train
    if len(raw) < 2:
        raise ValueError(f"data.train is a list of {len(raw)}: a mixture needs two sources or more")
    parts = [_build_split(part, f"data.train[{i}]", objective) for i, part in enumerate(raw)]
    names = [str(part) for part in parts]
    if doubled := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"data.train has two parts called {doubled[0]!r}: give each a name")
    return parts


def _build_split(raw: Any, path: str, objective: ObjectiveSection) -> SplitSource:
    split = SplitSource(**checked(raw, SplitSource, path))
    if split.objective is not None:
        split.objective = build_objective(split.objective, f"{path}.objective")
        if (kind := model_kind(split.objective)) != model_kind(objective):
            names = f"{split.objective.name} trains a {kind}, but {objective.name} a {model_kind(objective)}"
            raise ValueError(f"{path}.objective: {names}")
    documents = not (split.objective or objective).of_pairs
    ways = [name for name in FILES if vars(split)[name] is not None]
    if split.source is not None or split.target is not None:
        if split.source is None or split.target is None:
            raise ValueError(f"{path} needs both source and target, two text files with as many lines")
        ways.insert(0, "source and target")
    if len(ways) != 1:
        raise ValueError(
            f"{path} needs exactly one of source and target, {', '.join(FILES)}; it has {' and '.join(ways) or 'none'}"
        )
    _check_kind(split, path, documents, ways[0])
    _check_values(split, path)
    return split


def _check_kind(split: SplitSource, path: str, documents: bool, way: str) -> None:
    """Refuses fields that would do nothing."""
    if documents and way == "source and target":
        raise ValueError(f"{path} has source and target, but the objective makes both of a document: use text, or leave it out")
    if not documents and way == "text":
        raise ValueError(f"{path}.text are documents, which an objective needs: add one, or give source and target")
    fields_of_pairs = ("source_field", "target_field")
    around_sources = ("source_prefix", "tag", "source_language", "target_language", "target_language_in")
    needs = dict.fromkeys(("config", "split"), way == "dataset") | {"arguments": way == "function", "documents": way == "text"}
    in_columns = way in ("json", "csv", "tsv", "parquet", "dataset")
    needs |= dict.fromkeys(fields_of_pairs, in_columns and not documents) | {"text_field": in_columns and documents}
    needs |= {"alignment": way == "source and target", "alignment_field": in_columns and not documents}
    needs |= dict.fromkeys(around_sources, not documents)
    defaults = SplitSource()
    for name, has_use in needs.items():
        if not has_use and vars(split)[name] != vars(defaults)[name]:
            raise ValueError(f"{path}.{name} has no use with {way}" + (" and an objective" if documents else ""))


def _check_values(split: SplitSource, path: str) -> None:
    choices = {"documents": ("line", "paragraph"), "target_language_in": ("source", "target"), "streaming": (True, False)}
    for name, allowed in choices.items():
        if vars(split)[name] not in allowed:
            raise ValueError(f"{path}.{name}={vars(split)[name]!r} must be {' or '.join(map(str, allowed))}")
    if split.limit is not None:
        check_count(split.limit, f"{path}.limit", 1)
    if split.weight is not None:
        check_number(split.weight, f"{path}.weight", above=0)
    texts = [f.name for f in fields(SplitSource) if f.name.endswith(("_prefix", "_field", "_language"))]
    for name in ("tag", *texts):
        if vars(split)[name] is not None and not isinstance(vars(split)[name], str):
            raise ValueError(f"{path}.{name}={vars(split)[name]!r} must be a text; quote what YAML reads otherwise")


def _check_part_of_no_mixture(split: SplitSource, path: str) -> None:
    if split.weight is not None:
        raise ValueError(f"{path}.weight={split.weight}: only the parts of a mixture, a list, have weights")


def _check_data(data: DataSection, documents: bool) -> None:
    if data.bad_rows not in ("refuse", "skip"):
        raise ValueError(f'data.bad_rows={data.bad_rows!r} must be "refuse" or "skip"')
    for name in ("max_source_tokens", "max_target_tokens", "cap"):
        if vars(data)[name] is not None:
            check_count(vars(data)[name], f"data.{name}", 1)
            if documents and name != "cap":
                raise ValueError(f"data.{name}={vars(data)[name]}: with an objective, objective.inputs_length is the limit")
    if data.truncate is not None:
        _check_truncation(data, documents)
    check_count(data.buffer_rows, "data.buffer_rows", 1)
    check_number(data.temperature, "data.temperature", above=0)
    weighted = [part.weight is not None for part in data.parts]
    if any(weighted) and not all(weighted):
        raise ValueError(f"data.train: {data.parts[weighted.index(False)]} has no weight, but others do: give all one, or none")
    by_size = (data.temperature != 1 or data.cap is not None) and (any(weighted) or len(weighted) == 1)
    if by_size:
        rule = "belong to a mixture whose parts have no weights"
        raise ValueError(f"data.temperature={data.temperature} and data.cap={data.cap} {rule}")
    for part in data.parts:
        if part.streaming and len(weighted) > 1 and not any(weighted):
            raise ValueError(f"data.train: {part} is a stream, whose number of rows is not known: give all parts a weight")
    aligned = [part.aligned for part in data.parts]
    if any(aligned):
        _check_alignments(data, all(aligned))
    if data.subwords is not None:
        _check_subwords(data.subwords, documents)


def _check_truncation(data: DataSection, documents: bool) -> None:
    if data.truncate not in ("source", "target", "both"):
        raise ValueError(f'data.truncate={data.truncate!r} must be "source", "target" or "both", or left out')
    if documents:
        raise ValueError(f"data.truncate={data.truncate!r}: with an objective, documents are cut anyway; leave it out")
    for side in ("source", "target"):
        if data.truncate in (side, "both") and vars(data)[f"max_{side}_tokens"] is None:
            raise ValueError(f"data.truncate={data.truncate!r} needs data.max_{side}_tokens: where texts are cut")
    if data.subwords is not None or any(part.aligned for part in data.parts):
        raise ValueError(f"data.truncate={data.truncate!r}: subwords and alignments belong to whole texts; leave one of them out")


def _check_alignments(data: DataSection, all_parts: bool) -> None:
    if not all_parts:
        raise ValueError("data.train: some parts have alignments and others do not: give them to all, or to none")
    if data.subwords is not None:
        raise ValueError("data.subwords: alignments belong to one segmentation of their texts; leave one of them out")
    if any(part.source_prefix for part in data.parts):
        raise ValueError("data.train.source_prefix would shift the words that the alignments number: use a tag, or leave it out")


def _check_subwords(subwords: SubwordSection, documents: bool) -> None:
    if documents:
        raise ValueError("data.subwords: with an objective, documents are tokenised once; leave one of them out")
    if (subwords.dropout is None) == (subwords.alpha is None):
        raise ValueError("data.subwords needs either dropout, for BPE, or alpha, for a unigram vocabulary")
    if subwords.sides not in ("both", "source", "target"):
        raise ValueError(f'data.subwords.sides={subwords.sides!r} must be "both", "source" or "target"')
    if subwords.dropout is not None:
        check_number(subwords.dropout, "data.subwords.dropout", above=0)
        if subwords.dropout > 1:
            raise ValueError(f"data.subwords.dropout={subwords.dropout} is a probability: at most 1")
    else:
        check_number(subwords.alpha, "data.subwords.alpha", above=0)


NOISES: Mapping[str, tuple[str, ...]] = {
    "text_infilling": ("share", "mean_words"),
    "token_masking": ("share",),
    "token_deletion": ("share",),
    "sentence_permutation": ("share",),
    "document_rotation": (),
}
"""BART's noises and their fields."""

OBJECTIVES: Mapping[str, tuple[str, ...]] = {
    "seq2seq": (),
    "span_corruption": ("density", "mean_span"),
    **NOISES,
    "bart": (),
    "composition": ("noises",),
    "ul2": ("weights",),
    "prefix_lm": ("target_share", "form"),
    "masked_lm": ("share",),
    "causal_lm": (),
}
"""The names of objectives and the fields that each has beside `inputs_length` and `join`."""


def build_objective(raw: Any, path: str = "objective") -> ObjectiveSection:
    """The checked section; the objective itself checks its numbers when it meets the tokenizer."""
    objective = ObjectiveSection(**checked(raw, ObjectiveSection, path))
    if objective.name not in OBJECTIVES:
        raise ValueError(f"{path}.name={objective.name!r} is unknown; choose one of {', '.join(OBJECTIVES)}")
    check_count(objective.inputs_length, f"{path}.inputs_length", 4)
    allowed = {"name", *(() if objective.of_pairs else ("inputs_length", "join")), *OBJECTIVES[objective.name]}
    for option in fields(ObjectiveSection):
        if vars(objective)[option.name] != option.default and option.name not in allowed:
            raise ValueError(f"{path}.{option.name} has no use for {objective.name}, which takes {', '.join(sorted(allowed))}")
    if objective.name == "composition":
        _check_noises(objective.noises, path)
    return objective


def model_kind(section: ObjectiveSection) -> str:
    """The name of the model class: an encoder and a decoder, or one of them alone."""
    if section.name == "masked_lm":
        return "TransductForMaskedLM"
    decoder_alone = section.name == "causal_lm" or (section.name == "prefix_lm" and section.form == "decoder")
    return "TransductForCausalLM" if decoder_alone else "TransductForConditionalGeneration"


def _check_noises(noises: Any, path: str) -> None:
    if not isinstance(noises, list) or not noises:
        raise ValueError(f"{path}.noises={noises!r} must be a list such as [{{name: text_infilling, share: 0.3}}]")
    for i, noise in enumerate(noises):
        if not isinstance(noise, Mapping) or noise.get("name") not in NOISES:
            raise ValueError(f"{path}.noises[{i}]={noise!r} must be a mapping whose name is one of {', '.join(NOISES)}")
        if unknown := sorted(set(noise) - {"name", *NOISES[noise["name"]]}):
            known = ", ".join(NOISES[noise["name"]]) or "none"
            raise ValueError(f"{path}.noises[{i}].{unknown[0]} is no field of {noise['name']}; its fields: {known}")
