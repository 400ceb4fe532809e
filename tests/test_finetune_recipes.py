"""The recipes that fine-tune imported checkpoints, at toy size: `transduct import`, `train`, `export`, then transformers' class.

The checkpoints are tiny random ones of transformers' classes with tokenizers of their family; pieces of NumPy's documentation
stand for the texts of the Hub.
"""

import json
import math
from pathlib import Path

import datasets
import pytest
import torch
import transformers
from datasets import Dataset
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, BartConfig, GenerationConfig, M2M100Config, MBartConfig, T5Config

from english import paragraphs
from tiny_tokenizers import write_tokenizer
from transduct.cli.main import run
from transduct.training.recipe import load_recipe

EXAMPLES = Path(__file__).parents[1] / "examples"
SIZES = dict(d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=24, decoder_ffn_dim=24, encoder_attention_heads=2,
             decoder_attention_heads=2, max_position_embeddings=1026, init_std=0.3)  # fmt: skip
ORIGINALS = {
    "finetune-t5-summarization": (
        "t5",
        "T5ForConditionalGeneration",
        T5Config(vocab_size=328, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0),
    ),
    "finetune-bart-cnn": ("bart", "BartForConditionalGeneration", BartConfig(vocab_size=400, **SIZES, forced_eos_token_id=2)),
    "finetune-nllb": ("nllb", "M2M100ForConditionalGeneration", M2M100Config(vocab_size=312, scale_embedding=True, **SIZES)),
    "finetune-nllb of mBART": ("mbart", "MBartForConditionalGeneration", MBartConfig(vocab_size=330, **SIZES)),
}
"""For each recipe the tokenizer, the class and the config of the checkpoint that it begins with; for one, of another too."""


def write_original(name: str, folder: Path) -> Path:
    """The checkpoint that a recipe begins with, as transformers writes it."""
    tokenizer, class_name, config = ORIGINALS[name]
    write_tokenizer(tokenizer, folder)
    torch.manual_seed(0)
    model = getattr(transformers, class_name)(config)
    if tokenizer == "bart":  # as in the released config.json; the recipe sets its own
        model.generation_config = GenerationConfig(
            **model.generation_config.to_dict() | {"num_beams": 3, "max_length": 20, "no_repeat_ngram_size": 2}
        )
    model.save_pretrained(folder)
    return folder


def load_dataset(name, configuration=None, *, split, streaming=False):
    """`datasets.load_dataset` from local text, in the columns of what is asked for."""
    assert split in ("train", "validation", "test")
    texts = [text[:60] for text in paragraphs()][:24]
    if (name, configuration) == ("abisee/cnn_dailymail", "3.0.0"):
        rows = [{"article": f"{text} " * 30, "highlights": text[:20], "id": "1"} for text in texts]
    else:
        assert (name, configuration) == ("wmt/wmt16", "ro-en")
        rows = [{"translation": {"en": text, "ro": text[::-1]}} for text in texts]
    return Dataset.from_list(rows)


