"""Text in, text out: `transduct.translate` against transformers' Marian with equal weights, and CTranslate2, on one thread.

The translations are a trained model's, of their natural lengths, so that sorting, padding and sentences that end early count. The
model is trained by `examples/translation/config.yaml`, once, unless `--model` names a folder. transformers is driven the usual
way: batches in the order of the lines through tokenizer, `generate` and `batch_decode`. CTranslate2 is called by `translate`, and
directly with the same sorting and batches, which tells what `translate` costs. Each side's BLEU and chrF (sacreBLEU) stand beside
its time: those of transformers and ours must agree, those of int8 tell what rounding loses.

    python benchmarks/translate.py                                                      # trains 15 minutes, then measures
    python benchmarks/translate.py --set model.d_model=256 --set model.d_ff=1024 --output runs/benchmark-translate/wider
    python benchmarks/translate.py --model FOLDER --text libreoffice --batch 64

The model needs sinusoids in halves, which is the layout that Marian has.
"""

import argparse
import copy
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from side_by_side import by_turns, one_thread, positive, print_table, times_faster  # first: it settles threads

# isort: split
import torch
from decode import engines, translator_of
from translation_text import translation_pairs

from transduct import translate
from transduct.convert import to_transformers
from transduct.decoding import int8_copy
from transduct.decoding.commands import load
from transduct.decoding.engines import load_engine
from transduct.decoding.int8 import SMALLEST
from transduct.decoding.packed import packed_copy
from transduct.decoding.windows import length_batches
from transduct.layers import SMALL_MATRIX
from transduct.training.metrics import bleu, chrf

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))
from comparison import load_file  # noqa: E402

RECIPE = ROOT / "examples" / "translation" / "config.yaml"
TEXTS = ("homeassistant", "libreoffice")
MOST_TOKENS, SOURCE_TOKENS = 128, 4096
"""The longest translation, and the source tokens of a batch where batches are sorted."""
Pairs = list[tuple[str, str]]
Side = Callable[[], list[str]]


def trained(options: argparse.Namespace) -> Path:
    """The folder of a model; it is trained if it is not there."""
    from transduct.training.recipe import load_recipe
    from transduct.training.run import run

    folder = Path(options.output or f"runs/benchmark-translate/{options.text}")
    data = [f"data.{split}.function=data.py:{options.text}" for split in ("train", "validation", "test")]
    recipe = load_recipe(str(RECIPE), ["model.sinusoid_layout=halves", *data, *options.changes])
    recipe.output = str(folder)
    if not (folder / "model" / "model.safetensors").is_file():
        if run(recipe, minutes=options.minutes).signal is not None:
            raise SystemExit("training was stopped; the same command goes on with it")
        return folder / "model"
    there = load_recipe(str(folder / "recipe.yaml"))
    if (there.model, there.tokenizer) != (recipe.model, recipe.tokenizer):
        raise SystemExit(f"{folder} holds a model of another recipe: choose another --output")
    return folder / "model"


def tiny() -> tuple[Any, Any]:
    """A model with random weights whose translations end soon, and its tokenizer, for `--quick`."""
    sys.path.insert(0, str(ROOT / "tests"))
    from tiny_translation import tiny_translation

    return tiny_translation(end=2.0, positions="sinusoidal", sinusoid_layout="halves", tie_embeddings="all", max_positions=256)


def loaded(options: argparse.Namespace) -> tuple[Any, Any, Pairs]:
    """Model, tokenizer and test set."""
    if options.quick:
        return *tiny(), translation_pairs("example")
    model, tokenizer = load(str(options.model or trained(options)), torch.float32, "cpu")
    read = getattr(load_file(ROOT / "examples" / "translation" / "data.py"), options.text)
    return model, tokenizer, list(read("test"))[: options.lines]


def the_usual_way(model: Any, tokenizer: Any, lines: Sequence[str], batch: int, beams: int) -> list[str]:
    """Translations by transformers alone: so many lines at a time, in their order."""
    found: list[str] = []
    for start in range(0, len(lines), batch):
        inputs = tokenizer(list(lines[start : start + batch]), padding=True, return_tensors="pt")
        ids = model.generate(**inputs, num_beams=beams, do_sample=False)
        found += tokenizer.batch_decode(ids, skip_special_tokens=True)
    return found


