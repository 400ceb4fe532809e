"""fairseq's checkpoints: what they compute, as transformers' models of the same equations do, and what is refused."""

import argparse
from pathlib import Path

import pytest
import torch
from fairseq_checkpoints import (
    OPTIONS,
    WORDS,
    bart,
    fsmt,
    m2m_100,
    mbart,
    state_of,
    with_old_names,
    write_checkpoint,
    write_dictionary,
)
from transformers import PreTrainedModel

from transduct import TransductForConditionalGeneration, TransductForSequenceClassification
from transduct.convert import from_fairseq
from transduct.convert.fairseq import REFUSED, open_checkpoint

SHARED = dict(share_all_embeddings=True)
PRE = dict(encoder_normalize_before=True, decoder_normalize_before=True)
LEARNED = dict(encoder_learned_pos=True, decoder_learned_pos=True)
BART = dict(**SHARED, **LEARNED, no_scale_embedding=True, layernorm_embedding=True, activation_fn="gelu", arch="bart_base")
CASES = {
    "transformer": (fsmt, {}),
    "transformer_pre_norm": (m2m_100, dict(arch="transformer_wmt_en_de_big_t2t", **SHARED, **PRE)),
    "bart": (lambda: bart(WORDS["de"] + 4), BART),
    "mbart": (mbart, dict(BART, arch="mbart_base", no_scale_embedding=False, **PRE)),
}


def batch(theirs: PreTrainedModel, left: bool = False) -> dict[str, torch.Tensor]:
    """Sources of 7 and 4 tokens, padded on one side, and targets."""
    sizes = min(WORDS.values()) + 4
    ids = torch.randint(4, sizes, (2, 7))
    ids[:, -1] = 2
    mask = torch.ones(2, 7, dtype=torch.long)
    ids[1, 3], mask[1, 4:] = 2, 0
    if left:
        ids[1], mask[1] = ids[1].roll(3), mask[1].roll(3)
    target = torch.randint(4, sizes, (2, 5))
    target[:, 0] = 2
    return dict(input_ids=ids.masked_fill(mask == 0, 1), attention_mask=mask, decoder_input_ids=target)


def written(case: str, folder: Path, old: bool = False, legacy: bool = False, **more) -> tuple[PreTrainedModel, Path]:
    make, options = CASES[case]
    theirs = make()
    state = state_of(theirs)
    return theirs, write_checkpoint(folder, with_old_names(state) if old else state, legacy, **options | more)


@torch.no_grad()
def assert_equal_logits(theirs: PreTrainedModel, ours: PreTrainedModel, inputs: dict[str, torch.Tensor], within=1e-5) -> None:
    want, got = theirs(**inputs).logits, ours(**inputs).logits
    torch.testing.assert_close(got, want, rtol=0, atol=within * max(1.0, want.abs().max().item()))


class TestEquations:
    @pytest.mark.parametrize("case", CASES)
    def test_logits_are_those_of_the_same_equations_elsewhere(self, case, tmp_path):
        theirs, path = written(case, tmp_path)
        ours = from_fairseq(path)
        assert type(ours) is TransductForConditionalGeneration
        assert not ours.training
        assert_equal_logits(theirs, ours, batch(theirs))

    @pytest.mark.parametrize("case", CASES)
    def test_in_double_precision(self, case, tmp_path):
        theirs, path = written(case, tmp_path)
        assert_equal_logits(theirs.double(), from_fairseq(path).double(), batch(theirs), within=1e-10)

    @pytest.mark.parametrize("case", ["transformer", "bart"])
    @pytest.mark.parametrize("legacy", [False, True])
    def test_names_and_files_of_old_versions(self, case, legacy, tmp_path):
        theirs, path = written(case, tmp_path, old=True, legacy=legacy)
        assert_equal_logits(theirs, from_fairseq(path), batch(theirs))

    def test_padding_on_the_left_as_fairseq_pads_its_sources(self, tmp_path):
        theirs, path = written("transformer", tmp_path)
        assert_equal_logits(theirs, from_fairseq(path), batch(theirs, left=True))

    def test_target_and_output_that_are_one_matrix(self, tmp_path):
        theirs = fsmt()
        theirs.model.decoder.output_projection.weight = theirs.model.decoder.embed_tokens.weight
        state = state_of(theirs)
        path = write_checkpoint(tmp_path, state, share_decoder_input_output_embed=True)
        ours = from_fairseq(path)
        assert ours.config.tie_embeddings == "target_output"
        assert_equal_logits(theirs, ours, batch(theirs))
        del state["decoder.output_projection.weight"]  # as versions up to 0.9 wrote it
        write_checkpoint(tmp_path, state, share_decoder_input_output_embed=True)
        assert_equal_logits(theirs, from_fairseq(path), batch(theirs))

    def test_greedy_search_gives_the_same_ids(self, tmp_path):
        theirs, path = written("transformer", tmp_path)
        inputs = batch(theirs)
        del inputs["decoder_input_ids"]
        plain = dict(num_beams=1, max_new_tokens=12, do_sample=False, min_new_tokens=None, suppress_tokens=None)
        got = from_fairseq(path).generate(**inputs, **plain, forced_eos_token_id=2, early_stopping=False)
        want = theirs.generate(**inputs, **plain, forced_eos_token_id=2, early_stopping=False)
        assert torch.equal(got, want)
