"""Options of fairseq as its versions wrote them, and tensors under the names of the newest one."""

import argparse

import pytest
import torch

from transduct.convert.fairseq_options import choose_head, modern_names, read_saved

MODEL = {"encoder.embed_tokens.weight": torch.ones(2, 2)}


def options(tmp_path, **saved) -> dict:
    torch.save({"model": MODEL, **saved}, tmp_path / "model.pt")
    return read_saved(tmp_path / "model.pt").options


def test_a_namespace_of_all_arguments(tmp_path):
    args = argparse.Namespace(arch="transformer", task="translation", source_lang="de", dropout=0.1)
    assert options(tmp_path, args=args, cfg=None) == vars(args)


def test_a_flat_config(tmp_path):
    cfg = {
        "_name": None,
        "model": argparse.Namespace(_name="bart_large", arch="bart_large", encoder_layers=12, source_lang=None),
        "task": {"_name": "denoising", "tokens_per_sample": 512, "encoder_layers": 3},
        "optimization": {"lr": [0.1]},
    }
    found = options(tmp_path, args=None, cfg=cfg)
    assert (found["arch"], found["task"], found["encoder_layers"]) == ("bart_large", "denoising", 12)
    assert found["tokens_per_sample"] == 512
    assert "lr" not in found


def test_a_config_in_groups(tmp_path):
    model = {
        "_name": "transformer",
        "dropout": 0.3,
        "encoder": {"embed_dim": 512, "layers": 6, "learned_pos": False},
        "decoder": {"embed_dim": 512, "output_dim": 512, "layerdrop": 0.2},
        "quant_noise": {"pq": 0.0, "scalar": 0.0},
    }
    found = options(tmp_path, cfg={"model": model, "task": {"_name": "translation", "source_lang": "de"}})
    assert (found["encoder_embed_dim"], found["encoder_layers"], found["decoder_layerdrop"]) == (512, 6, 0.2)
    assert (found["quant_noise_pq"], found["dropout"], found["source_lang"]) == (0.0, 0.3, "de")


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ({"args": argparse.Namespace(), "model": None}, 'must hold "model" and either "args" or "cfg"'),
        ({"model": MODEL}, 'must hold "model" and either "args" or "cfg"'),
        ([1, 2], 'must hold "model" and either "args" or "cfg"'),
        ({"model": {"a": 1}, "args": argparse.Namespace()}, '"model" must hold nothing but tensors'),
        ({"model": MODEL, "args": None, "cfg": None}, "holds no options"),
        ({"model": MODEL, "cfg": {"task": {}}}, "holds no options"),
    ],
)
def test_other_files_are_refused(saved, message, tmp_path):
    torch.save(saved, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=message):
        read_saved(tmp_path / "model.pt")


def test_old_names_become_new_ones():
    packed = torch.arange(18).view(9, 2)
    state = {
        "decoder.layers.0.encoder_attn.in_proj_weight": packed,
        "decoder.layers.0.encoder_attn.in_proj_bias": torch.arange(9),
        "decoder.layers.0.layer_norms.1.weight": torch.ones(3),
        "encoder.layers.2.layer_norms.1.bias": torch.ones(3),
        "decoder.embed_out": torch.ones(4, 3),
        "decoder.layers.0.fc1.bias": torch.ones(3),
    }
    modern = modern_names(state)
    assert torch.equal(modern["decoder.layers.0.encoder_attn.k_proj.weight"], packed[3:6])
    assert torch.equal(modern["decoder.layers.0.encoder_attn.v_proj.bias"], torch.arange(6, 9))
    rest = {name for name in modern if "_proj." not in name or "output" in name}
    assert rest == {
        "decoder.layers.0.encoder_attn_layer_norm.weight", "encoder.layers.2.final_layer_norm.bias",
        "decoder.output_projection.weight", "decoder.layers.0.fc1.bias",
    }  # fmt: skip


def test_a_norm_beyond_those_of_a_layer_keeps_its_name():
    assert set(modern_names({"encoder.layers.0.layer_norms.2.weight": torch.ones(1)})) == {
        "encoder.layers.0.layer_norms.2.weight"
    }


def test_a_head_is_chosen_by_its_name():
    state = {f"classification_heads.mnli.{name}": torch.ones(1) for name in ("dense.weight", "out_proj.bias")} | MODEL
    assert set(choose_head(state, "mnli", "x")) == {
        "classification_head.dense.weight", "classification_head.out_proj.bias", "encoder.embed_tokens.weight",
    }  # fmt: skip
    assert choose_head(MODEL, None, "x") is MODEL
    with pytest.raises(ValueError, match=r"classification_head='mnli' is none of those in x: \[\]"):
        choose_head(MODEL, "mnli", "x")
