"""Which tensors of another family are which of ours, and what must be there."""

import copy

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from conversions import Case, build
from transduct import TransductConfig
from transduct.convert.checkpoint import Checkpoint
from transduct.convert.families import FAMILIES
from transduct.convert.models import Conversion, export_plan, import_plan

CONFIG = T5Config(vocab_size=40, d_model=16, d_kv=6, d_ff=24, num_layers=2, num_heads=4, decoder_start_token_id=0)
CLASS = "T5ForConditionalGeneration"


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    return dict(build(Case("", T5ForConditionalGeneration, CONFIG)).state_dict())


def checkpoint(state, **changed):
    return Checkpoint.of_state_dict(state | changed, "x")


def plan_of(state) -> Conversion:
    return import_plan(CONFIG.to_dict(), CLASS, checkpoint(state), "x")


def test_each_tensor_of_either_side_has_exactly_one_on_the_other(state):
    plan = plan_of(state)
    table = plan.table()
    ours = plan.our_class(plan.config)
    assert set(table) == {name for name in ours.state_dict() if name not in ours.all_tied_weights_keys}
    theirs = [name for names in table.values() for name in names]
    assert len(theirs) == len(set(theirs))
    assert set(theirs) == set(state)


def test_tensors_go_there_and_back(state):
    plan = plan_of(state)
    ours = dict(plan.to_ours(checkpoint(state)))
    back = dict(plan.to_theirs(ours))
    assert all(torch.equal(tensor, state[name]) for name, tensor in back.items())
    assert dict(plan.to_theirs(Checkpoint.of_state_dict(ours, "y"))).keys() == back.keys()
    assert set(state) - set(back) == {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"}


def test_missing_and_unexpected_tensors_are_named_together(state):
    plan = plan_of(state)
    spoilt = {name: tensor for name, tensor in state.items() if not name.startswith("encoder.final")}
    with pytest.raises(ValueError, match=r"missing: \['encoder.final_layer_norm.weight'\]; .*nothing here uses: \['more'\]"):
        list(plan.to_ours(checkpoint(spoilt, more=torch.ones(1))))


def test_one_matrix_under_two_names_with_different_values_is_refused(state):
    plan = plan_of(state)
    other = {"lm_head.weight": state["lm_head.weight"].flip(0)}
    with pytest.raises(ValueError, match=r"x: shared.weight and lm_head.weight should be one matrix, but hold different values"):
        list(plan.to_ours(checkpoint(state, **other)))


def test_computed_tables_must_agree_with_what_is_computed(state):
    family = FAMILIES["t5"]
    values = {name: getattr(family, name) for name in family.__dataclass_fields__}
    made_up = type(family)(**values | {"computed": lambda config, their_class: {"table": lambda: torch.arange(3.0)}})
    plan = Conversion(made_up, CLASS, plan_of(state).config, "x")
    assert "table" not in dict(plan.to_ours(checkpoint(state, table=torch.arange(3.0))))
    for wrong in (torch.arange(3.0) + 0.1, torch.arange(4.0)):
        with pytest.raises(ValueError, match="x: table holds other values than are computed here"):
            list(plan.to_ours(checkpoint(state, table=wrong)))


def test_what_was_imported_is_remembered_as_it_was(state):
    values = CONFIG.to_dict()
    before = copy.deepcopy(values)
    plan = import_plan(values, CLASS, checkpoint(state), "x")
    assert plan.config.origin == {"family": "t5", "class": CLASS, "config": before}
    assert values == before


def test_what_changed_since_is_written_and_what_did_not_stays(state):
    values = CONFIG.to_dict() | {"n_positions": 77, "dropout_rate": 0.3}
    config = import_plan(values, CLASS, checkpoint(state), "x").config
    config.dropout = 0.2
    config.vocab_size = 44
    _, theirs = export_plan(config, "TransductForConditionalGeneration", None, "x")
    assert (theirs.n_positions, theirs.dropout_rate, theirs.vocab_size) == (77, 0.2, 44)
    assert theirs.architectures == [CLASS]


def test_what_was_imported_may_become_another_family_that_can_say_it(state):
    config = import_plan(CONFIG.to_dict() | {"scale_decoder_outputs": False}, CLASS, checkpoint(state), "x").config
    plan, theirs = export_plan(config, "TransductForConditionalGeneration", "mt5", "x")
    assert (plan.their_class, theirs.model_type) == ("MT5ForConditionalGeneration", "mt5")
    with pytest.raises(ValueError, match="relative_bias_per_layer=False"):
        export_plan(config, "TransductForConditionalGeneration", "umt5", "x")


def test_a_field_that_was_set_since_the_import_is_checked_too():
    config = TransductConfig(
        vocab_size=40, d_model=16, norm="rmsnorm", norm_position="pre", positions="relative_bias", attention_scale="none",
        attention_bias=False, ffn_bias=False, scale_embeddings=False, scale_logits=True, num_key_value_heads=2,
        origin={"family": "t5", "class": CLASS, "config": CONFIG.to_dict()},
    )  # fmt: skip
    with pytest.raises(ValueError, match="num_key_value_heads=2"):
        export_plan(config, "TransductForConditionalGeneration", None, "x")
