"""Marian's own models: what they compute, as transformers' models with Marian's positions do, and what is refused."""

import pytest
import torch
from transformers import AutoTokenizer, GenerationConfig, M2M100ForConditionalGeneration, PreTrainedModel

from marian_checkpoints import (
    PAD,
    PRE_NORM,
    SIZE,
    TWO_VOCABULARIES,
    arrays_of,
    marian,
    pre_norm,
    write_bin,
    write_npz,
)
from transduct.convert.foreign import open_foreign
from transduct.convert.marian_npz import REQUIRED, open_checkpoint
from transduct.convert.verifying import verify


def dashed(options: dict) -> dict:
    return {name.replace("-", "_"): value for name, value in options.items()}


CASES = {
    "post_norm": (marian, {}),
    "post_norm_gelu": (lambda: marian(activation="quick_gelu"), {"transformer-ffn-activation": "gelu"}),
    "two_vocabularies": (lambda: marian(two_vocabularies=True), TWO_VOCABULARIES),
    "pre_norm": (pre_norm, PRE_NORM | {"output-omit-bias": True}),
}


def batch(start: int = PAD) -> dict[str, torch.Tensor]:
    ids = torch.randint(2, SIZE, (2, 7))
    ids[:, -1] = 0
    mask = torch.ones(2, 7, dtype=torch.long)
    ids[1, 3], mask[1, 4:] = 0, 0
    target = torch.randint(2, SIZE, (2, 5))
    target[:, 0] = start
    return dict(input_ids=ids.masked_fill(mask == 0, PAD), attention_mask=mask, decoder_input_ids=target)


@torch.no_grad()
def assert_equal_logits(theirs: PreTrainedModel, ours: PreTrainedModel, within=1e-5) -> None:
    inputs = batch(start=5 if isinstance(theirs, M2M100ForConditionalGeneration) else PAD)  # to which padding has no position
    want, got = theirs(**inputs).logits[..., :SIZE], ours(**inputs).logits
    torch.testing.assert_close(got[..., :SIZE], want, rtol=0, atol=within * max(1.0, want.abs().max().item()))


class TestEquations:
    @pytest.mark.parametrize("case", CASES)
    @pytest.mark.parametrize("write", [write_npz, write_bin])
    def test_logits_are_those_of_the_same_equations_elsewhere(self, case, write, tmp_path):
        make, options = CASES[case]
        theirs = make()
        ours = open_foreign(write(tmp_path, arrays_of(theirs), **dashed(options))).model()
        assert_equal_logits(theirs, ours)

    @pytest.mark.parametrize("case", CASES)
    def test_in_double_precision(self, case, tmp_path):
        make, options = CASES[case]
        theirs = make()
        ours = open_foreign(write_npz(tmp_path, arrays_of(theirs), **dashed(options))).model().double()
        assert_equal_logits(theirs.double(), ours, within=1e-6)  # their positions are computed in float32 in another order

    @pytest.mark.parametrize("older", [False, True])
    def test_an_output_of_its_own(self, older, tmp_path):
        theirs = marian(two_vocabularies=True)
        theirs.lm_head.weight = torch.nn.Parameter(torch.randn(SIZE + 1, 16))
        arrays = arrays_of(theirs)
        output = theirs.lm_head.weight.detach().numpy()[:SIZE]
        arrays |= {"decoder_ff_logit_out_W": output.T} if older else {"decoder_ff_logit_out_Wt": output}
        ours = open_foreign(write_npz(tmp_path, arrays, tied_embeddings_all=False)).model()
        assert ours.config.tie_embeddings == "none"
        assert_equal_logits(theirs, ours)

    def test_source_and_target_tied_beside_an_output_of_its_own(self, tmp_path):
        theirs = marian()
        theirs.lm_head.weight = torch.nn.Parameter(torch.randn(SIZE + 1, 16))
        arrays = arrays_of(theirs) | {"decoder_ff_logit_out_Wt": theirs.lm_head.weight.detach().numpy()[:SIZE]}
        options = dict(tied_embeddings_all=False, tied_embeddings_src=True)
        ours = open_foreign(write_npz(tmp_path, arrays, **options)).model()
        assert ours.config.tie_embeddings == "source_target"
        assert_equal_logits(theirs, ours)

    @pytest.mark.parametrize("case", ["post_norm", "two_vocabularies"])
    def test_the_conversion_verifies_itself_by_a_model_of_transformers(self, case, tmp_path):
        make, options = CASES[case]
        opened = open_foreign(write_npz(tmp_path, arrays_of(make()), **dashed(options)))
        report = verify(opened.original(), opened.model())
        assert report.differences["logits"] < 1e-4
        assert len(report.generated) == 3

    def test_a_wrong_tensor_is_found(self, tmp_path):
        opened = open_foreign(write_npz(tmp_path, arrays_of(marian())))
        ours = opened.model()
        with torch.no_grad():
            ours.model.encoder.layers[1].feed_forward.up_proj.weight += 0.1
        with pytest.raises(ValueError, match="first in the encoder's layer 1"):
            verify(opened.original(), ours)

    def test_what_transformers_has_no_model_of_has_no_twin(self, tmp_path):
        assert open_foreign(write_npz(tmp_path, arrays_of(pre_norm()), **dashed(CASES["pre_norm"][1]))).original is None


