"""Frozen layers and LoRA: what is trained, what is saved, and that merging changes nothing."""

import warnings

import pytest
import torch
from peft import AutoPeftModelForSeq2SeqLM, PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM

import transduct
from tiny_training import pairs, tiny_model, tiny_trainer
from transduct.modeling import TransductForMaskedLM
from transduct.training import TransductTrainingArguments
from transduct.training.adapters import (
    TARGETS,
    add_lora,
    finished_model,
    freeze_weights,
    prepare_weights,
    trained_share,
    with_weights_of,
)

transduct.register()
OPTIONS = dict(max_tokens_per_batch=60, schedule="constant", learning_rate=0.05, max_steps=6)


def trained_names(model):
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def untied_model(**fields):
    return tiny_model(tie_embeddings="none", **fields)


def logits(model):
    ids = torch.tensor([[4, 5, 6, 1], [7, 8, 1, 0]])
    with torch.no_grad():
        return model.eval()(input_ids=ids, decoder_input_ids=ids).logits


@pytest.mark.parametrize(
    ("parts", "prefixes"),
    [
        (["encoder"], ["model.encoder."]),
        (["model.encoder"], ["model.encoder."]),
        (["decoder.layers.0", "lm_head"], ["model.decoder.layers.0.", "lm_head."]),
        (["embeddings"], ["model.encoder.embed_tokens.", "model.decoder.embed_tokens."]),
        (["lm_head.weight"], ["lm_head.weight"]),
    ],
)
def test_frozen_parts(parts, prefixes):
    model = untied_model()
    everything = trained_names(model)
    freeze_weights(model, parts)
    frozen = {name for name in everything if any(name.startswith(prefix) for prefix in prefixes)}
    assert frozen
    assert trained_names(model) == everything - frozen


def test_learned_positions_are_embeddings_and_tied_weights_freeze_together():
    model = tiny_model(positions="learned", max_positions=9)
    freeze_weights(model, ["embeddings"])
    assert not any("embed" in name for name in trained_names(model))
    assert not model.lm_head.weight.requires_grad
    alike = tiny_model(decoder_layers=11)
    freeze_weights(alike, ["decoder.layers.1"])
    assert "model.decoder.layers.10.feed_forward.up_proj.weight" in trained_names(alike)


def test_frozen_weights_stay_and_others_move(tmp_path):
    model = untied_model()
    freeze_weights(model, ["encoder"])
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    tiny_trainer(tmp_path, model, **OPTIONS).train()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == name.startswith("model.encoder.")


def test_names_that_match_nothing_are_refused_with_their_neighbours():
    with pytest.raises(
        ValueError, match=r"'decoder\.layer\.0' matches no weight of this model: did you mean .*decoder\.layers\.0"
    ):
        freeze_weights(tiny_model(), ["decoder.layer.0"])
    with pytest.raises(ValueError, match="known are decoder, embeddings, encoder, lm_head"):
        freeze_weights(tiny_model(), ["xyzzy"])
    with pytest.raises(ValueError, match="leaves nothing to train"):
        freeze_weights(tiny_model(), ["encoder", "decoder"])
    with pytest.raises(ValueError, match=r"freeze='encoder' must be a list of names, such as \[encoder\]"):
        freeze_weights(tiny_model(), "encoder")


def test_the_share_that_is_trained():
    layer = torch.nn.Linear(3, 1)
    layer.bias.requires_grad_(False)
    assert trained_share(layer) == "trained: 3 of 4 parameters (75.00%)"


@pytest.mark.parametrize("target", [*TARGETS, ["k_proj", "down_proj"]])
@pytest.mark.parametrize("gated", [False, True])
def test_adapters_on_each_target(target, gated):
    model = add_lora(tiny_model(gated_ffn=gated), {"rank": 2, "target": target})
    names = {name.split(".lora_")[0].rpartition(".")[2] for name in trained_names(model)}
    expected = set(TARGETS[target] if isinstance(target, str) else target)
    assert names == (expected if gated else expected - {"gate_proj"})
    assert all("lora_" in name for name in trained_names(model))
    attentions = 3 * 2 if target == "default" else None  # self, self, cross; queries and values; of two factors each
    assert attentions is None or len(trained_names(model)) == 2 * attentions


def test_options_reach_peft():
    model = add_lora(
        untied_model(norm_position="pre"), {"rank": 3, "alpha": 5, "dropout": 0.25, "modules_to_save": ["lm_head", "final_norm"]}
    )
    config = model.peft_config["default"]
    assert (config.r, config.lora_alpha, config.lora_dropout) == (3, 5, 0.25)
    assert any("lm_head.modules_to_save" in name for name in trained_names(model))
    assert add_lora(tiny_model(), {"rank": 4}).peft_config["default"].lora_alpha == 8


@pytest.mark.parametrize("saved", [[], ["lm_head"]])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_train_save_load_and_merge(tmp_path, saved, checkpointing):
    base = untied_model() if saved else tiny_model()
    base.save_pretrained(tmp_path / "base")
    base = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "base")
    before = {name: parameter.detach().clone() for name, parameter in base.named_parameters()}
    model = add_lora(base, {"rank": 2, "target": "all", "modules_to_save": saved})
    trainer = tiny_trainer(tmp_path / "run", model, **OPTIONS, activation_checkpointing=checkpointing)
    untrained = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < untrained
    trained = logits(model)
    for name, parameter in model.get_base_model().named_parameters():
        if name.replace("base_layer.", "") in before:
            assert torch.equal(parameter, before[name.replace("base_layer.", "")])
    model.save_pretrained(tmp_path / "adapter")
    stored = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert all("lora_" in name or any(part in name for part in saved) for name in stored)
    loaded = AutoPeftModelForSeq2SeqLM.from_pretrained(tmp_path / "adapter")
    assert torch.equal(logits(loaded), trained)
    again = PeftModel.from_pretrained(AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    assert torch.equal(logits(again), trained)
    finished_model(model).save_pretrained(tmp_path / "merged")
    merged = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "merged")
    assert type(merged).__name__ == "TransductForConditionalGeneration"
    torch.testing.assert_close(logits(merged), trained, rtol=1e-4, atol=1e-5)
    assert merged.generate(torch.tensor([[4, 5, 1]]), max_new_tokens=4).shape[0] == 1


