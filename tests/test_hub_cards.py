"""A card says what is known and nothing else, is valid Markdown and metadata, and never takes the place of a person's."""

import getpass
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard

from configs import tiny
from transduct import describe
from transduct.hub import Said, facts_of, write_card
from transduct.hub.cards import cell, code, evaluated_in, fenced, is_ours, license_in, said_in, table
from transduct.hub.facts import Facts, Measurement, Result, described

SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.5.1"
HISTORY = [
    {"loss": 3.0 - step / 1000, "step": step, "epoch": step / 100, "target_tokens_per_second": 1000.0 + step}
    for step in range(10, 1000, 10)
]
EVALUATIONS = [
    {"eval_loss": 2.0, "eval_BLEU": 10.0 + step / 100, "eval_runtime": 3.0, "step": step} for step in range(30, 1000, 30)
]


def facts(**changes) -> Facts:
    config = tiny(architectures=["TransductForConditionalGeneration"])
    values = dict(config=config, model_class="TransductForConditionalGeneration", description=describe(config))
    return Facts(**values | changes)


def measured(name: str = "BLEU", metric: str = "bleu", signature: str | None = SIGNATURE) -> Result:
    return Result("wmt14, de-en, split test", 3003, [Measurement(name, metric, 27.254321, signature, 0.61)])


def test_metadata_that_the_hub_reads():
    card = write_card(facts(results=[measured()]), "ann/my-model", Said("apache-2.0", ["de", "en"], "translation"))
    data = ModelCard(card).data
    assert (data.license, data.language, data.pipeline_tag, data.library_name) == (
        "apache-2.0", ["de", "en"], "translation", "transformers",
    )  # fmt: skip
    assert "transduct" in data.tags
    (result,) = data.eval_results
    assert (data.model_name, result.task_type, result.dataset_name) == ("my-model", "translation", "wmt14, de-en, split test")
    assert (result.metric_type, result.metric_value, result.metric_name) == ("bleu", 27.2543, "BLEU")
    assert result.metric_args == {"signature": SIGNATURE}
    assert f"`{SIGNATURE}`".replace("|", "\\|") in card
    assert "27.2543 ± 0.6100" in card


def test_what_is_not_known_is_not_said():
    card = write_card(facts(), "ann/my-model")
    data = ModelCard(card).data.to_dict()
    assert set(data) == {"library_name", "tags"}
    assert "licence is not stated" in card
    for heading in ("## Results", "## Data", "## Training"):
        assert heading not in card
    assert "licence is not stated" not in write_card(facts(), "ann/my-model", Said("mit"))


def test_the_numbers_are_those_of_describe():
    card = write_card(facts(), "ann/my-model")
    counted = describe(tiny())
    assert f"of {counted.parameters:,} parameters" in card
    for part, count in counted.parameters_by_part.items():
        assert not count or f"| {count:,} |" in card, part
    assert f"| {counted.multiply_adds_per_target_token:,} |" in card


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("TransductForConditionalGeneration", "2 of the encoder, 2 of the decoder"),
        ("TransductEncoderModel", "2 of the encoder"),
        ("TransductForCausalLM", "2 of the decoder"),
    ],
)
def test_the_layers_are_those_of_the_class(name, layers):
    card = write_card(facts(model_class=name, description=described(tiny(), name)), "ann/my-model")
    assert f"| layers | {layers} |" in card


def test_the_curve_is_short_and_ends_at_the_end():
    card = write_card(facts(history=[*HISTORY, *EVALUATIONS]), "ann/my-model")
    rows = [line for line in card.splitlines() if line.startswith(("| 30 |", "| 990 |"))]
    assert rows == ["| 30 | 2.9700 | 2.0000 | 10.3000 |", "| 990 | 2.0100 | 2.0000 | 19.9000 |"]
    header = card.index("| step | training loss | validation loss | validation BLEU |")
    assert card[header:].split("\n\n")[0].count("\n") == 1 + 12
    assert "990 steps, 9.90 epochs, at 1,500 target tokens a second" in card
    alone = write_card(facts(history=HISTORY), "ann/my-model")
    assert "| step | training loss |" in alone
    assert "| 10 | 2.9900 |" in alone


def test_data_recipe_and_command():
    recipe = {
        "model": {"from_pretrained": "google-t5/t5-small"},
        "data": {"train": [{"json": "a.jsonl"}, {"text": "b.txt", "limit": 5000}], "test": {"dataset": "wmt14"}},
        "evaluation": {"inputs": ["```", "````"]},
    }
    card = write_card(facts(recipe=recipe), "ann/my-model")
    assert "- Trained on a.jsonl.\n- Trained on b.txt, the first 5,000 rows.\n- Tested on wmt14, split train." in card
    assert "trained further from `google-t5/t5-small`" in card
    assert "`transduct train recipe.yaml`" in card
    block = card.split("`````yaml\n")[1].split("\n`````\n")[0]
    assert yaml.safe_load(block) == recipe


