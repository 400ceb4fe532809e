"""Models in memory: what is kept beside the weights, and that nothing is printed."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    T5ForSequenceClassification,
)
from transformers.utils import logging

import transduct
from conversions import Case, build
from transduct import TransductConfig, TransductEncoderModel, TransductForConditionalGeneration
from transduct.convert import from_transformers, to_transformers
from transduct.convert.memory import export_model, import_model, quiet

SIZES = {"vocab_size": 40, "d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}


def original(model_class=T5ForConditionalGeneration, **values):
    return build(Case("", model_class, T5Config(**SIZES | values)))


def ids_of(model):
    ids = torch.arange(2, 22).view(2, 10)
    return {"input_ids": ids} | ({"decoder_input_ids": ids[:, :4]} if "Encoder" not in type(model).__name__ else {})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_data_type_is_kept_both_ways(dtype):
    theirs = original().to(dtype)
    ours = import_model(theirs)
    back = export_model(ours)
    assert {weight.dtype for weight in ours.parameters()} == {weight.dtype for weight in back.parameters()} == {dtype}
    assert ours.config.dtype == back.config.dtype == dtype


def test_weights_of_several_types_are_refused():
    theirs = original().half()
    theirs.encoder.block[0].layer[1].DenseReluDense.wo.float()
    with pytest.raises(ValueError, match=r"one floating-point type, not of torch.float16 \(.*\), torch.float32 \(.*wo.weight\)"):
        import_model(theirs)


def test_weights_without_numbers_are_refused():
    with torch.device("meta"):
        theirs = T5ForConditionalGeneration(T5Config(**SIZES))
    with pytest.raises(ValueError, match="must lie on one device, not on meta"):
        import_model(theirs)


@pytest.mark.parametrize("training", [False, True])
def test_the_mode_is_kept_both_ways(training):
    ours = import_model(original().train(training))
    assert ours.training == ours.model.encoder.training == training
    assert export_model(ours).training == training


def test_frozen_weights_stay_frozen_both_ways():
    theirs = original()
    theirs.shared.requires_grad_(False)
    theirs.decoder.block[1].requires_grad_(False)
    ours = import_model(theirs)
    assert not ours.get_input_embeddings().weight.requires_grad
    assert not any(weight.requires_grad for weight in ours.model.decoder.layers[1].parameters())
    assert all(weight.requires_grad for weight in ours.model.decoder.layers[0].parameters())
    back = export_model(ours)
    want = {name for name, weight in theirs.named_parameters() if not weight.requires_grad}
    assert {name for name, weight in back.named_parameters() if not weight.requires_grad} == want


def test_the_weights_are_copies():
    theirs = original()
    ours = import_model(theirs)
    back = export_model(ours)
    before = copy.deepcopy(theirs.state_dict())
    with torch.no_grad():
        for weight in (*ours.parameters(), *back.parameters()):
            weight.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in theirs.state_dict().items())


def test_tied_weights_are_one_and_are_stored_once():
    ours = import_model(original())
    assert ours.lm_head.weight is ours.get_input_embeddings().weight is ours.model.decoder.embed_tokens.weight
    back = export_model(ours)
    assert back.lm_head.weight is back.shared.weight


def test_the_generation_config_goes_along_as_a_copy():
    theirs = original()
    theirs.generation_config.num_beams, theirs.generation_config.forced_bos_token_id = 3, 9
    ours = import_model(theirs)
    assert ours.generation_config.to_dict() == theirs.generation_config.to_dict()
    ours.generation_config.num_beams = 5
    assert theirs.generation_config.num_beams == 3
    assert export_model(ours).generation_config.num_beams == 5


def test_nothing_is_printed_and_the_settings_of_logging_are_left_alone(capfd):
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    theirs = original()
    capfd.readouterr()
    to_transformers(from_transformers(theirs))
    assert capfd.readouterr() == ("", "")
    with pytest.raises(RuntimeError), quiet():
        raise RuntimeError
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (verbosity, bars)


def test_no_name_of_a_folder_is_invented():
    ours = import_model(original())
    assert ours.name_or_path == ours.config._name_or_path == ""


@pytest.mark.parametrize("model_class", [T5ForConditionalGeneration, BartForConditionalGeneration])
def test_a_resized_vocabulary_is_exported(model_class, tmp_path):
    if model_class is T5ForConditionalGeneration:
        theirs = original()
    else:
        sizes = dict.fromkeys(("encoder_layers", "decoder_layers"), 1) | dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 8)
        heads = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
        config = BartConfig(vocab_size=40, d_model=16, max_position_embeddings=32, **sizes, **heads)
        theirs = build(Case("", BartForConditionalGeneration, config))
    ours = import_model(theirs)
    ours.resize_token_embeddings(45, mean_resizing=False)
    back = to_transformers(ours)
    assert back.config.vocab_size == 45
    ours.save_pretrained(tmp_path)
    reloaded = TransductForConditionalGeneration.from_pretrained(tmp_path)
    assert export_model(reloaded).get_input_embeddings().weight.shape == (45, 16)


def test_a_model_that_was_trained_on_is_exported_with_its_new_weights():
    theirs = original()
    ours = import_model(theirs).train()
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    ids = torch.arange(2, 22).view(2, 10)
    ours(input_ids=ids, labels=ids[:, :4]).loss.backward()
    optimizer.step()
    back = to_transformers(ours).eval()
    with torch.no_grad():
        assert torch.allclose(back(**ids_of(back)).logits, ours.eval()(**ids_of(ours)).logits, atol=1e-5)
        assert not torch.allclose(back(**ids_of(back)).logits, theirs(**ids_of(theirs)).logits, atol=1e-3)


def test_a_model_goes_on_after_saving_and_loading(tmp_path):
    theirs = original()
    import_model(theirs).save_pretrained(tmp_path)
    back = export_model(TransductForConditionalGeneration.from_pretrained(tmp_path))
    assert type(back) is T5ForConditionalGeneration
    assert all(torch.equal(tensor, theirs.state_dict()[name]) for name, tensor in back.state_dict().items())


def test_adapters_must_be_merged_first():
    ours = import_model(original())
    attention = ours.model.encoder.layers[0].self_attention
    attention.q_proj = torch.nn.Sequential(attention.q_proj)
    with pytest.raises(ValueError, match=r"other tensors than its config says: .*q_proj.0.weight.*; merge adapters"):
        export_model(ours)


def test_weights_that_were_untied_since_are_not_dropped():
    ours = import_model(original())
    ours.lm_head.weight = torch.nn.Parameter(ours.lm_head.weight.flip(0))
    with pytest.raises(ValueError, match=r"lm_head.weight and .* are one matrix by tie_embeddings='all', but hold different"):
        export_model(ours)


def test_where_a_model_was_loaded_from_comes_back(tmp_path):
    original().save_pretrained(tmp_path)
    theirs = T5ForConditionalGeneration.from_pretrained(tmp_path)
    back = export_model(import_model(theirs))
    assert back.config.to_dict() == theirs.config.to_dict()


def test_another_class_of_an_imported_model_becomes_the_other_class_there(tmp_path):
    import_model(original()).save_pretrained(tmp_path)
    assert type(to_transformers(TransductEncoderModel.from_pretrained(tmp_path))) is T5EncoderModel


def test_labels_are_kept_and_may_change():
    theirs = original(
        T5ForSequenceClassification,
        id2label={0: "bad", 1: "good", 2: "fair"},
        label2id={"bad": 0, "good": 1, "fair": 2},
    )
    ours = import_model(theirs)
    assert ours.config.id2label == {0: "bad", 1: "good", 2: "fair"}
    assert ours.config.label2id == {"bad": 0, "good": 1, "fair": 2}
    ours.config.id2label = {0: "a", 1: "b", 2: "c"}
    ours.config.label2id = {"a": 0, "b": 1, "c": 2}
    back = export_model(ours)
    assert back.config.id2label == {0: "a", 1: "b", 2: "c"}
    assert back.config.label2id == {"a": 0, "b": 1, "c": 2}


SCRATCH = {
    "vocab_size": 40, "d_model": 16, "d_ff": 24, "num_heads": 4, "encoder_layers": 1, "decoder_layers": 2, "norm": "rmsnorm",
    "norm_position": "pre", "positions": "relative_bias", "attention_scale": "none", "attention_bias": False, "ffn_bias": False,
    "scale_embeddings": False, "dropout": 0.0,
}  # fmt: skip


@pytest.mark.parametrize("values", [{"scale_logits": True}, {"tie_embeddings": "source_target", "gated_ffn": True}, {"d_kv": 3}])
def test_a_model_from_scratch_becomes_a_t5_where_it_is_one(values, tmp_path):
    ours = TransductForConditionalGeneration(TransductConfig(**SCRATCH | values)).eval()
    theirs = to_transformers(ours, to="t5")
    theirs.save_pretrained(tmp_path)
    again = from_transformers(T5ForConditionalGeneration.from_pretrained(tmp_path))
    with torch.no_grad():
        want, got = ours(**ids_of(ours)).logits, again(**ids_of(again)).logits
    assert torch.equal(want, got)


def test_a_model_from_scratch_needs_to_know_what_it_should_become():
    ours = TransductForConditionalGeneration(TransductConfig(**SCRATCH))
    with pytest.raises(ValueError, match="say with `to` which one"):
        to_transformers(ours)
    with pytest.raises(ValueError, match="'wibble' is none of t5"):
        to_transformers(ours, to="wibble")


def test_what_is_no_model_is_refused():
    with pytest.raises(ValueError, match="must be a model of transformers, a folder or an id of the Hub, not int"):
        from_transformers(5)
    adapted = get_peft_model(original(), LoraConfig(target_modules=["q", "v"], task_type="SEQ_2_SEQ_LM"))
    with pytest.raises(ValueError, match=r"not PeftModelForSeq2SeqLM; merge its adapter first: merge_and_unload\(\)"):
        from_transformers(adapted)
    assert from_transformers(adapted.merge_and_unload()) is not None


@pytest.mark.parametrize(("wrap", "name"), [(torch.compile, "_orig_mod"), (torch.nn.DataParallel, "module")])
def test_a_model_inside_another_one_must_be_taken_out(wrap, name):
    with pytest.raises(ValueError, match=f"not {type(wrap(original())).__name__}; take its {name}"):
        from_transformers(wrap(original()))
    with pytest.raises(ValueError, match=f"must be a model of transduct, not .*; take its {name}"):
        to_transformers(wrap(from_transformers(original(), verify=False)))


def test_each_direction_takes_its_own_kind_of_model():
    with pytest.raises(ValueError, match="T5ForConditionalGeneration is no model of transduct"):
        to_transformers(original())
    with pytest.raises(ValueError, match="TransductForConditionalGeneration is a model of transduct already"):
        from_transformers(from_transformers(original(), verify=False))


def test_options_of_the_hub_and_of_folders_are_refused_for_a_model_in_memory():
    with pytest.raises(ValueError, match="revision and token"):
        from_transformers(original(), revision="main")
    with pytest.raises(ValueError, match="their_class='T5Model' belongs to a folder"):
        from_transformers(original(), their_class="T5Model")


def test_the_package_has_it_by_name():
    assert transduct.convert.from_transformers is from_transformers
    assert "convert" in dir(transduct)
