"""What a run is put together from: the model that fits the objective and the tokenizer."""

import pytest
from rich.console import Console
from transformers import PreTrainedTokenizerFast

import transduct
from transduct.tokenization import TransductTokenizer
from transduct.training import Seq2SeqCollator
from transduct.training.building import build_arguments, build_collator, build_model, build_tokenizer, prepare_generation
from transduct.training.objectives import ObjectiveCollator
from transduct.training.recipe import build_recipe
from transduct.training.run_data import RunData


@pytest.fixture(scope="module")
def tokenizer():
    return TransductTokenizer.train(iter(["a b c"]), "words", mask_token="<mask>", bos_token="<s>", extra_ids=9)


def recipe_of(objective: str = "seq2seq", **model):
    sizes = dict(preset="vaswani-base", d_model=16, d_ff=16, num_heads=2, encoder_layers=1, decoder_layers=1)
    return build_recipe(
        {
            "output": "out",
            "model": {**sizes, **model},
            "tokenizer": {},
            "data": {"train": {"json": "x"}},
            "training": {},
            "objective": {"name": objective},
        }
    )


@pytest.mark.parametrize(
    ("objective", "kind"),
    [
        ("seq2seq", transduct.TransductForConditionalGeneration),
        ("span_corruption", transduct.TransductForConditionalGeneration),
        ("masked_lm", transduct.TransductForMaskedLM),
        ("causal_lm", transduct.TransductForCausalLM),
    ],
)
def test_the_model_fits_the_objective(tokenizer, objective, kind):
    recipe = recipe_of(objective)
    model = build_model(recipe, tokenizer)
    assert type(model) is kind
    assert model.config.vocab_size == len(tokenizer)
    collator = build_collator(recipe, tokenizer, model)
    assert type(collator) is (Seq2SeqCollator if objective == "seq2seq" else ObjectiveCollator)
    made = collator([{"input_ids": [4, 5, 1], "labels": [4, 5, 1]}])
    assert ("decoder_input_ids" in made) is (kind is transduct.TransductForConditionalGeneration)


def test_a_stock_tokenizer_has_one_vocabulary(tokenizer):
    stock = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, pad_token="<pad>", eos_token="</s>")
    config = build_model(recipe_of(), stock).config
    assert (config.vocab_size, config.decoder_vocab_size, config.pad_token_id) == (len(stock), None, stock.pad_token_id)


def test_fields_of_the_recipe_go_before_those_of_the_tokenizer(tokenizer):
    assert build_model(recipe_of(vocab_size=64, decoder_start_token_id=1), tokenizer).config.vocab_size == 64


def test_generation_starts_as_targets_do(tokenizer):
    """Those that start from their own last token start from the end of sequence (mBART)."""
    model = build_model(recipe_of(preset="mbart-large-50"), tokenizer)
    made = build_collator(recipe_of(), tokenizer, model)([{"input_ids": [4], "labels": [4, 5, tokenizer.eos_token_id]}])
    assert made["decoder_input_ids"][0, 0] == model.config.decoder_start_token_id == tokenizer.eos_token_id
    assert model.generation_config.decoder_start_token_id == tokenizer.eos_token_id
    model = build_model(recipe_of(preset="mbart-large-50", decoder_start_token_id=3), tokenizer)
    assert model.config.decoder_start_token_id == 3
    model = build_model(recipe_of(), tokenizer)
    assert model.config.decoder_start_token_id == tokenizer.pad_token_id


@pytest.mark.parametrize("settings", [{"max_new_tokens": 7}, {"max_length": 9, "min_length": 3, "no_repeat_ngram_size": 2}, {}])
def test_settings_of_generation_replace_those_of_the_model(tokenizer, settings):
    """A length that the model has must not go before the recipe's, said in another way."""
    recipe = recipe_of()
    recipe.evaluation.generation = settings
    model = build_model(recipe, tokenizer)
    model.generation_config.update(max_length=5, min_length=1, forced_eos_token_id=1)
    prepare_generation(model, recipe)
    found = model.generation_config
    expected = {"max_length": None if "max_new_tokens" in settings else 5, "min_length": 1, "max_new_tokens": None} | settings
    assert {name: getattr(found, name) for name in expected} == expected
    assert (found.num_beams, found.forced_eos_token_id) == (recipe.evaluation.num_beams, 1)


def test_options_of_rows_have_no_use_for_data_without_an_end(tmp_path):
    for name, value in (
        ("train_sampling_strategy", "sequential"),
        ("dataloader_drop_last", True),
        ("auto_find_batch_size", True),
    ):
        recipe = recipe_of("span_corruption")
        recipe.training.update({"max_steps": 1, name: value})
        with pytest.raises(ValueError, match=f"training.{name}: data.train is made anew each time"):
            build_arguments(recipe, tmp_path)


@pytest.mark.parametrize("key", ["bf16", "bf16_full_eval"])
def test_bfloat16_without_a_gpu_says_what_to_do(tmp_path, monkeypatch, key):
    monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: False)
    recipe = recipe_of()
    recipe.training[key] = True
    with pytest.raises(ValueError, match=rf"^training\.{key}: there is no GPU .*--set training\.{key}=false"):
        build_arguments(recipe, tmp_path)
    recipe.training["use_cpu"] = True
    assert getattr(build_arguments(recipe, tmp_path), key)


def test_the_best_metric_must_be_measured(tmp_path):
    recipe = recipe_of()
    recipe.training.update(prediction_loss_only=True, metric_for_best_model="bleu")
    with pytest.raises(ValueError, match="metric_for_best_model='bleu' is not measured: choose one of loss"):
        build_arguments(recipe, tmp_path)


@pytest.mark.parametrize("source", ["./nope", "/nope", "a/b/c"])
def test_a_folder_that_is_not_there_is_named(tokenizer, tmp_path, source):
    recipe = recipe_of()
    recipe.model = {"from_pretrained": source}
    with pytest.raises(
        ValueError, match=rf"^model\.from_pretrained='{source}' is no folder, seen from .*, and no name of the Hub"
    ):
        build_model(recipe, tokenizer)
    recipe.model = {"from_pretrained": str(tmp_path)}
    with pytest.raises(ValueError, match=r"^model\.from_pretrained='.*' cannot be loaded: "):
        build_model(recipe, tokenizer)


def test_changes_of_a_loaded_model_are_named(tokenizer, tmp_path):
    build_model(recipe_of(), tokenizer).save_pretrained(tmp_path)
    recipe = recipe_of()
    recipe.model = {"from_pretrained": str(tmp_path), "num_heads": 3}
    with pytest.raises(ValueError, match=r"^model\.num_heads=3 must divide d_model=16"):
        build_model(recipe, tokenizer)


def test_errors_of_the_tokenizer_and_of_arguments_have_their_path(tmp_path):
    recipe = recipe_of()
    recipe.tokenizer = {"kind": "words", "extra_ids": -1}
    data = RunData(recipe, tmp_path, 0, Console(quiet=True))
    with pytest.raises(ValueError, match=r"^tokenizer\.extra_ids=-1 must be"):
        build_tokenizer(recipe, data, tmp_path / "tokenizer")
    recipe.training = {"packing": True}
    with pytest.raises(ValueError, match=r"^training\.packing=True needs max_tokens_per_batch"):
        build_arguments(recipe, tmp_path)