def test_an_imported_model():
    config = tiny(origin={"family": "marian", "class": "MarianMTModel", "config": {}})
    card = write_card(facts(config=config, has_original_card=True), "ann/my-model")
    assert "imported from a checkpoint of marian (MarianMTModel)" in card
    assert "README.original.md; its terms go on to hold" in card


def test_what_an_import_has_noted():
    config = tiny(origin={"family": "t5", "class": "T5ForConditionalGeneration", "config": {}})
    noted = {"source": "google-t5/t5-small", "commit": "df1b051c", "checked": ["logits: they differ by 1e-06 at most"]}
    card = write_card(facts(config=config, imported=noted), "ann/my-model")
    assert ModelCard(card).data.base_model == "google-t5/t5-small"
    assert "(T5ForConditionalGeneration), `google-t5/t5-small` at df1b051c." in card
    assert "- logits: they differ by 1e-06 at most" in card
    local = write_card(facts(config=config, imported=noted | {"commit": None, "checked": None}), "ann/my-model")
    assert ModelCard(local).data.base_model is None
    assert "## Import" not in local


@pytest.mark.parametrize(
    ("recipe", "tag", "languages"),
    [
        ({"data": {"test": {"source_language": "pt-BR", "target_language": "zh-CN"}}}, "translation", ["pt", "zh"]),
        ({"data": {"test": {"source_language": ">>de<<", "target_language": "en_XX"}}}, "translation", ["en"]),
        ({}, None, None),
        ({"data": {"test": {"source_language": "de", "target_language": "en"}}}, "translation", ["de", "en"]),
        ({"data": {"train": {"source_language": "deu_Latn", "target_language": "eng_Latn"}}}, "translation", ["deu", "eng"]),
        ({"data": {"train": {"target_language": "en"}}}, None, ["en"]),
    ],
)
def test_languages_of_a_recipe(recipe, tag, languages):
    data = ModelCard(write_card(facts(recipe=recipe), "ann/my-model")).data
    assert (data.pipeline_tag, data.language) == (tag, languages)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"license": "Apache 2.0"}, "license='Apache 2.0' must be the Hub's own word"),
        ({"task": "Translation"}, "task='Translation' must be the Hub's own word"),
        ({"languages": ["pt-BR"]}, "language='pt-BR' must be a code of ISO 639 alone"),
        ({"languages": ["en", "English"]}, "language='English' must be a code of ISO 639"),
    ],
)
def test_words_that_the_hub_does_not_take(said, message):
    with pytest.raises(ValueError, match=message):
        Said(**said)


def test_a_card_is_known_as_ours_until_somebody_changes_it():
    card = write_card(facts(), "ann/my-model", Said("mit"))
    assert is_ours(card)
    assert is_ours(card.rstrip())  # as an editor or the Hub may leave it
    assert license_in(card) == "mit"
    for changed in (
        card.replace("my-model", "mine"),
        card.replace("license: mit", "license: gpl"),
        card.replace("\n<!--", "\nMore of it.\n<!--"),
        card + "More of it.\n",
        "# A model\n",
        "",
    ):
        assert not is_ours(changed)
    assert license_in("# A model\n") is None


def test_what_a_card_says_is_read_back():
    said = Said("mit", ("de", "en"), "translation")
    card = write_card(facts(results=[measured()]), "ann/my-model", said)
    assert said_in(card) == said
    assert evaluated_in(card) == ["wmt14, de-en, split test"]


@pytest.mark.parametrize(
    "card",
    [
        "",
        "# A model",
        "---\nlicense: [a, b]\nlanguage: English\n---\n",
        "---\nlanguage: 5\n---\n",
        "---\n1: 2\ntags: 5\neval_results: 5\nto_dict: 5\nlanguage: [[en], {en: en}, true, 2020-01-01]\n---\n",
        "---\nlanguage: !!python/object/apply:os.getcwd []\n---\n",
        "---\na: &a [*a]\nlanguage: *a\nmodel-index: *a\n---\n",
        "---\nx: " + "[" * 9999 + "\n---\n",
        "---\nmodel-index: [5, {results: 5}, {results: [5, {}, {dataset: 5}, {dataset: {name: [1]}}]}]\n---\n",
        "---\nx: [\n---\n",
        "---\n- x\n---\n",
    ],
)
def test_a_card_of_whatever_form_is_read(card):
    assert said_in(card) == Said()
    assert evaluated_in(card) == []


def test_aliases_of_aliases_take_no_time():
    """Written out, this list has 9^40 elements."""
    names = [f"n{number}" for number in range(41)]
    lines = [f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in pairwise(names)]
    card = "\n".join(["---", "n0: &n0 [en]", *lines, "language: *n40", "model-index: *n40", "license: mit", "---", ""])
    assert said_in(card) == Said("mit")
    assert evaluated_in(card) == []


