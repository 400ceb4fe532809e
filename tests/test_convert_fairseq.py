"""fairseq's checkpoints: what they compute, as transformers' models of the same equations do, and what is refused."""

import functools
import logging
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel

from fairseq_checkpoints import (
    TOKENS,
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
from transduct import TransductForConditionalGeneration, TransductForSequenceClassification, convert
from transduct.convert.fairseq import REFUSED, open_checkpoint
from transduct.convert.folders import import_folder
from transduct.convert.verifying import verify

from_fairseq = functools.partial(convert.from_fairseq, verify=False)
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
    want = theirs(**inputs, use_cache=False).logits  # with a cache, FSMT sees the targets that follow
    got = ours(**inputs).logits
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
    def test_in_double_precision(self, case, tmp_path, monkeypatch):
        mask = functools.partial(torch.full_like, fill_value=float("-inf"))  # FSMT's overflows in double precision
        monkeypatch.setattr("transformers.models.fsmt.modeling_fsmt.fill_with_neg_inf", mask)
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

    @pytest.mark.parametrize("case", CASES)
    def test_greedy_search_gives_the_same_ids(self, case, tmp_path):
        theirs, path = written(case, tmp_path)
        inputs = batch(theirs)
        del inputs["decoder_input_ids"]
        greedy = dict(num_beams=1, early_stopping=False, max_new_tokens=12, min_new_tokens=1, suppress_tokens=[1])
        options = GenerationConfig(**greedy, forced_eos_token_id=2, **TOKENS)
        want, got = (model.generate(**inputs, generation_config=options) for model in (theirs, from_fairseq(path)))
        assert torch.equal(got, want)


class TestTwins:
    @pytest.mark.parametrize("case", CASES)
    def test_the_conversion_verifies_itself_by_a_model_of_transformers(self, case, tmp_path):
        _, path = written(case, tmp_path)
        opened = open_checkpoint(path)
        report = verify(opened.original(), opened.model())
        assert report.differences["logits"] < 1e-4
        assert len(report.generated) == 3

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_as_fairseq_saves_it_and_as_one_may_want_it(self, dtype, tmp_path):
        state = state_of(fsmt())
        (tmp_path / "half").mkdir()
        path = write_checkpoint(tmp_path / "half", {name: tensor.to(dtype) for name, tensor in state.items()})
        assert convert.from_fairseq(path).dtype == dtype
        assert import_folder(path, tmp_path / "from half").checked is not None
        (tmp_path / "full").mkdir()
        path = write_checkpoint(tmp_path / "full", state)
        assert import_folder(path, tmp_path / "to half", dtype=dtype).checked is not None

    def test_from_fairseq_compares_unless_told_otherwise(self, tmp_path, monkeypatch):
        _, path = written("bart", tmp_path)
        compared = []
        monkeypatch.setattr("transduct.convert.fairseq.compare", lambda *pair: compared.append(pair))
        convert.from_fairseq(path, verify=False)
        assert not compared
        ours = convert.from_fairseq(path)
        assert [type(model).__name__ for model in compared[0][:2]] == ["BartForConditionalGeneration", type(ours).__name__]

    def test_a_wrong_tensor_is_found(self, tmp_path):
        opened = open_checkpoint(written("transformer", tmp_path)[1])
        ours = opened.model()
        with torch.no_grad():
            ours.model.decoder.layers[1].cross_attention.k_proj.weight += 0.1
        with pytest.raises(ValueError, match="first in the decoder's layer 1"):
            verify(opened.original(), ours)

    def test_combinations_that_transformers_lacks_have_none(self, tmp_path, caplog):
        path = write_checkpoint(tmp_path, state_of(bart(WORDS["de"] + 4)), **BART | {"layernorm_embedding": True})
        assert open_checkpoint(path).original is not None
        state = {name: tensor for name, tensor in state_of(bart(WORDS["de"] + 4)).items() if "layernorm_embedding" not in name}
        path = write_checkpoint(tmp_path, state, **BART | {"layernorm_embedding": False})
        assert open_checkpoint(path).original is None
        logger = logging.getLogger("transduct.convert.fairseq")
        logger.addHandler(caplog.handler)  # those of transformers do not propagate
        try:
            convert.from_fairseq(path)
        finally:
            logger.removeHandler(caplog.handler)
        assert "was imported without a comparison" in caplog.text


class TestOptions:
    def test_what_it_becomes(self, tmp_path):
        path = write_checkpoint(tmp_path, state_of(fsmt()), decoder_layerdrop=0.2, relu_dropout=0.05)
        config = from_fairseq(path).config
        assert (config.vocab_size, config.decoder_vocab_size) == (WORDS["de"] + 4, WORDS["en"] + 4)
        assert (config.positions, config.sinusoid_layout, config.position_offset) == ("sinusoidal", "tensor2tensor", 2)
        assert (config.pad_token_id, config.eos_token_id, config.decoder_start_token_id) == (1, 2, 2)
        assert (config.dropout, config.activation_dropout, config.layer_drop, config.decoder_layer_drop) == (0.3, 0.05, 0.0, 0.2)
        assert config.origin["family"] == "fairseq"
        assert config.origin["config"]["arch"] == "transformer_iwslt_de_en"
        assert "data" not in config.origin["config"]  # where it was trained is nobody's business

    def test_what_old_files_leave_out_is_what_fairseq_takes_for_it(self, tmp_path):
        theirs = fsmt()
        path = write_checkpoint(tmp_path, state_of(theirs))
        saved = torch.load(path, weights_only=False)
        for name in ("decoder_input_dim", "decoder_output_dim", "encoder_learned_pos", "adaptive_input", "task", "relu_dropout"):
            delattr(saved["args"], name)
        torch.save(saved, path)
        assert_equal_logits(theirs, from_fairseq(path), batch(theirs))

    def test_decoding_as_fairseq_generate_decodes(self, tmp_path):
        options = open_checkpoint(write_checkpoint(tmp_path, state_of(fsmt()))).generation
        assert (options.num_beams, options.length_penalty, options.max_new_tokens) == (5, 1.0, 201)
        assert options.forced_bos_token_id is None
        path = write_checkpoint(tmp_path, state_of(bart(WORDS["de"] + 4)), **BART)
        model = from_fairseq(path)
        assert model.generation_config.max_new_tokens == 64  # as many positions as there are
        ids = model.generate(input_ids=torch.tensor([[5, 6, 7, 2]]))
        assert ids[0, -1] == 2
        assert 1 not in ids
        assert ids.shape[1] > 2

    @pytest.mark.parametrize("name", REFUSED)
    def test_options_that_change_the_network_are_refused_by_name(self, name, tmp_path):
        path = write_checkpoint(tmp_path, state_of(fsmt()), **{name: "1,2"})
        with pytest.raises(ValueError, match=f"{name}='1,2' cannot be imported"):
            from_fairseq(path)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (dict(arch="transformer_lm_wiki103"), "arch='transformer_lm_wiki103' is none of"),
            (dict(arch="lightconv"), "arch='lightconv' is none of"),
            (dict(arch=None), "arch=None is none of"),
            (dict(encoder_normalize_before=True), "encoder_normalize_before=True and decoder_normalize_before=False"),
            (dict(encoder_learned_pos=True), "encoder_learned_pos=True and decoder_learned_pos=False"),
            (dict(decoder_embed_dim=32), "decoder_embed_dim=32 cannot be imported, only 16"),
            (dict(activation_fn="mish"), "activation_fn='mish' is none of relu"),
            (dict(share_all_embeddings=True), "share_all_embeddings=True, but embeddings have 32 and 24 rows"),
            (dict(share_decoder_input_output_embed=True), "should be one matrix, but hold different values"),
            (dict(task="translation_multi_simple_epoch"), "puts tokens of its own around texts"),
            (dict(source_lang=None), "source_lang=None, target_lang='en' must name the dictionaries"),
            (dict(source_lang="fr"), r"missing, .*dict\.fr\.txt: put them beside"),
            (dict(target_lang="de"), "has 32 tokens with the special ones, but the target embedding 24 rows"),
        ],
    )
    def test_what_is_not_understood_is_refused(self, options, message, tmp_path):
        path = write_checkpoint(tmp_path, state_of(fsmt()), **options)
        with pytest.raises(ValueError, match=message):
            from_fairseq(path)

    def test_tensors_without_a_place(self, tmp_path):
        state = state_of(fsmt())
        path = write_checkpoint(tmp_path, state | {"decoder.embed_length.weight": torch.zeros(2, 2)})
        with pytest.raises(ValueError, match=r"nothing here uses: \['decoder.embed_length.weight'\]"):
            from_fairseq(path)
        del state["encoder.layers.1.fc1.bias"]
        with pytest.raises(ValueError, match=r"missing: \['encoder.layers.1.fc1.bias'\]"):
            from_fairseq(write_checkpoint(tmp_path, state))
        with pytest.raises(ValueError, match=r"holds no encoder\.embed_tokens\.weight"):
            from_fairseq(write_checkpoint(tmp_path, {}))

    def test_a_norm_at_the_end_of_one_stack_alone(self, tmp_path):
        state = {name: tensor for name, tensor in state_of(m2m_100()).items() if not name.startswith("decoder.layer_norm")}
        path = write_checkpoint(tmp_path, state, **CASES["transformer_pre_norm"][1])
        with pytest.raises(ValueError, match="no_decoder_final_norm"):
            from_fairseq(path)

    def test_without_a_tokenizer(self, tmp_path):
        path = write_checkpoint(tmp_path, state_of(fsmt()), task="a_task_of_ones_own")
        opened = open_checkpoint(path, tokenizer=False)
        assert opened.tokenizer is None
        assert_equal_logits(fsmt(), opened.model(), batch(fsmt()))