SHORT = [
    "training.max_steps=4", "training.eval_steps=2", "training.save_steps=2", "training.logging_steps=1", "training.bf16=false",
    "training.use_cpu=true", "training.gradient_accumulation_steps=1", "training.learning_rate=0.01", "training.warmup_steps=0",
    "evaluation.num_beams=2", "evaluation.samples=0", "data.train.limit=24", "data.validation.limit=4", "data.test.limit=4",
    "threads=1",
]  # fmt: skip
CHANGES = {
    "finetune-t5-summarization": [
        "training.per_device_train_batch_size=8", "data.max_source_tokens=40", "data.max_target_tokens=9",
        "evaluation.generation={max_length: 12}",
    ],
    "finetune-bart-cnn": [
        "training.max_tokens_per_batch=500", "data.max_source_tokens=40", "training.lr_scheduler_type=constant",
        "evaluation.generation={min_length: 6, max_length: 12, no_repeat_ngram_size: 3, early_stopping: true}",
    ],
    "finetune-nllb": ["training.max_tokens_per_batch=500", "evaluation.generation={max_length: 12}"],
}  # fmt: skip
CHANGES["finetune-nllb of mBART"] = [*CHANGES["finetune-nllb"], "training.predict_with_generate=true"] + [
    f"data.{split}.{side}_language={code}"
    for split in ("train", "validation", "test")
    for side, code in (("source", "en_XX"), ("target", "ro_RO"))
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The original, trained and exported folder of each recipe, made by the commands."""
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "load_dataset", load_dataset)
        for name in ORIGINALS:
            root = tmp_path_factory.mktemp(name.replace(" ", "-"))
            original, imported, out, exported = (root / step for step in ("original", "imported", "out", "exported"))
            write_original(name, original)
            assert run(["import", str(original), str(imported)]) == 0
            settings = [f"model.from_pretrained={imported}", f"tokenizer.from_pretrained={imported}", f"output={out}"]
            changes = [part for change in [*settings, *SHORT, *CHANGES[name]] for part in ("--set", change)]
            assert run(["train", str(EXAMPLES / name.split()[0] / "config.yaml"), *changes]) == 0
            assert run(["export", str(out / "model"), str(exported)]) == 0
            made[name] = original, out, exported
    return made


def losses(out: Path) -> list[float]:
    newest = max((out / "checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    history = json.loads((newest / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return [row["loss"] for row in history if "loss" in row]


@pytest.mark.slow
@pytest.mark.parametrize("name", ORIGINALS)
def test_a_recipe_goes_from_an_imported_checkpoint_to_an_exported_one(name, folders):
    original, out, exported = folders[name]
    found = losses(out)
    assert all(math.isfinite(loss) for loss in found)
    assert found[-1] < found[0]
    class_name = ORIGINALS[name][1]
    theirs, info = getattr(transformers, class_name).from_pretrained(exported, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    before = getattr(transformers, class_name).from_pretrained(original)
    assert any(not torch.equal(value, before.state_dict()[key]) for key, value in theirs.state_dict().items())  # it was trained
    ours = AutoModelForSeq2SeqLM.from_pretrained(out / "model")
    tokenizers = [AutoTokenizer.from_pretrained(folder) for folder in (original, out / "model", exported)]
    assert len({type(tokenizer) for tokenizer in tokenizers}) == 1
    texts = ["An array.", "The other one is longer."]
    batches = [dict(tokenizer(texts, return_tensors="pt", padding=True)) for tokenizer in tokenizers]
    assert all(torch.equal(batch["input_ids"], batches[0]["input_ids"]) for batch in batches)
    labels = torch.tensor([[5, 9, 2], [7, 6, 2]])
    with torch.no_grad():
        assert torch.allclose(ours(**batches[0], labels=labels).logits, theirs(**batches[0], labels=labels).logits, atol=1e-4)
    assert theirs.generate(**batches[0], max_length=9).tolist() == ours.generate(**batches[0], max_length=9).tolist()


@pytest.mark.slow
def test_settings_of_generation_come_along(folders):
    """Those of the recipe in place of those that the original had."""
    _, out, exported = folders["finetune-bart-cnn"]
    for folder in out / "model", exported:
        generation = GenerationConfig.from_pretrained(folder)
        kept = (generation.num_beams, generation.length_penalty, generation.min_length, generation.max_length)
        assert kept == (2, 2.0, 6, 12)
        assert (generation.no_repeat_ngram_size, generation.early_stopping, generation.forced_eos_token_id) == (3, True, 2)


@pytest.mark.slow
def test_languages_are_the_tokenizers_own(folders):
    _, out, exported = folders["finetune-nllb"]
    tokenizer = AutoTokenizer.from_pretrained(exported)
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == ("eng_Latn", "ron_Latn")
    rows = Dataset.from_file(str(next((out / "data").glob("train*.arrow"))))
    english, romanian, end = tokenizer.convert_tokens_to_ids(["eng_Latn", "ron_Latn", "</s>"])
    assert all(row["input_ids"][0] == english and row["input_ids"].count(english) == 1 for row in rows)
    assert all(row["labels"][0] == romanian and row["labels"][-1] == end for row in rows)


@pytest.mark.slow
def test_a_language_behind_the_target_starts_the_decoder(folders):
    """As mBART has it: a target ends with its language, and the decoder begins with that."""
    _, out, exported = folders["finetune-nllb of mBART"]
    tokenizer, model = AutoTokenizer.from_pretrained(exported), AutoModelForSeq2SeqLM.from_pretrained(out / "model")
    romanian = tokenizer.convert_tokens_to_ids("ro_RO")
    rows = Dataset.from_file(str(next((out / "data").glob("train*.arrow"))))
    assert all(row["labels"][-2:] == [tokenizer.eos_token_id, romanian] for row in rows)
    batch = dict(tokenizer([paragraphs()[0][:60]], text_target=["a word"], return_tensors="pt"))
    theirs = transformers.MBartForConditionalGeneration.from_pretrained(exported)
    with torch.no_grad():
        assert torch.allclose(model(**batch).logits, theirs(**batch).logits, atol=1e-4)
    ids = theirs.generate(**{name: batch[name] for name in ("input_ids", "attention_mask")}, decoder_start_token_id=romanian)
    predicted = [json.loads(line) for line in (out / "predictions" / "4.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(predicted) == 4
    ours = model.generate(**{name: batch[name] for name in ("input_ids", "attention_mask")}, decoder_start_token_id=romanian)
    assert ours.tolist() == ids.tolist()
    assert ids[0, 0] == romanian


def test_a_step_is_as_large_as_published():
    options = {"finetune-bart-cnn": (8, 32 * 2048), "finetune-nllb": (8, 64 * 250)}
    for name, (gpus, published) in options.items():
        recipe = load_recipe(EXAMPLES / name / "config.yaml")
        training = recipe.training
        tokens = gpus * training["gradient_accumulation_steps"] * training["max_tokens_per_batch"]
        longer_side = {"finetune-bart-cnn": 1024 / (1024 + 128), "finetune-nllb": 1 / 2}[name]
        assert tokens * longer_side == published
    training = load_recipe(EXAMPLES / "finetune-t5-summarization" / "config.yaml").training
    assert training["per_device_train_batch_size"] * training["gradient_accumulation_steps"] == 128
