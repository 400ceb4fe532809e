"""Recipes: what they accept, and errors that name the key's path."""

import copy
from pathlib import Path

import pytest
import yaml

from transduct.training.recipe import build_recipe, load_recipe

EXAMPLE = Path(__file__).parents[1] / "examples" / "g2p" / "config.yaml"
SMALL = {
    "output": "run",
    "model": {"preset": "vaswani-base", "d_model": 16},
    "tokenizer": {"kind": "chars"},
    "data": {"train": {"source": "a", "target": "b"}, "test": {"json": "c"}},
    "training": {"max_steps": 3},
}


def changed(path: str, value) -> dict:
    raw = copy.deepcopy(SMALL)
    *sections, key = path.split(".")
    place = raw
    for section in sections:
        place = place.setdefault(section, {})
    place[key] = value
    return raw


def test_a_small_recipe():
    recipe = build_recipe(SMALL)
    assert recipe.data.train.target == "b"
    assert recipe.data.test.source_field == "source"
    assert recipe.data.validation is None
    assert recipe.evaluation.num_beams == 4


def test_the_example_is_a_recipe():
    recipe = load_recipe(EXAMPLE)
    assert recipe.folder == EXAMPLE.parent
    assert recipe.training["learning_rate"] == 5e-3
    assert recipe.training["max_tokens_per_batch"] == 2048
    assert recipe.data.train.arguments == {"split": "train"}


def test_changes_from_the_command_line():
    changes = [
        "training.learning_rate=1e-4",
        "model.d_model=64",
        "evaluation.num_beams=1",
        "data.test.limit=10",
        "output=elsewhere",
    ]
    recipe = load_recipe(EXAMPLE, changes)
    assert recipe.training["learning_rate"] == 1e-4
    assert (recipe.model["d_model"], recipe.evaluation.num_beams, recipe.data.test.limit) == (64, 1, 10)
    assert recipe.output == "elsewhere"


def test_powers_of_ten_are_numbers_in_every_section(tmp_path):
    path = tmp_path / "config.yaml"
    text = yaml.safe_dump(changed("model", {"preset": "vaswani-base", "z_loss": "Z", "norm_eps": "EPS"}))
    path.write_text(text.replace("z_loss: Z", "z_loss: 1e-4").replace("norm_eps: EPS", "norm_eps: 1.E-6"))
    recipe = load_recipe(path, ["evaluation.length_penalty=2e0", "model.dropout=.1e+0", "output=1e"])
    assert recipe.model == {"preset": "vaswani-base", "z_loss": 1e-4, "norm_eps": 1e-6, "dropout": 0.1}
    assert recipe.evaluation.length_penalty == 2.0
    assert recipe.output == "1e"


CUT = {"truncate": "source", "max_source_tokens": 9}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": {"name": "causal_lm"}, "data": {"train": {"text": "a"}, "truncate": "source"}}, "documents are cut"),
        ({"data": {"train": {"json": "a"}, **CUT, "subwords": {"alpha": 0.1}}}, "subwords and alignments belong to whole texts"),
        ({"data": {"train": {"json": "a", "alignment_field": "al"}, **CUT}}, "subwords and alignments belong to whole texts"),
        (
            {
                "objective": {"name": "masked_lm"},
                "data": {"train": {"text": "a"}},
                "evaluation": {"generation": {"max_length": 5}},
            },
            "the model of masked_lm writes nothing",
        ),
    ],
)
def test_what_excludes_each_other(changes, message):
    with pytest.raises(ValueError, match=message):
        build_recipe({**changed("output", "out"), **changes})


