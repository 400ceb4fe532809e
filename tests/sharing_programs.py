"""Programs that share and load models, each in a process of its own; see test_hub_loading.py.

    python tests/sharing_programs.py NAME [ARGUMENT...]

What they are told about the Hub they have from their environment.
"""

import sys
from pathlib import Path

import pytest
import torch

import transduct
from tiny_training import QUIET, pairs, tiny_model
from tiny_translation import tiny_translation
from transduct.training import Seq2SeqCollator, TransductTrainer, TransductTrainingArguments

SOURCE = "hello there."
SAVING = dict(save_strategy="steps", save_steps=2)


def translated(name: str, **options) -> str:
    """What the model of the Hub makes of a source."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(name, **options)
    model = AutoModelForSeq2SeqLM.from_pretrained(name, **options)
    assert type(model) is transduct.TransductForConditionalGeneration
    ids = model.generate(**tokenizer([SOURCE], return_tensors="pt"), max_new_tokens=8, num_beams=2)
    return tokenizer.batch_decode(ids, skip_special_tokens=True)[0]


def load(name: str, *revisions: str) -> None:
    for revision in revisions:
        print(translated(name, revision=revision))


def load_private(name: str, others: str, own: str) -> None:
    """Without a token, with another's, and with one's own."""
    for token in (False, others):
        with pytest.raises(OSError, match=name):
            translated(name, token=token)
    print(translated(name, token=own))


def share_adapter(folder: str, name: str) -> None:
    from peft import AutoPeftModelForSeq2SeqLM

    AutoPeftModelForSeq2SeqLM.from_pretrained(folder).push_to_hub(name)


def answers(file: str, *names: str) -> None:
    """Logits (1, T, V) of models, and of adapters with the model that each belongs to, written to a file."""
    from peft import AutoPeftModelForSeq2SeqLM
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    classes = (AutoPeftModelForSeq2SeqLM if "adapter" in name else AutoModelForSeq2SeqLM for name in names)
    models = [model_class.from_pretrained(name).eval() for model_class, name in zip(classes, names, strict=True)]
    inputs = AutoTokenizer.from_pretrained(names[0])(["cab"], text_target=["C A B"], return_tensors="pt")
    with torch.no_grad():
        torch.save([model(**inputs).logits for model in models], file)


def share_by_methods(name: str) -> None:
    """As `push_to_hub` of a model and a tokenizer do, and `save_pretrained`."""
    model, tokenizer = tiny_translation()
    model.push_to_hub(name, private=True, max_shard_size="30KB", commit_message="the model")
    tokenizer.push_to_hub(name)
    other, _ = tiny_translation(seed=7)
    other.save_pretrained(Path("saved"), push_to_hub=True, repo_id=name, revision="other", max_shard_size="30KB")
    tokenizer.push_to_hub(name, revision="other")
    for revision in ("main", "other"):
        print(translated(name, revision=revision))
    for one in (model, other):
        ids = one.generate(**tokenizer([SOURCE], return_tensors="pt"), max_new_tokens=8, num_beams=2)
        print(tokenizer.batch_decode(ids, skip_special_tokens=True)[0])


def train(name: str, token: str, strategy: str) -> None:
    """A training that uploads on its way and at its end; the token is among its arguments alone."""
    model = tiny_model()
    arguments = TransductTrainingArguments(
        output_dir="run", push_to_hub=True, hub_model_id=name, hub_token=token, hub_strategy=strategy, hub_always_push=True,
        max_steps=4, **QUIET | {"save_strategy": "steps", "logging_strategy": "steps"}, save_steps=2, logging_steps=1,
    )  # fmt: skip
    tokenizer = transduct.TransductTokenizer.train(iter(["abcdefghijklmnopq"]), kind="chars")
    trainer = TransductTrainer(
        model, arguments, train_dataset=pairs(), data_collator=Seq2SeqCollator(tokenizer, model=model), processing_class=tokenizer
    )
    trainer.train()
    trainer.push_to_hub(language="en", license="mit")


def train_by_theirs(name: str) -> None:
    """A training by transformers' own trainer, which shares on its way and at its end; prints logits of the model."""
    from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

    model = tiny_model()
    tokenizer = transduct.TransductTokenizer.train(iter(["abcdefghijklmnopq"]), kind="chars")
    arguments = Seq2SeqTrainingArguments("theirs", push_to_hub=True, hub_model_id=name, max_steps=4, **QUIET | SAVING)
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    trainer = Seq2SeqTrainer(model, arguments, collator, pairs(), processing_class=tokenizer)
    trainer.train()
    trainer.push_to_hub()
    print(model.eval()(**tokenizer(["cab"], text_target=["bac"], return_tensors="pt")).logits.tolist())


if __name__ == "__main__":
    torch.set_num_threads(1)
    programs = (answers, load, load_private, share_adapter, share_by_methods, train, train_by_theirs)
    {program.__name__: program for program in programs}[sys.argv[1]](*sys.argv[2:])