def directly(translator: Any, tokenizer: Any, lines: Sequence[str], beams: int) -> list[str]:
    """Translations by CTranslate2 alone, in the batches that `translate` makes."""
    sources = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(list(lines))["input_ids"]]
    found = [""] * len(lines)
    for batch in length_batches([len(source) for source in sources], SOURCE_TOKENS):
        results = translator.translate_batch(
            [sources[number] for number in batch],
            beam_size=beams,
            min_decoding_length=0,
            max_decoding_length=MOST_TOKENS,
            max_input_length=0,
        )
        ids = [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
        for number, text in zip(batch, tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True):
            found[number] = text
    return found


def copies(model: Any, quick: bool) -> dict[str, Any]:
    """The model with other matrices, as far as its largest is large enough; of a tiny one all."""
    makers = {"packed": (packed_copy, SMALL_MATRIX), "int8": (int8_copy, SMALLEST)}
    largest = model.lm_head.weight.numel()
    return {name: make(model, 1 if quick else None) for name, (make, least) in makers.items() if quick or largest >= least}


def sides(model: Any, tokenizer: Any, lines: Sequence[str], folder: Path, options: argparse.Namespace) -> dict[str, Side]:
    """What is timed, by name; transformers first."""
    model.generation_config.max_new_tokens, model.generation_config.length_penalty = MOST_TOKENS, 1.0
    theirs = to_transformers(model, "marian").eval()
    theirs.generation_config = copy.deepcopy(model.generation_config)
    models = {"transduct": model} | copies(model, options.quick)
    beams = options.beams
    found: dict[str, Side] = {"transformers": lambda: the_usual_way(theirs, tokenizer, lines, options.batch, beams)}
    folders = {} if options.without_engines else engines(model, tokenizer, folder)
    for name, each in folders.items():
        models[name] = load_engine(each)
    for name, each in models.items():
        found[name] = lambda each=each: translate(each, tokenizer, lines, beams, max_tokens_per_batch=SOURCE_TOKENS)
    for name, each in folders.items():
        translator = translator_of(each)
        found[f"{name}, directly"] = lambda translator=translator: directly(translator, tokenizer, lines, beams)
    return found


def check(wanted: Sequence[str], found: Sequence[str], references: Sequence[str]) -> None:
    """Refuse to compare the times of translations that are not the same.

    Raises:
        AssertionError: where ours are not transformers', but for a few ties.
    """
    same = sum(one == other for one, other in zip(wanted, found, strict=True)) / len(wanted)
    scores = bleu(wanted, list(references)), bleu(found, list(references))
    if same < 0.95 or abs(scores[0] - scores[1]) > 0.1:
        raise AssertionError(f"{same:.1%} of the lines are transformers', BLEU {scores[0]:.2f} and {scores[1]:.2f}")


def rows_of(found: dict[str, list[str]], measured: dict[str, list[float]], references: Sequence[str]) -> list[list[str]]:
    """A row of the table for each side."""
    rows = []
    for name, texts in found.items():
        same = sum(one == other for one, other in zip(texts, found["transformers"], strict=True)) / len(texts)
        direct = f"{name}, directly"
        rows.append([
            name,
            f"{statistics.median(measured[name]):.2f}",
            f"{times_faster(measured, name, 'transformers'):.2f}",
            f"{times_faster(measured, name, direct):.2f}" if direct in found else "",
            f"{bleu(texts, list(references)):.2f}",
            f"{chrf(texts, list(references)):.2f}",
            f"{same:.1%}",
        ])  # fmt: skip
    return rows


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Text in, text out.", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", help="a folder with model and tokenizer; without it OUTPUT/model, trained if need be")
    parser.add_argument("--output", help="where a model is trained; without it runs/benchmark-translate/TEXT")
    parser.add_argument("--minutes", type=float, help="of its training; without it the recipe's")
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE", help="change the recipe")
    parser.add_argument("--text", choices=TEXTS, default="homeassistant", help="whose test set is translated")
    parser.add_argument("--lines", type=positive, help="of the test set; without it all")
    parser.add_argument("--batch", type=positive, default=32, help="lines that transformers translates at once")
    parser.add_argument("--beams", type=positive, default=4)
    parser.add_argument("--rounds", type=positive, default=3, help="measurements of each side, after a warm-up")
    parser.add_argument("--without-engines", action="store_true", help="leave CTranslate2 out")
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model and text: shows that it runs, its figures mean nothing"
    )
    return parser.parse_args()


def main() -> None:
    options = read_options()
    one_thread()
    model, tokenizer, pairs = loaded(options)
    lines, references = (list(side) for side in zip(*pairs, strict=True))
    with TemporaryDirectory() as folder:
        to_time = sides(model, tokenizer, lines, Path(folder), options)
        found = {name: side() for name, side in to_time.items()}
        check(found["transformers"], found["transduct"], references)
        measured = by_turns(to_time, options.rounds, found)
    config = model.config
    size = f"width {config.d_model}, {config.encoder_layers} + {config.decoder_layers} layers, vocabulary {config.vocab_size:,}"
    print_table(
        f"translate, {len(lines)} lines, {options.beams} beams; {size}; transformers in batches of {options.batch}",
        ["", "s", "times faster", "than directly", "BLEU", "chrF", "lines as transformers'"],
        rows_of(found, measured, references),
    )


if __name__ == "__main__":
    main()