class TestClassificationHeads:
    def write(self, folder: Path, state: dict[str, torch.Tensor], **more) -> Path:
        path = write_checkpoint(folder, state, **BART, task="sentence_prediction", **more)
        write_dictionary(folder / "dict.txt", WORDS["de"])
        return path

    def test_a_head_is_imported_where_it_is_asked_for(self, tmp_path):
        theirs = bart(WORDS["de"] + 5, classifier=True)  # the task adds a mask to the dictionary
        path = self.write(tmp_path, state_of(theirs))
        ours = from_fairseq(path, classification_head="mnli")
        assert type(ours) is TransductForSequenceClassification
        assert ours.config.num_labels == 3
        inputs = batch(theirs)
        del inputs["decoder_input_ids"]
        assert_equal_logits(theirs, ours, inputs)

    def test_a_head_is_never_lost(self, tmp_path):
        state = state_of(bart(WORDS["de"] + 5, classifier=True))
        path = self.write(tmp_path, state)
        with pytest.raises(ValueError, match=r"heads \['mnli'\], .* pass classification_head='mnli'"):
            from_fairseq(path)
        with pytest.raises(ValueError, match="classification_head='qnli' is none of"):
            from_fairseq(path, classification_head="qnli")
        more = {name.replace("mnli", "rte"): tensor for name, tensor in state.items()}
        with pytest.raises(ValueError, match="several classification heads"):
            from_fairseq(self.write(tmp_path, state | more), classification_head="rte")
        with pytest.raises(ValueError, match="pooler_activation_fn='relu'"):
            from_fairseq(self.write(tmp_path, state, pooler_activation_fn="relu"), classification_head="mnli")
