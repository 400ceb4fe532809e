"""R-drop, guided alignment and word dropout against brute force, alone and through the trainer."""

import pytest
import torch
from datasets import Dataset

from tiny_training import QUIET, Tokenizer, pairs, tiny_model, tiny_trainer
from transduct.training import Seq2SeqCollator, TransductTrainer, TransductTrainingArguments
from transduct.training.alignments import AlignmentCollator
from transduct.training.extras import GuidedAlignment, RDrop, WordDropout, alignment_loss, symmetric_divergence, twice


def batch_of(rows, model, **columns):
    return {**Seq2SeqCollator(Tokenizer(), model=model)(rows), **columns}


def gradients(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def attached(extra, model):
    extra.attach(model)
    return model


def logits_of(model, batch):
    """All logits of a training forward pass, which itself would not make them, by the decoder's states."""
    states = []
    handle = model.model.register_forward_hook(lambda _, __, output: states.append(output.last_hidden_state))
    model.train()(**batch)
    handle.remove()
    return model.project(states[0])


@pytest.mark.parametrize("tokens", [3, 700])
def test_divergence_of_two_predictions(tokens):
    head = torch.nn.Linear(4, 6).double()
    first, second = (torch.randn(2, tokens, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    labels = torch.randint(0, 6, (2, tokens))
    labels[0, 1:] = -100
    total = symmetric_divergence(head, first, second, labels)
    expected = 0.0
    for p, q, label in zip(head(first).flatten(0, 1), head(second).flatten(0, 1), labels.flatten(), strict=True):
        if label != -100:
            p, q = torch.distributions.Categorical(logits=p), torch.distributions.Categorical(logits=q)
            expected += torch.distributions.kl_divergence(p, q) + torch.distributions.kl_divergence(q, p)
    torch.testing.assert_close(total, expected)
    inputs = (first, second, head.weight)
    for mine, theirs in zip(torch.autograd.grad(total, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("count", [None, 50])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_r_drop_is_the_papers_equation_halved(count, smoothing):
    model = tiny_model(label_smoothing=smoothing).double()
    batch = batch_of(pairs(5), model)
    labels = batch["labels"]
    torch.manual_seed(3)
    both = logits_of(model, {name: twice(value, 5) for name, value in batch.items()})  # two passes with their own dropout
    log_p, log_q = both.log_softmax(-1).chunk(2)
    total = torch.zeros((), dtype=torch.float64)
    for one, other, label in zip(log_p.flatten(0, 1), log_q.flatten(0, 1), labels.flatten(), strict=True):
        if label != -100:
            for each in (one, other):
                total = total - (1 - smoothing) * each[label] - smoothing * each.mean()
            total = total + 0.7 / 2 * ((one.exp() * (one - other)).sum() + (other.exp() * (other - one)).sum())
    expected = total / 2 / (count or (labels != -100).sum())
    expected.backward()
    theirs = gradients(model)
    model.zero_grad()
    torch.manual_seed(3)
    loss = attached(RDrop(0.7), model)(**batch, num_items_in_batch=count).loss
    torch.testing.assert_close(loss, expected)
    loss.backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, theirs[name])


def test_without_weight_and_in_evaluations_r_drop_changes_nothing():
    model = tiny_model(dropout=0.0)
    batch = batch_of(pairs(5), model)
    plain = model.train()(**batch).loss
    evaluated = model.eval()(**batch)
    extra = RDrop(0.0)
    attached(extra, model)
    torch.testing.assert_close(model.train()(**batch).loss, plain)
    again = model.eval()(**batch)
    assert torch.equal(again.loss, evaluated.loss)
    assert again.logits.shape == evaluated.logits.shape
    extra.detach()
    assert not model._forward_hooks
    assert not model.model._forward_hooks
    assert not model._forward_pre_hooks


def test_equal_passes_do_not_diverge():
    model = tiny_model(dropout=0.0)
    batch = batch_of(pairs(5), model)
    plain = model.train()(**batch).loss
    torch.testing.assert_close(attached(RDrop(9.0), model)(**batch).loss, plain)


def test_alignment_loss_by_hand():
    log_weights = torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [0.3, 0.3, 0.4]]]).log()
    alignments = torch.tensor([[[0, 0], [1, 1], [2, 1], [2, 2], [-1, -1]]])  # the second target has two partners
    labels = torch.tensor([[7, 8, -100]])  # the third target is ignored
    expected = -(torch.tensor(0.5).log() + (torch.tensor(0.2).log() + torch.tensor(0.7).log()) / 2)
    torch.testing.assert_close(alignment_loss(log_weights, alignments, labels), expected)
    assert alignment_loss(log_weights, torch.zeros(1, 0, 2, dtype=torch.int64), labels).item() == 0


def aligned_rows(count=6):
    """Reversed symbols: target t is aligned with source n - 1 - t."""
    rows = pairs(count)
    for row in rows:
        last = len(row["labels"]) - 2
        row["alignments"] = [[last - position, position] for position in range(last + 1)]
    return rows


@pytest.mark.parametrize("head", [0, 1, None])
@pytest.mark.parametrize("fields", [{}, {"num_key_value_heads": 1}, {"attention_scale": "none", "norm_position": "pre"}])
def test_guided_alignment_is_the_cross_entropy_of_the_models_own_weights(head, fields):
    model = tiny_model(decoder_layers=2, dropout=0.0, **fields).double()
    rows = aligned_rows()
    batch = AlignmentCollator(Seq2SeqCollator(Tokenizer(), model=model))(rows)
    plain = {name: value for name, value in batch.items() if name != "alignments"}
    model.train()
    output = model(**plain, output_attentions=True, num_items_in_batch=40)
    weights = output.cross_attentions[0]  # (B, H, T, S)
    weights = weights.mean(1) if head is None else weights[:, head]
    total = sum(-weights[row, t, s].log() for row, each in enumerate(rows) for s, t in each["alignments"])
    expected = output.loss + 0.3 * total / 40
    expected.backward()
    theirs = gradients(model)
    model.zero_grad()
    loss = attached(GuidedAlignment(0.3, layer=-2, head=head), model)(**batch, num_items_in_batch=40).loss
    torch.testing.assert_close(loss, expected)
    loss.backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, theirs[name])