def test_norwegian_is_a_language():
    """In YAML, no is false unless it stands in quotes."""
    assert said_in("---\nlanguage: no\n---\n").languages == ("no",)
    assert said_in("---\r\nlanguage:\r\n- no\r\n- en\r\n---\r\n# A model").languages == ("no", "en")
    assert said_in(write_card(facts(), "ann/my-model", Said("mit", ("no",)))).languages == ("no",)


# ---- texts of all kinds, and what must not be told ----------------------------------------------------------------------------
NASTY = "a|b <script>alert(1)</script> [x](javascript:1)\n# heading & `code`"


def test_texts_stay_what_they_are():
    assert cell(NASTY) == "a\\|b &lt;script>alert(1)&lt;/script> \\[x\\](javascript:1) # heading &amp; \\`code\\`"
    assert cell("![x](http://elsewhere.example/x.png)") == "!\\[x\\](http://elsewhere.example/x.png)"
    assert cell("\\[x](y) *a* _b_ c_d ~~e~~") == "\\\\\\[x\\](y) \\*a\\* \\_b\\_ c_d \\~\\~e\\~\\~"
    assert cell("a\x1b[2J\u202eb") == "a\\\\x1b\\[2J\\\\u202eb"
    assert cell(cell(NASTY)) == cell(NASTY)
    assert (code("nrefs:1|tok:13a"), code("a`b"), code("<b>")) == ("`nrefs:1\\|tok:13a`", "a\\`b", "&lt;b>")
    assert table(("x", "y"), [(NASTY, "1")]).count("\n") == 2
    assert fenced("text", "a ``` b").startswith("````text\n")
    result = Result(NASTY, 3, [Measurement(NASTY, "bleu", 1.0, NASTY)])
    recipe = {"data": {"train": {"dataset": NASTY}}, "evaluation": {"inputs": [NASTY]}}
    card = write_card(facts(recipe=recipe, results=[result]), "ann/my-model")
    assert (
        "<script>"
        not in card.replace(fenced("yaml", yaml.safe_dump(recipe, sort_keys=False).rstrip()), "").split("## Results")[1]
    )
    assert ModelCard(card).data.eval_results[0].metric_name == NASTY


def test_no_fact_is_a_link_or_a_picture():
    picture = "![x](http://elsewhere.example/x.png)"
    origin = {"family": picture, "class": picture}
    recipe = {"data": {"train": {"dataset": picture, "source_language": picture, "target_language": picture}}}
    known = facts(
        config=tiny(origin=origin),
        recipe={**recipe, "model": {"from_pretrained": picture}},
        results=[Result(picture, 3, [Measurement(picture, "bleu", 1.0, picture)])],
        history=[{"step": 1, "loss": 1.0}, {"step": 1, f"eval_{picture}": 1.0}],
        imported={"source": picture, "commit": picture, "checked": [picture]},
    )
    text = write_card(known, "ann/my-model").split("---\n", 2)[2]
    outside = re.sub(r"^(```+)\w*\n.*?\n\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert outside.count("http://elsewhere.example/x.png") >= 10
    assert "![" not in outside


def test_no_token_no_path_and_no_user_name(tmp_path):
    token, home = "hf_" + "Ab1" * 10, str(Path.home() / "somewhere" / "else")
    tiny(origin=None).save_pretrained(tmp_path / "model")
    recipe = {
        "output": home,
        "model": {"from_pretrained": home},
        "data": {
            "train": {"json": f"{home}/train.jsonl", "name": f"from {home}/x"},
            "test": {"function": f"{home}/data.py:pairs", "arguments": {"path": f"{tmp_path}/x.txt", "api_key": token}},
        },
        "training": {"hub_token": token, "logging_dir": home, "run_name": f"run of {token}"},
        "evaluation": {"metrics": {f"BLEU {home}/y": "bleu"}, "inputs": [f"see {home}/z", token]},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (tmp_path / "metrics.json").write_text(json.dumps({"metrics": {f"BLEU {home}/y": 1.0}, "examples": 1}))
    card = write_card(facts_of(tmp_path / "model"), "ann/my-model")
    assert token not in card
    for part in (str(tmp_path), str(Path.home()), "somewhere", f"/{getpass.getuser()}/"):
        assert part not in card
    assert "train.jsonl" in card


def test_a_token_that_hides_among_the_facts_stops_the_card():
    result = Result("data", 1, [Measurement("hf_" + "x" * 30, "bleu", 1.0)])
    with pytest.raises(ValueError, match="the card would hold a token"):
        write_card(facts(results=[result]), "ann/my-model")


def test_a_token_of_any_form_stops_the_card():
    known = facts(recipe={"data": {"train": {"json": "of-no-known-form.jsonl"}}})
    with pytest.raises(ValueError, match="the card would hold a token"):
        write_card(known, "ann/my-model", token="of-no-known-form")
