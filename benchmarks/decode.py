"""Our own decoder against transformers' and CTranslate2: equal weights, one thread, the encoder's time included.

A model of the shape of `marian-base` with random weights writes exactly 32 tokens for each source. Compared with transformers'
`generate` are our `beam_search` in float32 and with torch's dynamic int8 matrices and, as far as CTranslate2 is installed, its
engine in float32 and int8 on the folder that `transduct.convert.to_ctranslate2` writes. The float32 ids of transformers and ours
must be equal before anything is timed; `to_ctranslate2` compares its own.

    python benchmarks/decode.py                        # batches of 8 and 64, sources of 32 and 512 tokens, 1 and 4 beams
    python benchmarks/decode.py --batches 8 --rounds 5
    python benchmarks/decode.py --growth               # seconds a token at 32, 128 and 512 target tokens, and memory a beam
"""

import argparse
import copy
import gc
import importlib.util
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from side_by_side import arguments, one_thread, print_table  # first: it settles threads before torch starts

# isort: split
import torch
from shapes import SHAPES, pair

from transduct.decoding import beam_search
from transduct.layers import Linear

NEW_TOKENS, SOURCE_LENGTHS, BEAMS = 32, (32, 512), (1, 4)
Side = Callable[[], Any]


def engines(model: Any, folder: Path) -> dict[str, Any]:
    """CTranslate2's translators of the model, by the name of their column."""
    if importlib.util.find_spec("ctranslate2") is None:
        return {}
    import ctranslate2

    from transduct.convert import to_ctranslate2

    found = {}
    for name, quantization in (("CTranslate2 float32", None), ("CTranslate2 int8", "int8")):
        target = folder / (quantization or "float32")
        to_ctranslate2(model, None, target, quantization=quantization)
        found[name] = ctranslate2.Translator(str(target), device="cpu", inter_threads=1, intra_threads=1)
    return found


def with_int8(model: Any) -> Any:
    """A copy whose matrices are torch's dynamic int8 ones, which know only torch's own class of linear layers."""
    copied = copy.deepcopy(model)
    for module in copied.modules():
        if type(module) is Linear:
            module.__class__ = torch.nn.Linear
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(copied, {torch.nn.Linear}, dtype=torch.qint8)


def sides(models: Any, translators: dict[str, Any], ids: torch.Tensor, beams: int, new_tokens: int) -> dict[str, Side]:
    """What is timed, by the name of its column; transformers first."""
    theirs, ours, int8 = models
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    limits = {"num_beams": beams, "do_sample": False, "min_new_tokens": new_tokens, "max_new_tokens": new_tokens}
    found: dict[str, Side] = {
        "transformers": lambda: theirs.generate(**inputs, **limits),
        "transduct": lambda: ours.generate(**inputs, **limits, custom_generate=beam_search),
        "transduct int8": lambda: int8.generate(**inputs, **limits, custom_generate=beam_search),
    }
    sources = [[str(token) for token in row] for row in ids.tolist()]
    for name, translator in translators.items():
        found[name] = lambda translator=translator: translator.translate_batch(
            sources, beam_size=beams, min_decoding_length=new_tokens, max_decoding_length=new_tokens
        )
    return found


def seconds(found: dict[str, Side], rounds: int) -> dict[str, list[float]]:
    """Seconds of each side by round, in alternation, after one warm-up each."""
    for side in found.values():
        side()
    measured: dict[str, list[float]] = {name: [] for name in found}
    for number in range(rounds):
        names = list(found)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            gc.collect()
            start = time.perf_counter()
            found[name]()
            measured[name].append(time.perf_counter() - start)
    return measured


def row(name: str, measured: dict[str, list[float]]) -> list[str]:
    """Median seconds, and of all but the first side the median of how many times faster than it a round was."""
    first = measured["transformers"]
    cells = [name, f"{statistics.median(first):.2f}"]
    for side in list(measured)[1:]:
        ratio = statistics.median(theirs / own for theirs, own in zip(first, measured[side], strict=True))
        cells.append(f"{statistics.median(measured[side]):.2f} ({ratio:.2f}x)")
    return cells


def compare(shape: str, options: argparse.Namespace) -> None:
    """The table of one shape."""
    models = [model.eval() for model in pair(shape, tiny=options.quick)]
    models.append(with_int8(models[1]))
    with TemporaryDirectory() as folder:
        translators = engines(models[1], Path(folder)) if not options.without_engines else {}
        rows, columns = [], []
        for batch in options.batches:
            for length in (4, 12) if options.quick else SOURCE_LENGTHS:
                ids = torch.randint(3, 500, (batch, length), generator=torch.Generator().manual_seed(length))  # (B, S)
                for beams in BEAMS:
                    found = sides(models, translators, ids, beams, 4 if options.quick else NEW_TOKENS)
                    if not torch.equal(found["transformers"](), found["transduct"]()):
                        raise AssertionError(f"{shape}, batch {batch}, source {length}, {beams} beams: the ids differ")
                    rows.append(row(f"{batch}, {length}, {beams}", seconds(found, options.rounds)))
                    columns = list(found)
    headings = ["batch, source, beams", "transformers (s)", *(f"{name} (s)" for name in columns[1:])]
    print_table(f"decode, {shape}, {NEW_TOKENS} tokens, ids of both equal; (times faster than transformers)", headings, rows)


def growth(shape: str, options: argparse.Namespace) -> None:
    """What a token costs as targets grow: seconds a token, and how many times those of the shortest."""
    model = pair(shape, tiny=options.quick)[1].eval()
    ids = torch.randint(3, 500, (8, 32), generator=torch.Generator().manual_seed(0))
    lengths = (4, 8, 16) if options.quick else (32, 128, 512)
    times = []
    for length in lengths:
        limits = {"num_beams": 4, "min_new_tokens": length, "max_new_tokens": length, "custom_generate": beam_search}
        measured = []
        for _ in range(options.rounds + 1):
            start = time.perf_counter()
            model.generate(input_ids=ids, **limits)
            measured.append((time.perf_counter() - start) / length)
        times.append(statistics.median(measured[1:]))
    rows = [[f"{length}", f"{1000 * each:.1f}", f"{each / times[0]:.2f}"] for length, each in zip(lengths, times, strict=True)]
    print_table(f"decode, {shape}, batch 8, 4 beams", ["target tokens", "ms a token", "of the shortest's"], rows)


def main() -> None:
    parser = arguments("Our decoder, transformers' and CTranslate2's.", SHAPES, ["marian-base"], rounds=3)
    parser.add_argument("--batches", nargs="+", type=int, default=[8, 64], help="sources at once")
    parser.add_argument("--growth", action="store_true", help="measure the cost a token by target length instead")
    parser.add_argument("--without-engines", action="store_true", help="leave CTranslate2 out")
    options = parser.parse_args()
    one_thread()
    for shape in options.shapes:
        (growth if options.growth else compare)(shape, options)


if __name__ == "__main__":
    main()