def test_checkpointing_changes_no_adapter(tmp_path):
    """The gradients are those without it: the encoder's input needs none, and its adapters are trained all the same."""
    results = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = add_lora(tiny_model(dropout=0.0), {"rank": 2, "target": "all"})
        trainer = tiny_trainer(tmp_path, model, **OPTIONS, activation_checkpointing=checkpointing)
        trainer.train()
        results.append({name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad})
    for name, parameter in results[0].items():
        torch.testing.assert_close(parameter, results[1][name], rtol=1e-4, atol=1e-6)
        assert "lora_B" not in name or parameter.abs().sum() > 0


def adapted(seed=0):
    torch.manual_seed(seed)
    return add_lora(tiny_model(), {"rank": 2, "dropout": 0.1})


def test_a_resumed_run_is_bit_equal_to_a_straight_one(tmp_path):
    straight = tiny_trainer(tmp_path / "straight", adapted(), **OPTIONS)
    straight.train()
    first = tiny_trainer(tmp_path / "stopped", adapted(), **OPTIONS, save_strategy="steps", save_steps=3)
    first.train()
    assert not (tmp_path / "stopped" / "checkpoint-3" / "model.safetensors").exists()
    resumed = tiny_trainer(tmp_path / "stopped", adapted(seed=99), **OPTIONS)
    resumed.train(resume_from_checkpoint=str(tmp_path / "stopped" / "checkpoint-3"))
    mine, theirs = dict(resumed.model.named_parameters()), dict(straight.model.named_parameters())
    for name in trained_names(straight.model):
        assert torch.equal(mine[name], theirs[name])
    reloaded = with_weights_of(adapted(seed=5), tmp_path / "stopped" / "checkpoint-6")
    assert torch.equal(logits(reloaded), logits(straight.model))


def test_weights_of_a_checkpoint_without_adapters(tmp_path):
    tiny_model(seed=4).save_pretrained(tmp_path)
    assert torch.equal(logits(with_weights_of(tiny_model(), tmp_path)), logits(tiny_model(seed=4)))


def test_arguments_prepare_the_model(tmp_path):
    said = []

    def arguments(**options):
        return TransductTrainingArguments(output_dir=str(tmp_path), use_cpu=True, **options)

    model = tiny_model()
    assert prepare_weights(model, arguments(), said.append) is model
    assert said == []
    prepare_weights(model, arguments(freeze=["encoder.layers"]), said.append)
    assert not any(name.startswith("model.encoder.layers") for name in trained_names(model))
    adapted_model = prepare_weights(tiny_model(), arguments(lora={"rank": 1}), said.append)
    assert isinstance(adapted_model, PeftModel)
    assert len(said) == 2
    assert all(line.startswith("trained: ") for line in said)
    with pytest.raises(ValueError, match="freeze and lora exclude each other"):
        prepare_weights(tiny_model(), arguments(freeze=["encoder"], lora={}))


@pytest.mark.parametrize("options", [{"freeze": ["encoder"]}, {"lora": {"rank": 2}}])
def test_a_trainer_whose_model_was_not_prepared_refuses(tmp_path, options):
    trainer = tiny_trainer(tmp_path, rows=pairs(), **OPTIONS, **options)
    with pytest.raises(ValueError, match="prepare_weights"):
        trainer.train()
    model = prepare_weights(tiny_model(), trainer.args)
    tiny_trainer(tmp_path, model, **OPTIONS, **options).train()


def test_an_encoder_alone_is_adapted_and_merged():
    model = TransductForMaskedLM(tiny_model().config)
    adapted = add_lora(model, {"rank": 2, "target": "all"})
    ids = torch.tensor([[4, 5, 6, 1]])
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    with torch.no_grad():
        wanted = adapted.eval()(input_ids=ids).logits
        found = finished_model(adapted)(input_ids=ids).logits
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_adapters_come_without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        add_lora(tiny_model(), {"rank": 2})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"r": 8}, r"lora\.r is unknown; its keys are rank"),
        ({"rank": 0}, r"lora\.rank=0 must be a whole number"),
        ({"alpha": -1}, r"lora\.alpha=-1 must be a number of at least 0"),
        ({"dropout": 1.0}, r"lora\.dropout=1.0 must be a number of at least 0, and below 1"),
        ({"target": "most"}, r"lora\.target='most' must be one of default, attention, all"),
        ({"target": 5}, r"lora\.target=5 must be a text or a list of texts"),
        ({"modules_to_save": "norms"}, r"lora\.modules_to_save='norms' must be a list of texts"),
        ({"target": ["q_prj"]}, "'q_prj' is no module of this model: q_proj"),
        ({"target": ["embed_positions"]}, "'embed_positions' is no linear layer"),
        ({"target": ["lm_head"]}, "'lm_head' shares its weights"),
        ({"modules_to_save": ["embed_tokens"]}, "'embed_tokens' shares its weights"),
        ({"modules_to_save": ["norms"]}, "'norms' is no module"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        add_lora(tiny_model(positions="learned", position_offset=2, max_positions=9), options)
