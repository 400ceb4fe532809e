"""The examples in the help of each command do what they say: each line is run, on tiny files of the names that it has."""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from transformers import AutoTokenizer, M2M100Config, M2M100ForConditionalGeneration, T5Config, T5ForConditionalGeneration

from published import randomise
from test_training_run import raw_recipe
from tiny_tokenizers import write_tokenizer
from tiny_translation import tiny_translation
from transduct.cli.examples import EXAMPLES
from transduct.cli.main import run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
NOT_RUN = {
    "accelerate launch": "needs GPUs; tests/test_accelerate_launch.py and tests/test_training_processes.py do without",
    "transduct import bart.large/model.pt": "needs a file of fairseq; tests/test_convert_fairseq.py writes some",
    "transduct push runs/g2p me/g2p --license": "needs the Hub; tests/test_cli_push.py has a stand-in",
}
"""Beginnings of lines that are not run: the reason, and what covers them."""
LINES = [line for lines in EXAMPLES.values() for line in lines if not line.startswith(tuple(NOT_RUN))]
SPECIAL = dict(pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None)


def test_what_is_not_run_is_there_and_tested_elsewhere():
    lines = [line for lines in EXAMPLES.values() for line in lines]
    for beginning, reason in NOT_RUN.items():
        assert any(line.startswith(beginning) for line in lines)
        assert all((ROOT / file).is_file() for file in re.findall(r"tests/\w+\.py", reason))


def several_languages(folder: Path) -> None:
    """A model whose tokenizer knows English and German."""
    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer("m2m_100", folder))
    sizes = dict(d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2)
    sizes |= dict(encoder_ffn_dim=16, decoder_ffn_dim=16, vocab_size=len(tokenizer), max_position_embeddings=64)
    model = M2M100ForConditionalGeneration(M2M100Config(**SPECIAL, **sizes))
    randomise(model, 0)
    model.save_pretrained(folder)


def t5(folder: Path) -> None:
    write_tokenizer("t5", folder)
    sizes = dict(vocab_size=384, d_model=16, d_kv=4, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0)
    T5ForConditionalGeneration(T5Config(**sizes)).save_pretrained(folder)


def files(folder: Path) -> None:
    lines = ["abc", "hello", "cab"]
    for name in ("in.txt", "words.txt", "source.txt", "target.txt", "test.source", "test.target", "out.txt"):
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    (folder / "test.jsonl").write_text("".join(json.dumps({"source": line, "target": line}) + "\n" for line in lines))


def recipes(folder: Path) -> None:
    """Those of the repository that are planned alone, and a tiny one in the place of the demo's."""
    shutil.copytree(ROOT / "examples" / "vaswani-base-wmt14", folder / "examples" / "vaswani-base-wmt14")
    (folder / "examples" / "g2p").mkdir()
    changes = dict(eval_strategy="steps", eval_steps=4, save_strategy="steps", save_total_limit=3, max_tokens_per_batch=400)
    raw = raw_recipe(folder / "examples" / "g2p", **changes) | {"output": "runs/g2p"}
    (folder / "examples" / "g2p" / "config.yaml").write_text(yaml.safe_dump(raw))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with all that the examples name, and what the first example of `train` and of `import` makes of it."""
    folder = tmp_path_factory.mktemp("examples")
    recipes(folder)
    files(folder)
    t5(folder / "google-t5" / "t5-small")
    several_languages(folder / "MANY")
    for part in tiny_translation(end=2.0):
        part.save_pretrained(folder / "MODEL")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in ("train", "import"):
            assert run(shlex.split(EXAMPLES[command][0])[1:]) == 0
    shutil.copytree(folder / "runs" / "g2p", folder / "RUN")
    for number, step in enumerate((4, 8), start=1):
        shutil.copytree(folder / "RUN" / "checkpoints" / f"checkpoint-{step}", folder / f"checkpoint-{number}")
    return folder


@pytest.mark.parametrize("line", LINES)
def test_the_example(line, prepared, tmp_path, monkeypatch, capfd):
    folder = Path(shutil.copytree(prepared, tmp_path / "here"))
    monkeypatch.chdir(folder)
    monkeypatch.setattr("transduct.page.serving.serve", lambda *_: None)  # else `demo` would not end
    if "import" in line:
        shutil.rmtree("runs/t5-small")
    if "--tgt-lang" in line:
        Path("MODEL").rename("ANOTHER"), Path("MANY").rename("MODEL")
    command, _, written = line.partition(" > ")
    command, _, read = command.partition(" < ")
    if written:
        monkeypatch.setattr(sys, "stdout", open(written, "w"))  # noqa: SIM115
    if read:
        monkeypatch.setattr(sys, "stdin", open(read))  # noqa: SIM115
    code = run(shlex.split(command)[1:])
    sys.stdout.flush()
    assert code == 0, capfd.readouterr().err
    output = re.search(r"--output (\S+)", line)
    made = written or (output and output[1])
    if made:
        assert Path(made).stat().st_size > 0
    else:
        assert capfd.readouterr().out
