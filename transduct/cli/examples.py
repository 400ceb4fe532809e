"""Examples of each command, shown at the end of its help; tests parse them all, and run most of them."""

EXAMPLES = {
    "describe": (
        "transduct describe vaswani-base",
        "transduct describe runs/g2p/model --json",
        "transduct describe t5-small --batch-size 64 --dtype bfloat16 --gradient-checkpointing",
    ),
    "plan": (
        "transduct plan examples/vaswani-base-wmt14/config.yaml --gpu h100 --gpus 8",
        "transduct plan examples/g2p/config.yaml --set training.seed=2 --json",
    ),
    "train": (
        "transduct train examples/g2p/config.yaml",
        "transduct train examples/g2p/config.yaml --output runs/mine --minutes 8",
        "accelerate launch --num-processes 8 -m transduct.training examples/vaswani-big-wmt14/config.yaml",
    ),
    "translate": (
        "transduct translate runs/g2p/model < words.txt > phonemes.txt",
        "transduct translate MODEL --input in.txt --output out.txt --resume",
        "transduct translate MODEL --input in.txt --n-best 4 --beams 4 --scores",
        "transduct translate MODEL --src-lang en --tgt-lang de --json < in.txt",
    ),
    "score": (
        "transduct score MODEL --source source.txt --target target.txt",
        "transduct score MODEL --source source.txt --target target.txt --json --output scores.jsonl",
    ),
    "evaluate": (
        "transduct evaluate examples/g2p/config.yaml",
        "transduct evaluate MODEL test.jsonl --metric bleu --metric chrf --json",
        "transduct evaluate test.source test.target --hypotheses out.txt --metric bleu",
    ),
    "average": (
        "transduct average runs/g2p --last 2 --output runs/g2p/average",
        "transduct average RUN --best 3 --metric eval_loss --output average",
        "transduct average checkpoint-1 checkpoint-2 --output average",
    ),
    "import": (
        "transduct import google-t5/t5-small runs/t5-small",
        "transduct import bart.large/model.pt runs/bart --vocabulary bart.large --dtype float16",
    ),
    "export": (
        "transduct export runs/t5-small back",
        "transduct export runs/g2p/model fast --to ctranslate2 --quantization int8",
    ),
    "push": (
        "transduct push runs/g2p me/g2p --dry-run",
        "transduct push runs/g2p me/g2p --license apache-2.0 --language en --private",
    ),
    "demo": (
        "transduct demo runs/g2p/model",
        "transduct demo MODEL --port 0",
    ),
    "doctor": (
        "transduct doctor",
        "transduct doctor runs/g2p",
        "transduct doctor MODEL --no-load --json",
    ),
}  # fmt: skip


def epilog(command: str) -> str | None:
    """The examples of a command as click keeps them: a line each; None for a command without any."""
    lines = EXAMPLES.get(command)
    return None if lines is None else "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])
