"""Train a transduct model with transformers' own `Seq2SeqTrainer`: nothing here but `import transduct` is particular to it.

The data are two files of JSON lines, {"source": "...", "target": "..."}. FOLDER holds a model and its tokenizer, both loaded
through the Auto classes; with --create a small untrained model is made there first, with a tokenizer for the training file.

    python examples/seq2seq_trainer.py --model FOLDER --create --train train.jsonl --validation valid.jsonl --output runs/first

A stopped run goes on from its last checkpoint with the same command, --resume instead of --create. Label smoothing and z-loss
are part of the model's config and act here too. Batches by tokens, the papers' schedules and limits of time are what
`transduct.training.TransductTrainer` adds to this.
"""

import argparse

import numpy as np
from datasets import load_dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)

import transduct


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="FOLDER", help="folder of the model and its tokenizer to start from")
    parser.add_argument("--create", action="store_true", help="make a small untrained model and its tokenizer in FOLDER first")
    parser.add_argument("--train", required=True, metavar="FILE", help="JSON lines with source and target to train on")
    parser.add_argument("--validation", required=True, metavar="FILE", help="JSON lines with source and target to evaluate on")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="where checkpoints and the best model go")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in the output folder")
    parser.add_argument("--steps", type=int, default=2000, help="optimizer steps in all (%(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="examples a step and device (%(default)s)")
    parser.add_argument("--accumulate", type=int, default=1, help="batches an optimizer step (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="peak of AdamW's learning rate (%(default)s)")
    parser.add_argument("--warmup", type=int, default=100, help="steps up to that peak (%(default)s)")
    parser.add_argument("--every", type=int, default=500, help="steps between two evaluations and checkpoints (%(default)s)")
    parser.add_argument("--beams", type=int, default=1, help="beams in evaluation (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--cpu", action="store_true", help="leave accelerators alone")
    return parser.parse_args()


def create(folder: str, pairs) -> None:
    """A small model of the paper's shape, with a tokenizer that takes characters as they are."""
    texts = (text for pair in pairs for text in (pair["source"], pair["target"]))
    tokenizer = transduct.TransductTokenizer.train(texts, kind="chars")
    sizes = dict(vocab_size=len(tokenizer), d_model=64, d_ff=256, num_heads=4, encoder_layers=2, decoder_layers=2)
    config = transduct.config_from_preset("vaswani-base", **sizes, norm_position="pre", max_positions=256)
    transduct.TransductForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def training_arguments(options: argparse.Namespace) -> Seq2SeqTrainingArguments:
    return Seq2SeqTrainingArguments(
        output_dir=options.output,
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        per_device_eval_batch_size=options.batch,
        gradient_accumulation_steps=options.accumulate,
        learning_rate=options.learning_rate,
        lr_scheduler_type="inverse_sqrt",
        warmup_steps=options.warmup,
        eval_strategy="steps",
        save_strategy="steps",
        logging_strategy="steps",
        eval_steps=options.every,
        save_steps=options.every,
        logging_steps=options.every,
        load_best_model_at_end=True,
        metric_for_best_model="exact_match",
        predict_with_generate=True,
        generation_num_beams=options.beams,
        seed=options.seed,
        use_cpu=options.cpu,
        report_to="none",
    )


def main() -> None:
    options = read_options()
    set_seed(options.seed)
    data = load_dataset("json", data_files={"train": options.train, "validation": options.validation})
    if options.create:
        create(options.model, data["train"])
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForSeq2SeqLM.from_pretrained(options.model)

    def tokenize(pairs: dict) -> dict:
        return tokenizer(pairs["source"], text_target=pairs["target"])

    def compute_metrics(prediction) -> dict[str, float]:
        def texts(ids: np.ndarray) -> list[str]:
            return tokenizer.batch_decode(np.where(ids == -100, tokenizer.pad_token_id, ids), skip_special_tokens=True)

        generated, wanted = texts(prediction.predictions), texts(prediction.label_ids)
        return {"exact_match": np.mean([one == other for one, other in zip(generated, wanted, strict=True)]).item()}

    data = data.map(tokenize, batched=True, remove_columns=data["train"].column_names)
    trainer = Seq2SeqTrainer(
        model,
        training_arguments(options),
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        data_collator=DataCollatorForSeq2Seq(tokenizer, model),
        processing_class=tokenizer,
        compute_metrics=compute_metrics,
    )
    trainer.train(resume_from_checkpoint=options.resume)
    trainer.save_metrics("eval", trainer.evaluate())
    trainer.save_model()


if __name__ == "__main__":
    main()