def test_numbers_and_words_that_yaml_reads_otherwise():
    raw = {"learning_rate": "3e-4", "eval_strategy": False, "optim": "sgd", "max_steps": 5.0, "eval_steps": 4, "data_seed": None}
    recipe = build_recipe(changed("training", {**raw, "save_only_model": False}))
    made = {**raw, "learning_rate": 3e-4, "eval_strategy": "no", "save_only_model": False}
    assert recipe.training == made
    assert type(recipe.training["max_steps"]) is int


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("outptu", "x", "outptu is no key of a recipe: did you mean output"),
        ("data.tests", {}, r"data\.tests is no key of a recipe: did you mean test"),
        ("data.train.sauce", "x", r"data\.train\.sauce is no key of a recipe: did you mean source"),
        ("training.lerning_rate", 1, r"training\.lerning_rate is no key of a recipe: did you mean learning_rate"),
        ("training.output_dir", "x", "the key output, at the top"),
        ("training.learning_rate", "fast", r"training\.learning_rate='fast' must be a number"),
        ("training.learning_rate", True, r"training\.learning_rate=True must be a number"),
        ("training.seed", 1.5, r"training\.seed=1\.5 must be a whole number"),
        ("training.seed", None, r"training\.seed=None must be a whole number"),
        ("training.r_drop", "x", r"training\.r_drop='x' must be a number"),
        ("training.lora", [8], r"training\.lora=\[8\] must be a mapping or None"),
        ("training.eval_strategy", "stepz", r"training\.eval_strategy='stepz' must be 'no', 'steps' or 'epoch'"),
        ("training.packing", "nein", r"training\.packing='nein' must be true or false"),
        ("training.bf16", 1, r"training\.bf16=1 must be true or false"),
        ("training.resume_from_checkpoint", "x", "goes on at its newest whole checkpoint by itself"),
        ("training.save_only_model", True, "a run could not go on at such checkpoints"),
        ("training.do_predict", True, "data.test says whether"),
        ("training.hub_token", "hf_secret", "recipes are noted and shared: set HF_TOKEN"),
        ("training.push_to_hub", True, "push_to_hub needs hub_model_id"),
        ("model.d_modle", 5, r"model\.d_modle is no key of a recipe: did you mean d_model"),
        ("model.from_pretrained", "x", "model needs either preset"),
        ("tokenizer.texts", 0, "tokenizer.texts=0 must be a whole number of at least 1"),
        ("tokenizer", {"texts": 5, "from_pretrained": "x"}, "tokenizer.texts has no use with from_pretrained"),
        ("tokenizer.knd", "chars", r"tokenizer\.knd is no key of a recipe: did you mean kind"),
        ("evaluation.beams", 5, r"evaluation\.beams is no key"),
        ("evaluation.metrics", {"x": "blue"}, r"evaluation\.metrics\.x='blue' is unknown"),
        ("evaluation.generation", {"min_lenght": 5}, r"evaluation\.generation\.min_lenght is no key .* did you mean min_length"),
        ("evaluation.generation", {"num_beams": 5}, r"evaluation\.generation\.num_beams is no key of a recipe"),
        ("evaluation.generation", {"pad_token_id": 5}, r"evaluation\.generation\.pad_token_id is no key of a recipe"),
        ("evaluation.generation", {"early_stopping": "maybe"}, r"evaluation\.generation=\{.*'maybe'\} cannot be used: "),
        ("evaluation.generation", {"num_return_sequences": 9}, r"evaluation\.generation=\{.*9\} cannot be used: "),
        ("evaluation.generation", 5, r"evaluation\.generation must be a mapping, not 5"),
        ("data.truncate", "all", r"data\.truncate='all' must be \"source\", \"target\" or \"both\""),
        ("data.truncate", "source", r"data\.truncate='source' needs data\.max_source_tokens"),
        ("data.truncate", "target", r"data\.truncate='target' needs data\.max_target_tokens"),
        ("evaluation.metrics", {"loss": "bleu"}, "'loss' cannot name a metric"),
        ("evaluation.metrics", {1: "bleu"}, "1 cannot name a metric"),
        ("evaluation.metrics", {"a b": "bleu", "a_b": "chrf"}, "of a b, a_b, two are one name"),
        ("evaluation.metrics", ["bleu"], "must map names to metrics"),
        ("data.bad_rows", "ignore", "data.bad_rows='ignore'"),
        ("data.train", {"source": "a"}, "data.train needs both source and target"),
        ("data.train", {"source": "a", "target": "b", "json": "c"}, "it has source and target and json"),
        ("data.train", {}, "it has none"),
        ("data.train", None, "data.train is missing"),
        ("data", 5, "data must be a mapping"),
        ("model", "t5", "model must be a mapping"),
        ("training", [1], "training must be a mapping"),
        ("model.preset", "vaswani-bse", r"^model\.preset='vaswani-bse' is not a preset; did you mean vaswani-base"),
        ("model.preset", ["t5"], r"^model\.preset=\['t5'\] must be a text"),
        ("model", {"from_pretrained": 5}, r"^model\.from_pretrained=5 must be a text"),
        ("model.d_model", "wide", r"^model\.d_model='wide' must be a whole number$"),
        ("model.d_kv", 1.5, r"^model\.d_kv=1\.5 must be a whole number or None$"),
        ("model.dropout", "0.1", r"^model\.dropout='0\.1' must be a number$"),
        ("model.norm", "foo", r"^model\.norm='foo' must be 'layernorm' or 'rmsnorm'$"),
        ("model.d_model", 0, r"^model\.d_model=0 must be at least 1$"),
        ("model.num_heads", 3, r"^model\.num_heads=3 must divide d_model=16, or set d_kv$"),
        ("threads", 0, "threads=0 must be a whole number of at least 1"),
        ("evaluation.num_beams", "four", "evaluation.num_beams='four' must be a whole number of at least 1"),
        ("evaluation.batch_size", 0, "evaluation.batch_size=0 must be a whole number of at least 1"),
        ("evaluation.samples", True, "evaluation.samples=True must be a whole number of at least 0"),
        ("evaluation.length_penalty", "long", "evaluation.length_penalty='long' must be a number"),
        ("evaluation.inputs", [True], r"evaluation.inputs=\[True\] must be a list of texts"),
    ],
)
def test_errors_name_the_path(path, value, message):
    with pytest.raises(ValueError, match=message):
        build_recipe(changed(path, value))