class TestPadding:
    def test_the_padding_token_is_never_written(self, tmp_path):
        theirs = marian()
        opened = open_foreign(write_npz(tmp_path, arrays_of(theirs)))
        ours = opened.model()
        assert (ours.config.pad_token_id, ours.config.decoder_start_token_id, ours.config.eos_token_id) == (PAD, PAD, 0)
        assert PAD in opened.generation.suppress_tokens
        with torch.no_grad():
            assert ours(**batch()).logits.softmax(-1)[..., PAD].max() == 0  # it takes no probability from the others
        inputs = batch()
        del inputs["decoder_input_ids"]
        plain = GenerationConfig(
            num_beams=1, max_new_tokens=12, early_stopping=False, length_penalty=1.0, pad_token_id=PAD, eos_token_id=0,
            decoder_start_token_id=PAD, suppress_tokens=[PAD],
        )  # fmt: skip
        got, want = (model.generate(**inputs, generation_config=plain) for model in (ours, theirs))
        assert torch.equal(got, want)

    def test_an_output_without_bias_gets_one_that_hides_the_padding_token(self, tmp_path):
        make, options = CASES["pre_norm"]
        ours = open_foreign(write_npz(tmp_path, arrays_of(make()), **dashed(options))).model()
        assert ours.lm_head.bias[:SIZE].eq(0).all()
        with torch.no_grad():
            assert ours(**batch()).logits.softmax(-1)[..., PAD].max() == 0

    def test_vocabularies_of_two_sizes_share_the_padding_token(self, tmp_path):
        theirs = marian(two_vocabularies=True)
        arrays = arrays_of(theirs)
        arrays["encoder_Wemb"] = arrays["encoder_Wemb"][:20]
        path = write_npz(tmp_path, arrays, **dashed(TWO_VOCABULARIES), dim_vocabs=[20, SIZE])
        (tmp_path / "small.yml").write_text(
            "".join(f'"{token}": {n}\n' for n, token in enumerate(["</s>", "<unk>", *"abcdefghijklmnopqr"]))
        )
        opened = open_checkpoint(path, vocabularies=(tmp_path / "small.yml", tmp_path / "target.vocab.yml"))
        ours = opened.model()
        assert ours.config.vocab_size == ours.config.decoder_vocab_size == SIZE + 1
        inputs = batch()
        inputs["input_ids"] = inputs["input_ids"].where((inputs["input_ids"] < 20) | (inputs["input_ids"] == PAD), 5)
        with torch.no_grad():
            torch.testing.assert_close(ours(**inputs).logits[..., :SIZE], theirs(**inputs).logits[..., :SIZE], rtol=0, atol=1e-4)
        assert opened.tokenizer("a b zz")["input_ids"] == [2, 3, 1, 0]
        assert opened.tokenizer.pad_token_id == PAD


