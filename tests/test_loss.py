"""The chunked loss against PyTorch's cross-entropy and autograd, and the memory that it does not take."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from configs import build, tiny, words
from transduct import TransductForCausalLM, TransductForConditionalGeneration, TransductForMaskedLM
from transduct.loss import CHUNK_TOKENS, cross_entropy, cross_entropy_of_chunks, cross_entropy_of_logits

VOCABULARY, WIDTH = 11, 6
OPTIONS = [
    {},
    dict(label_smoothing=0.1),
    dict(z_loss=0.02),
    dict(label_smoothing=0.3, z_loss=0.5),
]
options_of_the_loss = pytest.mark.parametrize("options", OPTIONS, ids=str)
with_bias = pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
TOKENS = [1, CHUNK_TOKENS - 1, CHUNK_TOKENS, CHUNK_TOKENS + 1, 2 * CHUNK_TOKENS + 17]


def problem(tokens: int, biased: bool = True, ignored: float = 0.3, dtype=torch.float64):
    """Hidden states, output matrix, bias or None, labels."""
    hidden = torch.randn(tokens, WIDTH, dtype=dtype, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, dtype=dtype, requires_grad=True)
    bias = torch.randn(VOCABULARY, dtype=dtype, requires_grad=True) if biased else None
    labels = torch.randint(VOCABULARY, (tokens,))
    labels[torch.rand(tokens) < ignored] = -100
    return hidden, weight, bias, labels


def by_autograd(hidden, weight, bias, labels, label_smoothing=0.0, z_loss=0.0, num_items=None):
    """From all logits at once, with PyTorch's own cross-entropy."""
    logits = F.linear(hidden, weight, bias).reshape(-1, weight.shape[0])
    labels = labels.reshape(-1)
    kept = labels != -100
    total = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=label_smoothing, ignore_index=-100)
    total = total + z_loss * logits.logsumexp(-1)[kept].square().sum()
    return total / (max(int(kept.sum()), 1) if num_items is None else num_items)


def chunked(hidden, weight, bias, labels, **options):
    return cross_entropy(hidden, weight, labels, bias, **options)


def with_gradients(function, hidden, weight, bias, labels, **options):
    """The loss and its gradients by hidden states, weight and bias, scaled as an outer factor would."""
    loss = function(hidden, weight, bias, labels, **options)
    inputs = [tensor for tensor in (hidden, weight, bias) if tensor is not None]
    return [loss, *torch.autograd.grad(3 * loss, inputs)]


def same(got, want, tolerance: float = 1e-11) -> None:
    for one, other in zip(got, want, strict=True):
        assert one.shape == other.shape
        assert one.isfinite().all()
        assert (one - other).abs().max() <= tolerance * other.abs().max().clamp(min=1)


# ---- values and gradients -----------------------------------------------------------------------------------------
@options_of_the_loss
@pytest.mark.parametrize("ignored", [0.0, 0.3, 1.0])
def test_through_any_head_it_is_the_same(options, ignored):
    def through_a_head(hidden, weight, bias, labels, **options):
        return cross_entropy_of_chunks(lambda rows: F.linear(rows, weight, bias), hidden, labels, **options)

    inputs = problem(2 * CHUNK_TOKENS + 17, True, ignored)
    for count in (None, 7):
        same(
            with_gradients(through_a_head, *inputs, num_items=count, **options),
            with_gradients(chunked, *inputs, num_items=count, **options),
        )


@options_of_the_loss
@with_bias
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("ignored", [0.0, 0.3, 0.99])
def test_it_is_cross_entropy(tokens, biased, options, ignored):
    inputs = problem(tokens, biased, ignored)
    for count in (None, 7, torch.tensor(7)):
        same(
            with_gradients(chunked, *inputs, num_items=count, **options),
            with_gradients(by_autograd, *inputs, num_items=count, **options),
        )