TEXT = {"text": "docs.txt"}
PARTS = [{"json": "a"}, {"json": "b"}]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"data.train": {"json": "a", "tag": 5}}, r"data\.train\.tag=5 must be a text"),
        ({"data.train": {"json": "a", "config": "x"}}, r"data\.train\.config has no use with json"),
        ({"data.train": {"source": "a", "target": "b", "source_field": "x"}}, "source_field has no use with source and target"),
        ({"data.train": {"json": "a", "limit": 0}}, r"data\.train\.limit=0 must be a whole number of at least 1"),
        ({"data.train": {"json": "a", "weight": 2}}, r"data\.train\.weight=2: only the parts of a mixture"),
        ({"data.train": {"json": "a", "target_language_in": "both"}}, "target_language_in='both' must be source or target"),
        ({"data.train": TEXT}, r"data\.train\.text are documents, which an objective needs"),
        ({"data.test": {"json": "c", "streaming": True}}, r"data\.test\.streaming: only training data are streamed"),
        ({"data.train": [{"json": "a"}]}, "data.train is a list of 1: a mixture needs two"),
        ({"data.train": [{"json": "a"}, {"jsn": "b"}]}, r"data\.train\[1\]\.jsn is no key of a recipe: did you mean json"),
        ({"data.train": [{"json": "a"}, {"json": "a"}]}, "two parts called 'a': give each a name"),
        ({"data.train": [{"json": "a", "weight": 1}, {"json": "b"}]}, "data.train: b has no weight, but others do"),
        ({"data.train": [{"json": "a", "weight": 0}, {"json": "b"}]}, r"data\.train\[0\]\.weight=0 must be more than 0"),
        ({"data.train": [{"json": "a", "streaming": True}, {"json": "b"}]}, "a is a stream, whose number of rows is not known"),
        ({"data.train": [{**part, "weight": 1} for part in PARTS], "data.cap": 5}, "belong to a mixture whose parts have no"),
        ({"data.temperature": 2}, "data.temperature=2 and data.cap=None belong to a mixture"),
        ({"data.train": PARTS, "data.temperature": 0}, "data.temperature=0 must be more than 0"),
        ({"data.train": PARTS, "data.cap": 0}, "data.cap=0 must be a whole number of at least 1"),
        ({"data.buffer_rows": 0}, "data.buffer_rows=0 must be"),
        ({"data.max_source_tokens": "many"}, "data.max_source_tokens='many' must be a whole number"),
        ({"data.train": {"json": "a", "alignment": "x"}}, r"data\.train\.alignment has no use with json"),
        ({"data.train": [{**PARTS[0], "alignment_field": "x"}, PARTS[1]]}, "some parts have alignments and others do not"),
        ({"data.train": {**PARTS[0], "alignment_field": "x", "source_prefix": "y"}}, "would shift the words"),
        ({"data.train": {**PARTS[0], "alignment_field": "x"}, "data.subwords": {"alpha": 1}}, "belong to one segmentation"),
        ({"data.test": {**PARTS[0], "alignment_field": "x"}}, "only training data are aligned"),
        ({"data.subwords": {}}, "data.subwords needs either dropout, for BPE, or alpha"),
        ({"data.subwords": {"dropout": 0.1, "alpha": 0.1}}, "data.subwords needs either dropout"),
        ({"data.subwords": {"dropout": 1.5}}, "data.subwords.dropout=1.5 is a probability: at most 1"),
        ({"data.subwords": {"alpha": -1}}, "data.subwords.alpha=-1 must be more than 0"),
        ({"data.subwords": {"dropout": 0.1, "sides": "left"}}, "data.subwords.sides='left'"),
        ({"data.subwords": {"dropuot": 0.1}}, r"data\.subwords\.dropuot is no key of a recipe: did you mean dropout"),
        ({"objective": {"name": "span_corrupton"}}, "objective.name='span_corrupton' is unknown; choose one of seq2seq, span_"),
        ({"objective": {"nam": "ul2"}}, r"objective\.nam is no key of a recipe: did you mean name"),
        ({"objective": {"name": "ul2", "density": 0.2}}, "objective.density has no use for ul2, which takes inputs_length, join"),
        ({"objective": {"density": 0.2}}, "objective.density has no use for seq2seq, which takes name"),
        ({"objective": {"name": "ul2", "inputs_length": 2}}, "objective.inputs_length=2 must be a whole number of at least 4"),
        ({"objective": {"name": "composition"}}, "objective.noises=None must be a list"),
        (
            {"objective": {"name": "composition", "noises": [{"name": "ul2"}]}},
            r"noises\[0\]=.* must be a mapping whose name is one",
        ),
        ({"objective": {"name": "composition", "noises": [{"name": "token_deletion", "shar": 1}]}}, r"noises\[0\]\.shar is no"),
        ({"objective": {"name": "bart"}}, "data.train has source and target, but the objective makes both of a document"),
        (
            {"objective": {"name": "bart"}, "data.train": {**TEXT, "documents": "page"}},
            "documents='page' must be line or paragraph",
        ),
        ({"objective": {"name": "bart"}, "data.train": {**TEXT, "tag": "x"}}, "tag has no use with text and an objective"),
        (
            {"objective": {"name": "bart"}, "data.train": {"json": "a", "source_field": "x"}},
            "source_field has no use with json and",
        ),
        (
            {"objective": {"name": "bart"}, "data.train": TEXT, "data.max_source_tokens": 5},
            "objective.inputs_length is the limit",
        ),
        ({"objective": {"name": "bart"}, "data.train": TEXT, "data.subwords": {"alpha": 1}}, "documents are tokenised once"),
        (
            {"objective": {"name": "causal_lm"}, "data.train": TEXT, "evaluation.inputs": ["x"]},
            "evaluation.inputs: the model of c",
        ),
    ],
)
def test_errors_of_data_and_objective(sections, message):
    raw = copy.deepcopy(SMALL)
    for path, value in sections.items():
        section, _, key = path.partition(".")
        if key:
            raw.setdefault(section, {})[key] = value
        else:
            raw[section] = value
    with pytest.raises(ValueError, match=message):
        build_recipe(raw)


