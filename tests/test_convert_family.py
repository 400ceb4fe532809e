"""What a family says: its classes, its names for our tensors, and how ties are read from the tensors."""

import re

import pytest
import torch
import transformers

from transduct import TransductConfig, modeling
from transduct.convert.checkpoint import Checkpoint
from transduct.convert.families import FAMILIES, NOT_YET, family_of
from transduct.convert.family import Names, read_ties, their_names

ONE, TWO, THREE = (torch.full((3, 2), float(number)) for number in (1, 2, 3))
NAMES = Names("{stack}.{index}", {}, {})


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_classes_exist_on_both_sides(family):
    assert family.model_type in transformers.CONFIG_MAPPING
    assert family_of(family.model_type) is family
    for theirs, (ours, _) in family.classes.items():
        assert hasattr(transformers, theirs)
        assert hasattr(modeling, ours)
        assert family.our_class(theirs) == ours
        assert family.our_class(family.their_class(ours)) == ours


@pytest.mark.parametrize("model_type", NOT_YET)
def test_families_that_are_not_supported_yet_say_what_differs(model_type):
    assert model_type in transformers.CONFIG_MAPPING
    with pytest.raises(
        ValueError, match=rf"x: model_type='{model_type}' is not supported yet: it has {re.escape(NOT_YET[model_type])}"
    ):
        family_of(model_type, "x")


def test_unknown_families_and_classes_are_named_with_the_known_ones():
    with pytest.raises(ValueError, match="model_type='bert' is none of t5, "):
        family_of("bert")
    with pytest.raises(ValueError, match=r"BertModel has no counterpart in transduct.*T5ForConditionalGeneration"):
        FAMILIES["t5"].our_class("BertModel")
    with pytest.raises(ValueError, match=r"TransductForCausalLM has no counterpart among transformers' t5.*TransductModel"):
        FAMILIES["t5"].their_class("TransductForCausalLM")


@pytest.mark.parametrize(
    ("tensors", "tie"),
    [
        ({"shared": ONE}, "all"),
        ({"lm_head": ONE}, "all"),
        ({"decoder.embed_tokens": ONE}, "all"),
        ({"shared": ONE, "encoder.embed_tokens": ONE, "decoder.embed_tokens": ONE, "lm_head": ONE.clone()}, "all"),
        ({"shared": ONE, "lm_head": TWO}, "source_target"),
        ({"decoder.embed_tokens": ONE, "lm_head": TWO}, "source_target"),
        ({"model.shared": ONE, "lm_head": TWO}, "source_target"),
        ({"encoder.embed_tokens": ONE, "decoder.embed_tokens": TWO}, "target_output"),
        ({"encoder.embed_tokens": ONE, "decoder.embed_tokens": TWO, "lm_head": TWO.clone()}, "target_output"),
        ({"encoder.embed_tokens": ONE, "decoder.embed_tokens": TWO, "lm_head": THREE}, "none"),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_ties_are_read_from_the_tensors(tensors, tie):
    state = {f"{name}.weight": tensor for name, tensor in tensors.items()}
    assert read_ties(Checkpoint.of_state_dict(state, "x"), NAMES) == tie


@pytest.mark.parametrize("side", ["encoder.embed_tokens", "decoder.embed_tokens"])
def test_a_side_that_differs_from_the_shared_matrix_is_refused(side):
    state = {"shared.weight": ONE, f"{side}.weight": TWO}
    with pytest.raises(ValueError, match=f"x: {side}.weight and shared.weight should be one matrix, but differ"):
        read_ties(Checkpoint.of_state_dict(state, "x"), NAMES)


def test_a_checkpoint_without_embeddings_is_refused():
    with pytest.raises(ValueError, match="x holds no embeddings"):
        read_ties(Checkpoint.of_state_dict({"other": ONE}, "x"), NAMES)


def test_names_follow_from_the_family_and_a_tensor_without_one_is_named():
    family, config = FAMILIES["t5"], TransductConfig(tie_embeddings="source_target")
    table = their_names(
        family,
        config,
        "T5ForSequenceClassification",
        ["model.encoder.embed_tokens.weight", "model.decoder.layers.1.cross_attention.q_proj.weight"],
    )
    assert table == {
        "model.encoder.embed_tokens.weight": tuple(
            f"transformer.{name}.weight" for name in ("shared", "encoder.embed_tokens", "decoder.embed_tokens")
        ),
        "model.decoder.layers.1.cross_attention.q_proj.weight": ("transformer.decoder.block.1.layer.1.EncDecAttention.q.weight",),
    }
    with pytest.raises(ValueError, match=r"t5 models have no place for model.encoder.embedding_norm.weight"):
        their_names(family, config, "T5Model", ["model.encoder.embedding_norm.weight"])