@options_of_the_loss
@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 4)], ids=str)
def test_from_logits_it_is_the_same(options, shape):
    hidden = torch.randn(*shape, WIDTH, dtype=torch.float64)
    weight, bias = torch.randn(VOCABULARY, WIDTH, dtype=torch.float64), torch.randn(VOCABULARY, dtype=torch.float64)
    labels = torch.randint(VOCABULARY, shape)
    labels[..., 0] = -100
    want = by_autograd(hidden, weight, bias, labels, **options)
    same([cross_entropy_of_logits(F.linear(hidden, weight, bias), labels, **options)], [want])
    same([cross_entropy(hidden, weight, labels, bias, **options)], [want])


@options_of_the_loss
def test_numerical_derivatives(options):
    """Central differences in every direction of hidden states, weight and bias."""
    hidden, weight, bias, labels = problem(4, ignored=0.0)
    _, *gradients = with_gradients(chunked, hidden, weight, bias, labels, **options)
    step = 1e-6
    with torch.no_grad():
        for tensor, gradient in zip((hidden, weight, bias), gradients, strict=True):
            flat = tensor.view(-1)
            for place in range(len(flat)):
                kept, ends = flat[place].item(), []
                for sign in (1, -1):
                    flat[place] = kept + sign * step
                    ends.append(cross_entropy(hidden, weight, labels, bias, **options).item())
                flat[place] = kept
                assert abs(3 * (ends[0] - ends[1]) / (2 * step) - gradient.view(-1)[place].item()) < 1e-6


def test_by_hand():
    """Two logits, log 3 and 0: probabilities 3/4 and 1/4."""
    logits = torch.tensor([[3.0, 1.0]], dtype=torch.float64).log()
    log_z, hidden = torch.tensor(4.0).log().item(), torch.ones(1, 1, dtype=torch.float64)
    plain = -torch.tensor(0.75).log().item()
    for options, want in (
        ({}, plain),
        ({"label_smoothing": 0.2}, 0.8 * plain + 0.2 * (log_z - (torch.tensor(3.0).log().item()) / 2)),
        ({"z_loss": 0.1}, plain + 0.1 * log_z**2),
    ):
        assert cross_entropy(hidden, logits.t(), torch.tensor([0]), **options).item() == pytest.approx(want, rel=1e-6)


def test_only_what_needs_a_gradient_gets_one():
    for frozen in range(3):
        inputs = list(problem(CHUNK_TOKENS + 3))
        inputs[frozen] = inputs[frozen].detach()
        hidden, weight, bias, labels = inputs
        loss = cross_entropy(hidden, weight, labels, bias)
        loss.backward()
        want = by_autograd(hidden, weight, bias, labels)
        needed = [tensor for tensor in (hidden, weight, bias) if tensor.requires_grad]
        same([tensor.grad for tensor in needed], torch.autograd.grad(want, needed))
        assert inputs[frozen].grad is None
    hidden, weight, bias, labels = problem(5)
    with torch.no_grad():
        assert not cross_entropy(hidden, weight, labels, bias).requires_grad


def test_no_targets():
    for tokens in (0, 5):
        for count in (None, 0, torch.tensor(0), 9):
            hidden, weight, bias, labels = problem(tokens, ignored=2.0)
            loss, *gradients = with_gradients(chunked, hidden, weight, bias, labels, num_items=count)
            assert loss.item() == 0
            assert all((gradient == 0).all() for gradient in gradients)
            assert cross_entropy_of_logits(hidden @ weight.t(), labels, num_items=count).item() == 0


def test_a_second_backward_pass_says_what_is_wrong():
    hidden, weight, bias, labels = problem(5)
    loss = cross_entropy(hidden, weight, labels, bias)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="call forward again"):
        loss.backward()


# ---- precision ----------------------------------------------------------------------------------------------------
@options_of_the_loss
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_computed_in_float32(dtype, options):
    hidden, weight, bias, labels = problem(2 * CHUNK_TOKENS + 5, dtype=torch.float32)
    half = [tensor.detach().to(dtype).requires_grad_() for tensor in (hidden, weight, bias)]
    got = with_gradients(chunked, *half, labels, **options)
    assert got[0].dtype == torch.float32
    assert [gradient.dtype for gradient in got[1:]] == [dtype] * 3
    want = with_gradients(by_autograd, *[tensor.detach().float().requires_grad_() for tensor in half], labels, **options)
    same([tensor.float() for tensor in got], want, tolerance=2e-2)