def test_a_mixture_and_an_objective():
    recipe = build_recipe(changed("data.train", PARTS))
    assert [str(part) for part in recipe.data.parts] == ["a", "b"]
    assert recipe.without_end == "a mixture"
    raw = changed("data.train", TEXT) | {"objective": {"name": "span_corruption", "density": 0.2}}
    recipe = build_recipe(raw)
    assert recipe.without_end == "made anew each time (span_corruption)"
    assert (recipe.objective.density, recipe.objective.inputs_length) == (0.2, 512)
    assert build_recipe(SMALL).without_end is None
    tasks = build_recipe(changed("data.train", [PARTS[0], {**TEXT, "objective": {"name": "bart"}}]))
    assert [tasks.objective_of(part).name for part in tasks.data.parts] == ["seq2seq", "bart"]
    assert build_recipe(changed("data.train.streaming", True)).without_end == "a stream"


def test_errors_of_files_and_changes(tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text("a: [1")
    with pytest.raises(ValueError, match=r"bad\.yaml is not valid YAML"):
        load_recipe(bad)
    bad.write_text("just text")
    with pytest.raises(ValueError, match=r"bad\.yaml must hold a mapping"):
        load_recipe(bad)
    bad.write_text(yaml.safe_dump(SMALL))
    changes = {"training": "must read section.key=value", "output.x=1": "output is not a section", "threads=[1": "not valid YAML"}
    for change, message in changes.items():
        with pytest.raises(ValueError, match=message):
            load_recipe(bad, [change])
