"""Fine-tune a published checkpoint: import it, train it on pairs of your own, and export it to its own family's format.

    python examples/finetune_imported.py --checkpoint google-t5/t5-small --train train.jsonl --validation valid.jsonl \
        --prefix "summarize: " --output runs/mine

The checkpoint is an id of the Hub or a folder of transformers: T5, BART, Marian and their kin (docs/converting.md). The data are
JSON lines, {"source": "...", "target": "..."}. The output folder gets `imported/`, the checkpoint as ours; `model/`, what was
trained; and `exported/`, the same for transformers' own class, which needs nothing of this package. Both conversions are
compared with what they were made from.

The optimizer is T5's, Adafactor at a constant 1e-3 (arXiv 1910.10683, section 3.1.2); for BART's kin take
--optimizer adamw --learning-rate 3e-5. The same as recipes, with the published values, is in examples/finetune*/.
"""

import argparse
from pathlib import Path

from datasets import Dataset, load_dataset
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, set_seed

import transduct
from transduct.convert.folders import export_folder, import_folder
from transduct.training import Seq2SeqCollator, TransductTrainer, TransductTrainingArguments


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True, help="an id of the Hub, or a folder of transformers")
    parser.add_argument("--train", required=True, metavar="FILE", help="JSON lines with source and target to train on")
    parser.add_argument("--validation", required=True, metavar="FILE", help="JSON lines with source and target to evaluate on")
    parser.add_argument("--output", required=True, type=Path, metavar="FOLDER", help="a new folder")
    parser.add_argument("--prefix", default="", help="text before each source, as the checkpoint was trained with")
    parser.add_argument("--optimizer", choices=("adafactor", "adamw"), default="adafactor", help="(%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="(%(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="optimizer steps (%(default)s)")
    parser.add_argument("--tokens", type=int, default=4096, help="source and target tokens of a batch (%(default)s)")
    parser.add_argument("--longest", type=int, default=512, help="tokens of a source or target; the rest is cut (%(default)s)")
    return parser.parse_args()


def tokenised(file: str, tokenizer, prefix: str, longest: int) -> Dataset:
    """Token ids of a file of pairs: `input_ids` and `labels`."""

    def encode(pairs: dict) -> dict:
        sources = [prefix + source for source in pairs["source"]]
        encoded = tokenizer(sources, text_target=pairs["target"], truncation=True, max_length=longest)
        return {"input_ids": encoded["input_ids"], "labels": encoded["labels"]}

    pairs = load_dataset("json", data_files=file, split="train")
    return pairs.map(encode, batched=True, remove_columns=pairs.column_names)


def training_arguments(options: argparse.Namespace) -> TransductTrainingArguments:
    return TransductTrainingArguments(
        str(options.output / "checkpoints"),
        optimizer="adafactor" if options.optimizer == "adafactor" else None,  # None: transformers' AdamW
        learning_rate=options.learning_rate,
        schedule="constant",
        max_steps=options.steps,
        max_tokens_per_batch=options.tokens,
        save_strategy="no",
        report_to="none",
        seed=1,
    )


def main() -> None:
    options = read_options()
    set_seed(1)
    imported, trained, exported = (options.output / name for name in ("imported", "model", "exported"))
    print("imported and compared:", import_folder(options.checkpoint, imported).checked, sep="\n")

    tokenizer = AutoTokenizer.from_pretrained(imported)
    model = AutoModelForSeq2SeqLM.from_pretrained(imported)
    train, validation = (
        tokenised(file, tokenizer, options.prefix, options.longest) for file in (options.train, options.validation)
    )
    trainer = TransductTrainer(
        model,
        training_arguments(options),
        train_dataset=train,
        eval_dataset=validation,
        data_collator=Seq2SeqCollator(tokenizer, model=model),
        processing_class=tokenizer,
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    print(f"validation loss: {before:.4f} before, {trainer.evaluate()['eval_loss']:.4f} after")
    trainer.save_model(str(trained))

    source = load_dataset("json", data_files=options.validation, split="train")[0]["source"]
    print(f"{source} -> {transduct.translate(model, tokenizer, [source], prefix=options.prefix)[0]}")
    print("exported and compared:", export_folder(trained, exported).checked, sep="\n")


if __name__ == "__main__":
    main()