def test_autocast_changes_the_precision_of_the_product_only():
    hidden, weight, bias, labels = problem(CHUNK_TOKENS + 5, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = with_gradients(chunked, hidden, weight, bias, labels)
    assert [tensor.dtype for tensor in got] == [torch.float32] * 4
    same(got, with_gradients(by_autograd, hidden, weight, bias, labels), tolerance=2e-2)


@pytest.mark.parametrize("scale", [1e3, 1e6])
def test_large_logits_stay_finite(scale):
    hidden, weight, bias, labels = problem(9, dtype=torch.float32)
    got = with_gradients(chunked, (hidden * scale).detach().requires_grad_(), weight, bias, labels, label_smoothing=0.1)
    assert all(tensor.isfinite().all() for tensor in got)


def test_many_targets_of_one_word_do_not_overflow_float16():
    """The gradient of the sum over a large batch exceeds float16, that of the mean does not."""
    tokens = 8192
    hidden = torch.full((tokens, WIDTH), 16.0, dtype=torch.float16).requires_grad_()
    weight = torch.zeros(VOCABULARY, WIDTH, dtype=torch.float16).requires_grad_()
    cross_entropy(hidden, weight, torch.zeros(tokens, dtype=torch.long)).backward()
    assert weight.grad.isfinite().all()
    assert weight.grad[0, 0].item() == pytest.approx(-16 * 10 / 11, rel=1e-2)


# ---- memory -------------------------------------------------------------------------------------------------------
class LargestTensor(TorchDispatchMode):
    """Numbers of elements of the largest tensor that any operation returns, and of all that are kept for the backward pass."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
        return result


def largest(run) -> int:
    with LargestTensor() as mode:
        run()
    return mode.largest


def test_no_tensor_of_tokens_times_vocabulary():
    tokens, vocabulary = 8 * CHUNK_TOKENS, 500
    hidden = torch.randn(tokens, WIDTH, requires_grad=True)
    weight = torch.randn(vocabulary, WIDTH, requires_grad=True)
    labels = torch.randint(vocabulary, (tokens,))
    options = dict(label_smoothing=0.1, z_loss=0.1)
    assert largest(lambda: by_autograd(hidden, weight, None, labels, **options).backward()) >= tokens * vocabulary
    assert largest(lambda: cross_entropy(hidden, weight, labels, **options).backward()) <= CHUNK_TOKENS * vocabulary


@pytest.mark.parametrize("model_class", [TransductForConditionalGeneration, TransductForMaskedLM, TransductForCausalLM])
def test_a_training_step_holds_no_tensor_of_tokens_times_vocabulary(model_class):
    vocabulary, length = 3000, 2 * CHUNK_TOKENS
    config = tiny(vocab_size=vocabulary, encoder_layers=1, decoder_layers=1)
    model = build(model_class, config, torch.float32).train()
    ids = words(2, length, high=vocabulary)
    source = ids[:, :8] if model_class is TransductForConditionalGeneration else ids
    inputs = dict(input_ids=source, labels=ids)
    whole = 2 * length * vocabulary
    attention = 2 * 4 * length * length  # scores, where the attention function forms them
    assert largest(lambda: model(**inputs).loss.backward()) <= max(CHUNK_TOKENS * vocabulary, attention)
    assert attention < whole
    assert largest(lambda: model(**inputs, return_logits=True).loss.backward()) >= whole


def test_the_head_sees_no_padding():
    """Ignored positions are dropped before the product with the vocabulary."""
    hidden, weight, _, labels = problem(100, ignored=0.0)
    labels[10:] = -100
    seen = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.aten.mm.default:
                seen.append(tuple(args[0].shape))
            return function(*args, **(kwargs or {}))

    with Products():
        cross_entropy(hidden, weight, labels)
    assert seen
    assert seen[0] == (10, WIDTH)
