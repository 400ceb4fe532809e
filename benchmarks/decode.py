"""Our own decoder against transformers' and CTranslate2: equal weights, one thread, the encoder's time included.

A model of the shape of `marian-base` with random weights writes exactly 32 tokens for each source. Compared with transformers'
`generate` are our `beam_search` in float32, with blocked matrices (`packed_copy`) and with int8 ones (`int8_copy`) and, as far as
CTranslate2 is installed, its engine in float32 and int8 on the folder that `transduct.convert.to_ctranslate2` writes. The float32
ids of transformers and ours must be equal before anything is timed; `to_ctranslate2` compares its own.

    python benchmarks/decode.py                        # batches of 8 and 64, sources of 32 and 512 tokens, 1 and 4 beams
    python benchmarks/decode.py --batches 8 --sources 32 --rounds 5
    python benchmarks/decode.py --growth               # what a token costs as targets grow, and a beam as sources do

`--growth` prints what a token costs at 32, 128 and 512 target tokens, beside what the attention to them alone does, and the bytes
of keys and values that one more beam takes, after 32 tokens, for sources of 32 and 512.
"""

import argparse
import importlib.util
import statistics
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from side_by_side import arguments, by_turns, one_thread, print_table, times_faster  # first: it settles threads

# isort: split
import torch
import torch.nn.functional as F
from memory import held_bytes
from shapes import SHAPES, pair

from transduct.decoding import beam_search, int8_copy, packed_copy

NEW_TOKENS, SOURCE_LENGTHS, BEAMS, TARGET_LENGTHS = 32, (32, 512), (1, 4), (32, 128, 512)
Side = Callable[[], Any]


def engines(model: Any, tokenizer: Any, folder: Path) -> dict[str, Path]:
    """Folders of the model for CTranslate2, by the name of their column; none where the package is missing."""
    if importlib.util.find_spec("ctranslate2") is None:
        return {}
    from transduct.convert import to_ctranslate2

    found = {}
    for name, quantization in (("CTranslate2 float32", None), ("CTranslate2 int8", "int8")):
        found[name] = folder / (quantization or "float32")
        to_ctranslate2(model, tokenizer, found[name], quantization=quantization)
    return found


def translator_of(folder: Path) -> Any:
    """CTranslate2's translator of a folder, on one thread."""
    import ctranslate2

    return ctranslate2.Translator(str(folder), device="cpu", inter_threads=1, intra_threads=1)


def sides(models: dict[str, Any], translators: dict[str, Any], ids: torch.Tensor, beams: int, tokens: int) -> dict[str, Side]:
    """What is timed, by the name of its column; transformers first."""
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    limits = {"num_beams": beams, "do_sample": False, "min_new_tokens": tokens, "max_new_tokens": tokens}
    found: dict[str, Side] = {}
    for name, model in models.items():
        search = {} if name == "transformers" else {"custom_generate": beam_search}
        found[name] = lambda model=model, search=search: model.generate(**inputs, **limits, **search)
    sources = [[str(token) for token in row] for row in ids.tolist()]
    for name, translator in translators.items():
        found[name] = lambda translator=translator: translator.translate_batch(
            sources, beam_size=beams, min_decoding_length=tokens, max_decoding_length=tokens
        )
    return found


def row(name: str, measured: dict[str, list[float]]) -> list[str]:
    """Median seconds, and of all but the first side the median of how many times faster than it a round was."""
    cells = [name, f"{statistics.median(measured['transformers']):.2f}"]
    for side in list(measured)[1:]:
        ratio = times_faster(measured, side, "transformers")
        cells.append(f"{statistics.median(measured[side]):.2f} ({ratio:.2f}x)")
    return cells


def compare(shape: str, options: argparse.Namespace) -> None:
    """The table of one shape."""
    theirs, ours = (model.eval() for model in pair(shape, tiny=options.quick))
    smallest = 1 if options.quick else None
    models = {"transformers": theirs, "transduct": ours}
    models |= {"packed": packed_copy(ours, smallest), "int8": int8_copy(ours, smallest)}
    rows, columns = [], []
    with TemporaryDirectory() as folder:
        folders = {} if options.without_engines else engines(ours, None, Path(folder))
        translators = {name: translator_of(each) for name, each in folders.items()}
        for batch in options.batches:
            for length in (4, 12) if options.quick else options.sources:
                ids = torch.randint(3, 500, (batch, length), generator=torch.Generator().manual_seed(length))  # (B, S)
                for beams in BEAMS:
                    what = f"{batch}, {length}, {beams}"
                    found = sides(models, translators, ids, beams, 4 if options.quick else NEW_TOKENS)
                    first = {name: found[name]() for name in ("transformers", "transduct")}
                    if not torch.equal(first["transformers"], first["transduct"]):
                        raise AssertionError(f"{shape}, batch, source, beams {what}: the ids differ")
                    rows.append(row(what, by_turns(found, options.rounds, first)))
                    columns = list(found)
    headings = ["batch, source, beams", *(f"{name} (s)" for name in columns)]
    print_table(f"decode, {shape}, {NEW_TOKENS} tokens, ids of both equal; (times faster than transformers)", headings, rows)