class TestOptions:
    def test_decoding_as_the_decoder_options_say(self, tmp_path):
        path = write_npz(tmp_path, arrays_of(marian()))
        options = open_foreign(path).generation
        assert (options.num_beams, options.length_penalty) == (6, 0.6)
        (tmp_path / "decoder.yml").unlink()
        options = open_checkpoint(path, vocabularies=(tmp_path / "vocab.yml",)).generation
        assert (options.num_beams, options.length_penalty) == (12, 0.0)

    def test_the_unknown_token_is_written_only_where_the_decoder_options_allow_it(self, tmp_path):
        path = write_npz(tmp_path, arrays_of(marian()))
        assert open_foreign(path).generation.suppress_tokens == open_foreign(path, tokenizer=False).generation.suppress_tokens
        assert open_foreign(path).generation.suppress_tokens == [1, PAD]
        with (tmp_path / "decoder.yml").open("a") as file:
            file.write("allow-unk: true\n")
        assert open_foreign(path).generation.suppress_tokens == [PAD]

    def test_a_penalty_of_words_is_refused(self, tmp_path):
        path = write_npz(tmp_path, arrays_of(marian()))
        with (tmp_path / "decoder.yml").open("a") as file:
            file.write("word-penalty: 0.5\n")
        with pytest.raises(ValueError, match=r"word-penalty=0.5 .* search with word_reward=-0.5"):
            open_foreign(path)

    def test_the_unknown_token_is_that_of_the_target(self, tmp_path):
        path = write_npz(tmp_path, arrays_of(marian(two_vocabularies=True)), **dashed(TWO_VOCABULARIES))
        words = ["</s>", *"abcd", "<unk>", *map(str, range(SIZE - 6))]
        (tmp_path / "other.txt").write_text("\n".join(words))
        opened = open_checkpoint(path, vocabularies=(tmp_path / "vocab.yml", tmp_path / "other.txt"))
        assert opened.generation.suppress_tokens == [5, PAD]

    def test_decoding_without_a_beam_can_be_saved(self, tmp_path):
        path = write_npz(tmp_path, arrays_of(marian()))
        written = (tmp_path / "decoder.yml").read_text().replace("beam-size: 6", "beam-size: 1")
        (tmp_path / "decoder.yml").write_text(written)
        options = open_foreign(path).generation
        options.save_pretrained(tmp_path)
        assert GenerationConfig.from_pretrained(tmp_path).num_beams == 1

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (dict(transformer_decoder_autoreg="rnn", dec_cell="ssru"), "autoreg='rnn' of dec-cell='ssru' cannot be imported"),
            (dict(transformer_decoder_autoreg="average-attention"), "autoreg='average-attention' cannot be imported"),
            (dict(transformer_preprocess="n"), "transformer-preprocess='n' with transformer-postprocess='dan'"),
            (dict(transformer_postprocess="dhn"), "transformer-postprocess='dhn' cannot be imported"),
            (dict(transformer_postprocess_emb="dn"), "transformer-postprocess-emb='dn' cannot be imported"),
            (dict(transformer_postprocess_top="dan"), "transformer-postprocess-top='dan' cannot be imported"),
            (dict(transformer_ffn_activation="mish"), "transformer-ffn-activation='mish' is none of"),
            (dict(transformer_decoder_ffn_depth=3), "transformer-decoder-ffn-depth=3 cannot be imported"),
            (dict(dim_vocabs=[SIZE, SIZE, SIZE]), "must be the sizes of one source and one target vocabulary"),
            (dict(dim_vocabs=[SIZE + 1, SIZE]), "Wemb has 30 rows, but dim-vocabs="),
            (dict(transformer_rms_norm=True), "unknown options transformer-rms-norm=True"),
            (dict(tied_embeddings_all=False), "holds no encoder_Wemb"),
            (dict(output_omit_bias=True), "output-omit-bias=True, but it holds decoder_ff_logit_out_b"),
            (dict(transformer_postprocess_top="n"), "missing: .*encoder.layer_norm"),
        ],
    )
    def test_what_is_not_understood_is_refused(self, options, message, tmp_path):
        path = write_npz(tmp_path, arrays_of(marian()), **options)
        with pytest.raises(ValueError, match=message):
            open_foreign(path).model()

    @pytest.mark.parametrize("name", REQUIRED)
    def test_options_that_must_have_one_value(self, name, tmp_path):
        path = write_npz(tmp_path, arrays_of(marian()), **{name: "other"})
        with pytest.raises(ValueError, match=f"{name}='other' cannot be imported"):
            open_foreign(path)

    def test_tensors_without_a_place(self, tmp_path):
        path = write_npz(tmp_path, arrays_of(marian()) | {"Wpos": torch.zeros(4, 16).numpy()})
        with pytest.raises(ValueError, match=r"nothing here uses: \['Wpos'\]"):
            open_foreign(path).model()

    def test_a_quantised_student_is_refused_for_its_decoder_first(self, tmp_path):
        student = dict(transformer_decoder_autoreg="rnn", dec_cell="ssru")
        with pytest.raises(ValueError, match="transformer-decoder-autoreg='rnn' of dec-cell='ssru'"):
            open_foreign(write_bin(tmp_path, arrays_of(marian()), kind=0x4101, **student))

    def test_quantised_weights_are_refused_by_their_type(self, tmp_path):
        path = write_bin(tmp_path, arrays_of(marian()), kind=0x4101)
        with pytest.raises(ValueError, match="such as Wemb of intgemm int8: quantised models are not imported"):
            open_foreign(path)


def test_the_tokenizer_of_two_vocabularies_is_saved_with_the_model(tmp_path):
    path = write_npz(tmp_path, arrays_of(marian(two_vocabularies=True)), **dashed(TWO_VOCABULARIES))
    opened = open_checkpoint(path, vocabularies=(tmp_path / "vocab.yml", tmp_path / "target.vocab.yml"))
    assert "words separated by blanks" in opened.text
    opened.tokenizer.save_pretrained(tmp_path / "saved")
    again = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert again("word0 word3 Wort0", text_target="Wort0 Wort2") == {
        "input_ids": [2, 5, 1, 0],
        "attention_mask": [1, 1, 1, 1],
        "labels": [2, 4, 0],
    }
    assert again.decode([2, 4, 0], skip_special_tokens=True) == "Wort0 Wort2"
