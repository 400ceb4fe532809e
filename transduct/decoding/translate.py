"""Texts in, texts out: any number of them, in order, by any encoder-decoder of text that has `generate`.

Texts are read a window at a time, so that memory is bounded however many there are; see `translator.py` for what happens to a
window. Lists, files and generators serve alike.
"""

from collections.abc import Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import Any, Literal

from transduct.decoding.alignments import AlignmentOptions
from transduct.decoding.engines import Engine, load_engine
from transduct.decoding.mbr import Utility
from transduct.decoding.normalization import Normalization
from transduct.decoding.progress import progress_bar
from transduct.decoding.required import required_of
from transduct.decoding.sharing import Processes
from transduct.decoding.strategies import Strategy
from transduct.decoding.texts import check_texts
from transduct.decoding.translator import Translation, TranslationOptions, Translator
from transduct.decoding.windows import WINDOW, windows


def translate(
    model: Any,
    tokenizer: Any,
    texts: Iterable[str],
    num_beams: int | None = None,
    length_normalization: Normalization = "hf",
    length_penalty: float | None = None,
    num_return_sequences: int = 1,
    max_tokens_per_batch: int = 4096,
    return_scores: bool = False,
    return_alignments: bool | Literal["words", "tokens"] = False,
    *,
    max_length_by_source: tuple[float, float] | None = None,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    task: str | None = None,
    prefix: str | None = None,
    split_sentences: bool = False,
    long: Literal["refuse", "split"] = "refuse",
    max_source_length: int | None = None,
    alignment_layer: int | None = None,
    alignment_heads: list[int] | None = None,
    replace_unknown: bool = False,
    phrases: Iterable[Sequence[str | Sequence[str]]] | None = None,
    target_prefixes: Iterable[str] | None = None,
    do_sample: bool = False,
    seed: int = 0,
    minimum_bayes_risk: str | Utility | None = None,
    num_samples: int | None = None,
    drafts: Any = False,
    window: int = WINDOW,
    progress: bool = False,
    share: bool = False,
    engine: Engine | None = None,
    **generation: Any,
) -> list[Any]:
    """Translate texts, or summarise or correct them: whatever the model does.

    Args:
        model: of transduct, or any AutoModelForSeq2SeqLM; or the folder of an exported one, see `engines.py`. tokenizer: its own.
        texts: any iterable of strings. White space alone becomes an empty text.
        num_beams: None: as the generation config says, else 4. 1 is greedy search.
        length_normalization, length_penalty: see `normalization.py`. None: for "hf" as the generation config says, else 1.0; 0.6
            for "gnmt", 1.0 for "sockeye".
        num_return_sequences: hypotheses for each text.
        max_tokens_per_batch: source tokens of a batch, padding included; a source counts as at least 16.
        max_length_by_source: (a, b): at most `a * S + b` tokens for a source of S. None: as the generation config says, else
            (1, 50).
        src_lang, tgt_lang, task, prefix: see `languages.py`.
        split_sentences: translate each sentence by itself; white space between sentences stays as it is.
        long: what becomes of a text of more than `max_source_length` tokens: "refuse" it, or "split" it into sentences, and where
            they are too long into parts of sentences.
        max_source_length: None: the model's positions or the tokenizer's `model_max_length`, whichever is less.
        alignment_layer, alignment_heads, replace_unknown: see `alignments.py`; the last puts the aligned source word where the
            model wrote the unknown token.
        phrases: for each text the phrases that its targets must contain, each a text or several, one of which suffices; see
            `required.py` and `constraints.py`. More beams find better places for them.
        target_prefixes: for each text what its targets begin with, maybe "".
        do_sample, seed, minimum_bayes_risk, num_samples, drafts: see `strategies.py`.
        window: texts that are sorted together. progress: show a bar on stderr.
        share: let the processes that torch or Accelerate has started share the texts. All of them must make the same call, with a
            model each; the texts of the main one count, and every one returns the whole.
        engine: for which the folder was written, "ctranslate2" or "onnx"; None: known by its files. "int8": a copy of the model
            with int8 matrices, on a CPU; the model may be a checkpoint's folder then.
        generation: further arguments of `generate` and of the search, such as `no_repeat_ngram_size`, `word_reward`,
            `ordered_phrases`, `beam_groups` and `diversity_penalty`, `ensemble` (models), or `top_p` of samples.

    Returns:
        In the order of `texts`, for each a string; with `num_return_sequences` > 1 a list of strings, best first, shorter where
        the search found fewer. With `return_scores` or `return_alignments`, a `Translation` takes the place of each string.

    Raises:
        ValueError: for a text that is too long or no text, naming its number counted from 1, and for options that cannot be met.
    """
    check_texts("texts", texts)
    options = TranslationOptions(
        num_beams=num_beams, length_normalization=length_normalization, length_penalty=length_penalty,
        num_return_sequences=num_return_sequences, max_tokens_per_batch=max_tokens_per_batch,
        max_length_by_source=max_length_by_source, src_lang=src_lang, tgt_lang=tgt_lang, task=task, prefix=prefix,
        split_sentences=split_sentences, long=long, max_source_length=max_source_length,
        alignments=alignment_options(return_alignments, alignment_layer, alignment_heads),
        replace_unknown=replace_unknown, generation=generation,
        strategy=Strategy(do_sample, seed, minimum_bayes_risk, num_samples, drafts),
    )  # fmt: skip
    if engine is not None or isinstance(model, (str, Path)):
        model = load_engine(model, engine)
    results: list[Any] = []
    for found in translate_stream(model, tokenizer, texts, options, window, progress, phrases, target_prefixes, share):
        shown = found if return_scores or return_alignments else [each.text for each in found]
        results.append(shown if num_return_sequences > 1 else shown[0])
    return results


def translate_stream(
    model: Any,
    tokenizer: Any,
    texts: Iterable[str],
    options: TranslationOptions | None = None,
    window: int = WINDOW,
    progress: bool = False,
    phrases: Iterable[Sequence[str | Sequence[str]]] | None = None,
    target_prefixes: Iterable[str] | None = None,
    share: bool = False,
) -> Iterator[list[Translation]]:
    """The hypotheses of each text, in order, while no more than a window of texts is held.

    Args and errors: as of `translate`.
    """
    translator = Translator(model, tokenizer, options or TranslationOptions())
    processes = Processes(share)

    def work(items: Sequence[Any], numbers: Sequence[int]) -> list[list[Translation]]:
        return translator([text for text, _ in items], numbers, [required for _, required in items])

    first = 1
    total = len(texts) if isinstance(texts, Sized) else None
    with progress_bar(progress and processes.is_main) as bar:
        task = bar.add_task("translating", total=total)
        for items in processes.windows(windows(required_of(texts, phrases, target_prefixes), window)):
            yield from processes.share(work, items, first)
            first += len(items)
            bar.update(task, completed=first - 1)


def alignment_options(
    wanted: bool | Literal["words", "tokens"], layer: int | None = None, heads: list[int] | None = None
) -> AlignmentOptions:
    """The options of alignments, which True asks for by words."""
    return AlignmentOptions("words" if wanted is True else (wanted or None), layer, heads)