def growth(shape: str, options: argparse.Namespace) -> None:
    """What a token costs as targets grow, and a beam as sources do."""
    theirs, ours = (model.eval() for model in pair(shape, tiny=options.quick))
    lengths = (4, 8, 16) if options.quick else TARGET_LENGTHS
    print_table(
        f"decode, {shape}, batch 8, 4 beams: cost of a token",
        ["target tokens", "ms a token", "more than the shortest's", "attention to targets alone, ms", "more"],
        time_rows(ours, lengths, options.rounds),
    )
    sources = (4, 12) if options.quick else SOURCE_LENGTHS
    print_table(
        f"decode, {shape}, batch 2, {NEW_TOKENS} tokens: bytes of keys and values for one more beam",
        ["source tokens", "transformers", "transduct"],
        [
            [f"{source}", f"{beam_bytes(theirs, source):,.0f}", f"{beam_bytes(ours, source, custom_generate=beam_search):,.0f}"]
            for source in sources
        ],
    )


def time_rows(model: Any, lengths: tuple[int, ...], rounds: int) -> list[list[str]]:
    """Milliseconds a token for targets of each length, and of the attention to the tokens before it."""
    ids = torch.randint(3, 500, (8, 32), generator=torch.Generator().manual_seed(0))
    search, attention = {}, {}
    for length in lengths:
        limits = {"num_beams": 4, "min_new_tokens": length, "max_new_tokens": length, "custom_generate": beam_search}
        search[length] = lambda limits=limits: model.generate(input_ids=ids, **limits)
        attention[length] = lambda length=length: attend(model.config, 4 * len(ids), length)
    costs = []
    for sides in (search, attention):
        measured = by_turns({str(length): side for length, side in sides.items()}, rounds)
        costs.append([1000 * statistics.median(measured[str(length)]) / length for length in lengths])
    more = [[each - cost[0] for each in cost] for cost in costs]
    figures = zip(costs[0], more[0], costs[1], more[1], strict=True)
    return [[str(length), *(f"{each:.2f}" for each in row)] for length, row in zip(lengths, figures, strict=True)]


@torch.no_grad()
def attend(config: Any, rows: int, length: int) -> None:
    """The self-attention of all decoder layers over targets that grow to `length` tokens, token by token."""
    heads, width = config.resolved_decoder_num_heads, config.d_model // config.resolved_decoder_num_heads
    query = torch.randn(rows, heads, 1, width)
    keys, values = (torch.randn(rows, heads, length, width) for _ in range(2))
    for end in range(1, length + 1):
        for _ in range(config.decoder_layers):
            F.scaled_dot_product_attention(query, keys[:, :, :end], values[:, :, :end])


def beam_bytes(model: Any, source: int, **search: Any) -> float:
    """Bytes of keys and values that a search with 8 beams holds more than one with 4, for each beam more."""
    ids = torch.randint(3, 500, (2, source), generator=torch.Generator().manual_seed(0))
    held = []
    for beams in (4, 8):
        outputs: list[Any] = []
        handle = model.register_forward_hook(lambda module, inputs, output, outputs=outputs: outputs.append(output))
        model.generate(input_ids=ids, num_beams=beams, min_new_tokens=NEW_TOKENS, max_new_tokens=NEW_TOKENS, **search)
        handle.remove()
        cache = outputs[-1].cache
        held.append(held_bytes(cache.self_attention_cache) + held_bytes(cache.cross_attention_cache))
    return (held[1] - held[0]) / (4 * len(ids))


def main() -> None:
    parser = arguments("Our decoder, transformers' and CTranslate2's.", SHAPES, ["marian-base"], rounds=3)
    parser.add_argument("--batches", nargs="+", type=int, default=[8, 64], help="sources at once")
    parser.add_argument("--sources", nargs="+", type=int, default=list(SOURCE_LENGTHS), help="tokens of a source")
    parser.add_argument("--growth", action="store_true", help="measure what a token and a beam cost by length instead")
    parser.add_argument("--without-engines", action="store_true", help="leave CTranslate2 out")
    options = parser.parse_args()
    one_thread()
    for shape in options.shapes:
        (growth if options.growth else compare)(shape, options)


if __name__ == "__main__":
    main()
