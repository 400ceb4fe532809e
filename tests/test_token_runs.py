"""Flash attention through the wrapper of transformers, whose kernel is a plain loop here: runs say what masks say."""

import pytest
import torch
from transformers import modeling_flash_attention_utils as flash
from transformers.cache_utils import StaticCache

from configs import tiny
from transduct import TransductForCausalLM, TransductForConditionalGeneration
from transduct.token_runs import TokenRuns

PLAIN = ("sinusoidal", "learned", "rotary", "none")


def attend(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False):
    """One sequence: q (T, H, K), k and v (S, G, K) -> (T, H, K); causal sequences end together."""
    k, v = (states.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for states in (k, v))
    scores = torch.einsum("thk,shk->hts", q, k) * softmax_scale
    if causal:
        allowed = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
        scores = scores.masked_fill(~allowed, float("-inf"))
    return torch.einsum("hts,shk->thk", scores.softmax(-1).nan_to_num(), v)


def flash_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False):
    return torch.stack([attend(*row, dropout_p, softmax_scale, causal) for row in zip(q, k, v, strict=True)])


def flash_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False
):
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    queries, keys = cu_seqlens_q.diff().tolist(), cu_seqlens_k.diff().tolist()
    assert (max(queries), max(keys)) == (max_seqlen_q, max_seqlen_k)
    parts = zip(q.split(queries), k.split(keys), v.split(keys), strict=True)
    return torch.cat([attend(*part, dropout_p, softmax_scale, causal) for part in parts])


@pytest.fixture(autouse=True)
def plain_kernels(monkeypatch):
    for name, value in {
        "_loaded_implementation": "flash_attention_2",
        "_flash_fn": flash_func,
        "_flash_varlen_fn": flash_varlen_func,
        "_flash_with_kvcache_fn": None,
        "_pad_fn": None,
        "_unpad_fn": None,
        "_process_flash_kwargs_fn": flash._lazy_define_process_function(flash_varlen_func),
        "_process_with_kvcache_kwargs_fn": dict,
    }.items():
        monkeypatch.setattr(flash, name, value)


def both(model, call):
    """What `call` gives with sdpa, and with flash attention."""
    results = []
    for implementation in ("sdpa", "flash_attention_2"):
        model.config._attn_implementation = implementation
        results.append(call(model))
    return results


def make(positions, kind=TransductForConditionalGeneration, **changes):
    torch.manual_seed(0)
    return kind(tiny(positions=positions, **changes)).double().eval()


def close(expected, found):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


IDS = torch.tensor([[5, 6, 7, 8, 1], [9, 4, 1, 0, 0], [0, 0, 3, 4, 1]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 1, 1, 1]])
TARGET = torch.tensor([[0, 5, 6, 7], [0, 9, 4, 0], [0, 0, 8, 5]])
TARGET_MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [0, 1, 1, 1]])


@pytest.mark.parametrize("positions", PLAIN)
@pytest.mark.parametrize("groups", [None, 1])
def test_padded_batches_give_the_same_logits(positions, groups):
    model = make(positions, num_key_value_heads=groups)
    expected, found = both(
        model, lambda m: m(IDS, MASK, decoder_input_ids=TARGET, decoder_attention_mask=TARGET_MASK, use_cache=False).logits
    )
    close(expected[TARGET_MASK.bool()], found[TARGET_MASK.bool()])


@pytest.mark.parametrize("positions", PLAIN)
def test_packed_batches_give_the_same_loss_and_gradients(positions):
    model = make(positions).train()
    segments, target_segments = torch.tensor([[1, 1, 2, 2, 2], [2, 2, 1, 1, 0]]), torch.tensor([[1, 2, 2, 2], [2, 1, 1, 0]])
    labels = torch.tensor([[4, 5, 6, 1], [7, 8, 1, -100]])

    def gradients(model):
        model.zero_grad()
        model(IDS[:2], segment_ids=segments, decoder_segment_ids=target_segments, labels=labels).loss.backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    for expected, found in zip(*both(model, gradients), strict=True):
        close(expected, found)


@pytest.mark.parametrize("positions", PLAIN)
@pytest.mark.parametrize("options", [{"num_beams": 3, "num_return_sequences": 2}, {"num_beams": 1}], ids=str)
def test_generated_ids_and_scores_are_the_same(positions, options):
    model = make(positions)
    prompt = {"decoder_input_ids": TARGET, "decoder_attention_mask": TARGET_MASK}
    limits = {"max_new_tokens": 6, "return_dict_in_generate": True, "output_scores": True}
    for given in ({}, prompt):
        expected, found = both(model, lambda m: m.generate(IDS, attention_mask=MASK, **given, **options, **limits))  # noqa: B023
        assert torch.equal(expected.sequences, found.sequences)
        close(expected.scores[-1], found.scores[-1])


def test_a_language_model_with_left_padding_generates_the_same():
    model = make("rotary", TransductForCausalLM)
    expected, found = both(model, lambda m: m.generate(IDS, attention_mask=MASK, max_new_tokens=5, do_sample=False))
    assert torch.equal(expected, found)


def test_a_row_of_padding_alone_attends_to_nothing():
    model, mask = make("sinusoidal"), MASK.clone()
    mask[1] = 0
    expected, found = both(model, lambda m: m(IDS, mask, decoder_input_ids=TARGET).logits)
    close(expected, found)


def test_attention_weights_still_come_from_eager():
    expected, found = both(make("sinusoidal"), lambda m: m(IDS, MASK, decoder_input_ids=TARGET, output_attentions=True))
    close(expected.cross_attentions[1], found.cross_attentions[1])


@pytest.mark.parametrize("positions", ["relative_bias", "alibi"])
def test_a_position_bias_is_refused(positions):
    model = make(positions)
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match=f"no place for the bias of positions='{positions}'"):
        model(IDS, MASK, decoder_input_ids=TARGET)


def test_masks_per_query_prefixes_and_static_caches_are_refused():
    model, decoder = make("none"), make("none", TransductForCausalLM)
    model.config._attn_implementation = decoder.config._attn_implementation = "flash_attention_2"
    square = torch.ones(3, 5, 5, dtype=torch.bool)
    square[:, 0, 1] = False
    with pytest.raises(ValueError, match="a mask of shape"):
        model(IDS, square, decoder_input_ids=TARGET)
    with pytest.raises(ValueError, match="prefix_mask"):
        decoder(IDS, prefix_mask=MASK.bool())
    with pytest.raises(ValueError, match="static cache"):
        decoder(IDS, cache=StaticCache(decoder.config, max_cache_len=9))


def test_runs_are_found_wherever_their_tokens_lie():
    runs = TokenRuns(torch.tensor([[2, 1, 0], [1, 1, 2]]), torch.tensor([[1, 2], [0, 1]]))
    assert runs.queries.tolist() == [1, 0, 3, 4, 5]
    assert runs.query_starts.tolist() == [0, 1, 2, 4, 5]
    assert runs.keys.tolist() == [0, 1, 3]
    assert runs.key_starts.tolist() == [0, 1, 2, 3, 3]
    assert (runs.longest_query, runs.longest_key) == (2, 1)