def test_guided_alignment_teaches_a_head_where_to_look(tmp_path):
    model = tiny_model(dropout=0.0)
    options = dict(max_steps=40, learning_rate=0.02, per_device_train_batch_size=24, optim="adamw_torch")
    trainer = aligned_trainer(tmp_path, model, aligned_rows(24), guided_alignment={"weight": 1.0, "layer": -1}, **options)
    share_before = share_on_alignments(model, aligned_rows(24))
    trainer.train()
    assert share_on_alignments(model, aligned_rows(24)) > share_before + 0.2
    assert not model._forward_pre_hooks


def share_on_alignments(model, rows):
    batch = AlignmentCollator(Seq2SeqCollator(Tokenizer(), model=model))(rows)
    batch.pop("alignments")
    with torch.no_grad():
        weights = model.eval()(**batch, output_attentions=True).cross_attentions[-1][:, 0]
    values = [weights[row, t, s].item() for row, each in enumerate(rows) for s, t in each["alignments"]]
    return sum(values) / len(values)


def aligned_trainer(folder, model, rows, **options):
    args = TransductTrainingArguments(output_dir=str(folder), **{**QUIET, **options})
    collator = AlignmentCollator(Seq2SeqCollator(Tokenizer(), model=model))
    return TransductTrainer(model, args, train_dataset=Dataset.from_list(rows), data_collator=collator)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_all_together_are_exact_under_accumulation_and_checkpointing(tmp_path, checkpointing):
    """The weights after one update are those of one large batch, whatever the parts that it is computed in."""
    results = []
    for size, parts in ((6, 1), (2, 3)):
        torch.manual_seed(0)
        model = tiny_model(dropout=0.0).double()
        options = dict(per_device_train_batch_size=size, gradient_accumulation_steps=parts, max_steps=2, learning_rate=0.1)
        extras = dict(r_drop=1.0, guided_alignment={"weight": 0.5, "layer": 0})
        trainer = aligned_trainer(
            tmp_path, model, aligned_rows(), **options, **extras, optim="sgd", activation_checkpointing=checkpointing
        )
        trainer.train()
        results.append(dict(model.named_parameters()))
    for name, parameter in results[0].items():
        torch.testing.assert_close(parameter, results[1][name], rtol=1e-9, atol=1e-12)


def test_a_resumed_run_is_bit_equal_to_a_straight_one(tmp_path):
    extras = dict(r_drop=1.0, guided_alignment={"layer": 0, "head": None}, word_dropout=0.3, target_word_dropout=0.2)
    options = dict(extras, max_steps=4, learning_rate=0.1, per_device_train_batch_size=2, word_dropout_by="zero")

    def trainer(folder, seed=0, **more):
        return aligned_trainer(folder, tiny_model(seed), aligned_rows(8), **{**options, **more})

    straight = trainer(tmp_path / "straight")
    straight.train()
    trainer(tmp_path / "stopped", save_strategy="steps", save_steps=2).train()
    resumed = trainer(tmp_path / "stopped", seed=9)
    resumed.train(resume_from_checkpoint=str(tmp_path / "stopped" / "checkpoint-2"))
    without = trainer(tmp_path / "without", r_drop=0.0)
    without.train()
    for mine, theirs in zip(resumed.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert any(not torch.equal(a, b) for a, b in zip(without.model.parameters(), straight.model.parameters(), strict=True))


class Recorded(torch.nn.Module):
    """Notes what a model is called with."""

    def __init__(self, model):
        super().__init__()
        self.calls = []
        model.register_forward_pre_hook(lambda _, args, kwargs: self.calls.append(kwargs), with_kwargs=True)


@pytest.mark.parametrize("with_inputs", [True, False])
def test_hidden_words_become_unknown(with_inputs):
    model = tiny_model()
    rows = [{"input_ids": [*range(3, 20)] * 20 + [1], "labels": [*range(3, 20)] * 20 + [1]} for _ in range(2)]
    batch = batch_of(rows, model)
    inputs = batch["decoder_input_ids"].clone()
    if not with_inputs:
        del batch["decoder_input_ids"]
    extra = WordDropout(0.25, 0.5, unk_token_id=2, special_ids=(0, 1, 5))
    attached(extra, model)
    recorded = Recorded(model)
    model.train()(**batch)
    model.eval()(**batch)
    for name, original, share in (("input_ids", batch["input_ids"], 0.25), ("decoder_input_ids", inputs, 0.5)):
        seen = recorded.calls[0][name]
        changed = seen != original
        assert (seen[changed] == 2).all()
        assert not torch.isin(original[changed], torch.tensor([0, 1, 5])).any()
        assert changed.float().mean().item() == pytest.approx(share, abs=0.08)
    assert torch.equal(recorded.calls[1]["input_ids"], batch["input_ids"])
    assert torch.equal(recorded.calls[0]["labels"], batch["labels"])


@pytest.mark.parametrize(("source", "target"), [(0.5, 0.0), (0.0, 0.5), (0.4, 0.3)])
def test_hidden_embeddings_become_zero(source, target):
    model = tiny_model()
    extra = WordDropout(source, target, by="zero", special_ids=(0, 1))
    attached(extra, model)
    embedded = {}
    for name in ("encoder", "decoder"):
        layer = getattr(model.model, name).embed_tokens
        layer.register_forward_hook(lambda _, args, output, name=name: embedded.__setitem__(name, (args[0], output)))
    model.train()(**batch_of(pairs(24), model))
    for name, share in (("encoder", source), ("decoder", target)):
        ids, output = embedded[name]
        zero = (output == 0).all(-1)
        assert not zero[ids <= 1].any()
        assert bool(zero.any()) == (share > 0)
    model.eval()(**batch_of(pairs(24), model))
    assert not (embedded["encoder"][1] == 0).all(-1).any()


def test_words_are_hidden_by_the_seed_alone():
    extra = WordDropout(0.5, special_ids=())
    ids = torch.arange(50).view(5, 10)
    masks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        masks.append(extra.hidden(ids, 0.5))
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


def test_the_unknown_token_is_the_tokenizers(tmp_path):
    options = dict(max_steps=1, word_dropout=0.2)
    trainer = tiny_trainer(tmp_path, **options)
    with pytest.raises(ValueError, match="needs a tokenizer with an unknown token"):
        trainer.train()
    trainer = tiny_trainer(tmp_path, **options)
    trainer.callback_handler.processing_class = type("Unknown", (), {"unk_token_id": 2, "all_special_ids": [0, 1, 2]})()
    trainer.train()
    extra = next(each for each in trainer.callback_handler.callbacks if isinstance(each, WordDropout))
    assert (extra.unk_token_id, extra.special_ids) == (2, {0, 1, 2})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RDrop(-1.0), "r_drop=-1.0"),
        (lambda: GuidedAlignment(-0.1), r"guided_alignment\.weight=-0.1"),
        (lambda: GuidedAlignment(layer=1).attach(tiny_model()), r"layer=1: the decoder has 1 layers"),
        (lambda: GuidedAlignment(layer=0, head=2).attach(tiny_model()), r"head=2: there are 2 heads"),
        (lambda: RDrop(1.0).attach(torch.nn.Linear(2, 2)), "the model is a Linear"),
        (lambda: WordDropout(1.0), "word_dropout=1.0"),
        (lambda: WordDropout(0.1, by="mask"), "word_dropout_by='mask'"),
    ],
)
def test_errors_name_value_and_rule(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"r_drop": -1.0}, "r_drop=-1.0"),
        ({"word_dropout": 1.5}, "word_dropout=1.5"),
        ({"word_dropout_by": "mask"}, "word_dropout_by='mask'"),
        ({"guided_alignment": {"weight": "x"}}, r"guided_alignment\.weight='x' must be a number"),
        ({"guided_alignment": {"layer": "last"}}, r"guided_alignment\.layer='last' must be a whole number$"),
        ({"guided_alignment": {"head": -1}}, r"guided_alignment\.head=-1 must be a whole number of at least 0"),
        ({"guided_alignment": {"heads": 1}}, r"guided_alignment\.heads is unknown"),
    ],
)
def test_arguments_that_cannot_work(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        tiny_trainer(tmp_path, rows=pairs(3), **options)


def test_batches_without_alignments_and_compiled_models_are_refused(tmp_path):
    trainer = aligned_trainer(tmp_path, tiny_model(), pairs(4), guided_alignment={"layer": 0}, max_steps=1)
    with pytest.raises(ValueError, match="the batch has no alignments"):
        trainer.train()
    trainer = tiny_trainer(tmp_path, r_drop=1.0, max_steps=1)
    trainer.args.torch_compile = True
    with pytest.raises(ValueError, match="RDrop and torch_compile exclude each other"):
        trainer.train()


def test_reentrant_checkpointing_is_refused(tmp_path):
    trainer = aligned_trainer(
        tmp_path,
        tiny_model(),
        aligned_rows(),
        guided_alignment={"layer": 0},
        max_steps=1,
        activation_checkpointing=True,
        activation_checkpointing_kwargs={"use_reentrant": True},
    )
    with pytest.raises(ValueError, match="use_reentrant=False"):
        trainer.train()
