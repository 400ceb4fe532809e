"""What `transduct translate` and `transduct score` do: lines in, lines out, by one process or several.

The main process reads windows of lines and writes what came of them; all of them compute. Standard output gets each window as
soon as it is done; a file grows as told in `lines.py`.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from transduct.decoding.alignments import pharaoh
from transduct.decoding.engines import Engine, engine_of, load_engine
from transduct.decoding.lines import Digest, OutputFile, read_lines, skip_done
from transduct.decoding.packed import pack_where_it_pays
from transduct.decoding.progress import progress_bar
from transduct.decoding.required import Required
from transduct.decoding.score import ScoredTarget, Scorer, ScoringOptions, perplexity_of
from transduct.decoding.sharing import Processes
from transduct.decoding.translator import Translation, TranslationOptions, Translator
from transduct.decoding.windows import windows
from transduct.terminal import printable

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
"""What may be an id of the Hub; anything else can only be a path."""


class LinesCommand:
    """A command that makes lines of lines.

    Args:
        model: a folder or an id of the Hub; dtype: a name of `DTYPES`.

    Raises:
        ValueError: for another dtype.
    """

    what = ""

    def __init__(self, model: str, dtype: str):
        if dtype not in DTYPES:
            raise ValueError(f"--dtype {dtype!r} must be one of {', '.join(DTYPES)}")
        self.model, self.dtype = model, dtype

    def load(self, device: Any) -> tuple[Any, Any]:
        """The model on its device, and its tokenizer."""
        return load(self.model, DTYPES[self.dtype], device)

    def worker(self, model: Any, tokenizer: Any) -> Callable[[Sequence[Any], Sequence[int]], list[Any]]:
        """What turns a window of items and their numbers into results."""
        raise NotImplementedError

    def read(self, stack: ExitStack, source: str | None) -> Iterator[Any]:
        """The items of the input, each a line or several."""
        raise NotImplementedError

    def written(self, number: int, item: Any, result: Any) -> list[str]:
        """The lines of an item's result; `number` counts from 0."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """What the output depends on."""
        return {"command": self.what, "model": self.model, "dtype": self.dtype}

    def finished(self) -> None:
        """Called in the main process when all is written."""

    def run(self, source: str | None, output: str | None, window: int, resume: bool) -> None:
        """Read `source`, or standard input, and write `output`, or standard output.

        Raises:
            ValueError: for bad input and options; OSError for files that cannot be read or written.
        """
        if resume and output is None:
            raise ValueError("--resume belongs to --output: standard output cannot be gone on with")
        check_output("--output", output, [name for name in self.inputs(source) if name is not None])
        processes = Processes()
        if resume and processes.from_main(lambda: OutputFile.is_whole(Path(str(output)))):
            if processes.is_main:
                print(printable(f"{output} is whole already"), file=sys.stderr)
            return
        with ExitStack() as stack:
            items: Iterator[Any] = iter(())
            file: OutputFile | None = None

            def begin_to_read() -> None:
                nonlocal items
                items = self.read(stack, source)

            def begin_to_write() -> None:
                nonlocal file
                if output is not None:
                    file = OutputFile(Path(output), self.settings(), resume)
                    stack.callback(file.close)

            processes.from_main(begin_to_read)
            work = self.worker(*self.load(processes.device))
            processes.from_main(begin_to_write)
            self._pass(processes, items, source or "standard input", file, work, window)
            processes.from_main(lambda: None if file is None else file.finish())
        if processes.is_main:
            self.finished()

    def inputs(self, source: str | None) -> list[str | None]:
        """The names of all files that are read."""
        return [source]

    def _pass(
        self, processes: Processes, items: Iterator[Any], name: str, file: OutputFile | None, work: Any, window: int
    ) -> None:
        """All windows, one after the other."""
        digest = Digest()

        def skip() -> int:
            nonlocal digest
            if file is None:
                return 0
            digest = skip_done(items, file.done, file.digest, name)
            return file.done

        done = processes.from_main(skip)
        with progress_bar(processes.is_main and sys.stderr.isatty()) as bar:
            task = bar.add_task(self.what, total=None, completed=done)
            for some in processes.windows(windows(items, window)):
                results = processes.share(work, some, done + 1)
                processes.from_main(partial(self._write, file, some, results, done, digest))
                done += len(some)
                bar.update(task, completed=done)

    def _write(self, file: OutputFile | None, items: Sequence[Any], results: Sequence[Any], first: int, digest: Digest) -> None:
        """Write the results of items, of which the first has the number `first`, counted from 0."""
        rows = enumerate(zip(items, results, strict=True), start=first)
        lines = [line for number, (item, result) in rows for line in self.written(number, item, result)]
        seen = digest.add(items)
        if file is None:  # in UTF-8, as lines are read, whatever the terminal's encoding
            sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode())
            sys.stdout.buffer.flush()
        else:
            file.write(lines, first + len(items), seen)


@dataclass(frozen=True)
class Companions:
    """What `transduct translate` reads beside its model and its lines.

    Args:
        ensemble: names of further models; draft: "source", or the name of a smaller model; None: no drafts.
        phrases: file with a line for each input line: what its targets must contain, apart by tabs.
        target_prefixes: the same for what they begin with.
    """

    ensemble: tuple[str, ...] = ()
    draft: str | None = None
    phrases: str | None = None
    target_prefixes: str | None = None


class TranslateCommand(LinesCommand):
    """`transduct translate`.

    Args:
        engine: for which the folder was exported, or "int8"; None: known by its files, or a model of torch.

    Raises:
        ValueError: for an engine and a dtype, which goes with the engine.
    """

    what = "translate"

    def __init__(
        self,
        model: str,
        dtype: str,
        options: TranslationOptions,
        scores: bool,
        as_json: bool,
        engine: Engine | None = None,
        companions: Companions | None = None,
    ):
        super().__init__(model, dtype)
        self.companions = companions or Companions()
        self.engine = engine_for(model, engine, dtype)
        self.options, self.scores, self.as_json = options, scores, as_json
        self.aligned = options.alignments.unit is not None

    def load(self, device: Any) -> tuple[Any, Any]:
        return load_for(self.engine, self.model, self.dtype, device)

    def worker(self, model: Any, tokenizer: Any) -> Callable[[Sequence[Any], Sequence[int]], list[Any]]:
        options = self.options
        if self.companions.ensemble:
            for name in self.companions.ensemble:
                if vocabularies(load_tokenizer(name)) != vocabularies(tokenizer):
                    raise ValueError(
                        f"--ensemble {name} has another vocabulary than {self.model}: it would vote for other tokens"
                    )
            others = [self._companion(name, model.device) for name in self.companions.ensemble]
            options = replace(options, generation=options.generation | {"ensemble": others})
        if self.companions.draft is not None:
            of_source = self.companions.draft == "source"
            drafts = True if of_source else self._companion(self.companions.draft, model.device)
            options = replace(options, strategy=replace(options.strategy, drafts=drafts))
        translator = Translator(model, tokenizer, options)

        def work(items: Sequence[Any], numbers: Sequence[int]) -> list[list[Translation]]:
            lines = [item if isinstance(item, str) else item[0] for item in items]
            return translator(lines, numbers, [self._required(item) for item in items])

        return work

    def _companion(self, name: str, device: Any) -> Any:
        """A further model, computed as the first is, or an export, by its own engine."""
        if self.engine == "int8" or engine_of(name) is not None:
            return load_engine(name, "int8" if self.engine == "int8" else None, device)
        return pack_where_it_pays(load_model(name, DTYPES[self.dtype], device))

    def read(self, stack: ExitStack, source: str | None) -> Iterator[Any]:
        """Lines, or with files of phrases or prefixes tuples of a line of each."""
        lines = read_lines(opened(stack, source), source or "standard input")
        names = [name for name in (self.companions.phrases, self.companions.target_prefixes) if name is not None]
        if not names:
            return lines
        return in_step([source or "standard input", *names], [lines, *(read_lines(opened(stack, name), name) for name in names)])

    def inputs(self, source: str | None) -> list[str | None]:
        return [source, self.companions.phrases, self.companions.target_prefixes]

    def _required(self, item: Any) -> Required:
        """What the targets of an item must have."""
        beside = [] if isinstance(item, str) else list(item[1:])
        phrases = beside.pop(0) if self.companions.phrases is not None else ""
        prefix = beside.pop(0) if self.companions.target_prefixes is not None else ""
        return Required(tuple(phrases.split("\t")) if phrases else (), prefix)

    def settings(self) -> dict[str, Any]:
        own = {key: value for key, value in asdict(self.options).items() if key != "max_tokens_per_batch"}
        beside = asdict(self.companions)
        return super().settings() | {"engine": self.engine, "scores": self.scores, "json": self.as_json} | beside | own

    def written(self, number: int, item: Any, result: list[Translation]) -> list[str]:
        if self.as_json:
            source = item if isinstance(item, str) else item[0]
            return [json.dumps({"index": number, "source": source, **self._fields(result)}, ensure_ascii=False)]
        several = self.options.num_return_sequences > 1
        if not (several or self.scores or self.aligned):
            return [one_line(result[0].text)]
        rows = []
        for each in result:
            columns = [str(number)] if several else []
            columns.append(one_line(each.text).replace("\t", " "))
            columns += [f"{each.score:.6f}"] if self.scores else []
            columns += [pharaoh(each.alignment or ())] if self.aligned else []
            rows.append("\t".join(columns))
        return rows

    def _fields(self, result: list[Translation]) -> dict[str, Any]:
        hypotheses = []
        for each in result:
            fields: dict[str, Any] = {"translation": each.text, "score": each.score, "log_prob": each.log_prob}
            hypotheses.append(fields | ({"alignment": pharaoh(each.alignment or ())} if self.aligned else {}))
        return {"hypotheses": hypotheses} if self.options.num_return_sequences > 1 else hypotheses[0]


class ScoreCommand(LinesCommand):
    """`transduct score`; its sources are what `run` reads, its targets another file."""

    what = "score"

    def __init__(self, model: str, dtype: str, options: ScoringOptions, as_json: bool, target: str):
        super().__init__(model, dtype)
        self.options, self.as_json, self.target = options, as_json, target
        self.total, self.tokens = 0.0, 0

    def worker(self, model: Any, tokenizer: Any) -> Callable[[Sequence[Any], Sequence[int]], list[Any]]:
        return Scorer(model, tokenizer, self.options)

    def inputs(self, source: str | None) -> list[str | None]:
        return [source, self.target]

    def read(self, stack: ExitStack, source: str | None) -> Iterator[tuple[str, str]]:
        names = [str(source), self.target]
        return in_step(names, [read_lines(opened(stack, name), name) for name in names])

    def settings(self) -> dict[str, Any]:
        own = {key: value for key, value in asdict(self.options).items() if key != "max_tokens_per_batch"}
        return super().settings() | {"json": self.as_json} | own

    def written(self, number: int, item: tuple[str, str], result: ScoredTarget) -> list[str]:
        self.total += result.log_prob
        self.tokens += len(result.token_ids) - result.certain
        if not self.as_json:
            return [f"{result.score:.6f}"]
        names = ("score", "log_prob", "token_ids", "token_log_probs")
        fields = {name: getattr(result, name) for name in names}
        return [json.dumps({"index": number, "source": item[0], "target": item[1], **fields}, ensure_ascii=False)]

    def finished(self) -> None:
        if self.tokens:
            value = perplexity_of(self.total, self.tokens)
            print(f"perplexity {value:.4f} of the {self.tokens} tokens that this run has scored", file=sys.stderr)


def check_output(option: str, output: str | None, inputs: Sequence[str]) -> None:
    """Raises ValueError for an output, named by an option, that would take the place of what is read."""
    if output is None or not Path(output).exists():
        return
    for name in inputs:
        if Path(name).exists() and Path(name).samefile(output):
            raise ValueError(f"{option} {output} is {name}, which is read: name another file")


def in_step(names: Sequence[str], files: Sequence[Iterator[str]]) -> Iterator[Any]:
    """A line of each file at a time.

    Raises:
        ValueError: where one of them, called by its name, has fewer lines than another.
    """
    for number, lines in enumerate(zip_longest(*files)):
        if None in lines:
            raise ValueError(f"{names[lines.index(None)]} ends after {number} lines: {' and '.join(names)} need equally many")
        yield lines


def opened(stack: ExitStack, name: str | None) -> Any:
    """A file, or standard input, as bytes."""
    return sys.stdin.buffer if name is None else stack.enter_context(Path(name).open("rb"))


def one_line(text: str) -> str:
    """A text without line breaks, which would end its line."""
    return re.sub(r"[\r\n]+", " ", text)


def engine_for(model: str, engine: Engine | None, dtype: str) -> Engine | None:
    """The engine that runs a model, chosen or known by the model's files; None: torch.

    Raises:
        ValueError: for an engine and a dtype, which goes with the engine.
    """
    engine = engine or engine_of(model)
    if engine is not None and dtype != "float32":
        raise ValueError(f"--dtype {dtype} cannot be had with --engine {engine}, which settles what it computes with")
    return engine


def load_for(engine: Engine | None, name: str, dtype: str, device: Any) -> tuple[Any, Any]:
    """What searches with a model for an engine, and its tokenizer; `dtype` is a name of `DTYPES`."""
    if engine is None:
        model, tokenizer = load(name, DTYPES[dtype], device)
        return pack_where_it_pays(model), tokenizer
    return load_engine(name, engine, device), load_tokenizer(name)


def load(name: str, dtype: torch.dtype, device: Any) -> tuple[Any, Any]:
    """A model and its tokenizer, of ours or of transformers; no code of theirs is run."""
    tokenizer = load_tokenizer(name)  # first: it is quickly seen whether there is one
    return load_model(name, dtype, device), tokenizer


def load_model(name: str, dtype: torch.dtype, device: Any) -> Any:
    """A model, of ours or of transformers; no code of its own is run."""
    from transformers import AutoModelForSeq2SeqLM

    import transduct

    transduct.register()
    name = model_folder(name)
    with quiet_loading(), told_by_name(name):
        model = AutoModelForSeq2SeqLM.from_pretrained(name, dtype=dtype, trust_remote_code=False)
    return model.to(device).eval()


def load_tokenizer(name: str) -> Any:
    """A tokenizer, of ours or of transformers; no code of its own is run."""
    from transformers import AutoTokenizer

    import transduct

    transduct.register()
    name = model_folder(name)
    with told_by_name(name):
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)


def vocabularies(tokenizer: Any) -> list[dict[str, int]]:
    """The ids of all tokens, of the source's vocabulary and the target's."""
    if not hasattr(tokenizer, "as_target"):
        return [tokenizer.get_vocab()]
    with tokenizer.as_target():
        of_target = tokenizer.get_vocab()
    return [tokenizer.get_vocab(), of_target]


def model_folder(name: str) -> str:
    """What a model is loaded from: a name as it is, but of the output folder of a run its folder `model`.

    Raises:
        ValueError: for what can only be a folder and is none, before the Hub is asked for it, and for a run without a model.
    """
    folder = Path(name)
    if not ID.fullmatch(name) and not folder.is_dir():
        raise ValueError(f"there is no folder {name!r}")
    if not (folder / "recipe.yaml").is_file() or (folder / "config.json").is_file():
        return name
    if not (folder / "model").is_dir():
        raise ValueError(f"the run in {name!r} has no model yet: its training writes one at its end")
    return str(folder / "model")


@contextmanager
def told_by_name(name: str) -> Iterator[None]:
    """Inside, what keeps a model or tokenizer from being loaded is told by its name.

    What the Hub does not give is said to be no folder either: that is what was meant, where a folder is misspelt.

    Raises:
        OSError: of transformers, with this before it.
        ValueError: for a folder with JSON files that transformers or tokenizers fall over, or that has code of its own.
    """
    try:
        yield
    except OSError as error:
        if Path(name).is_dir():
            raise
        raise OSError(f"{name!r} is no folder here, and the Hub does not give it: {error}") from error
    except Exception as error:
        if isinstance(error, ValueError) and "trust_remote_code" in str(error):
            rule = "needs code of its own, which no command runs: load it in Python, if you trust it"
            raise ValueError(f"{name!r} {rule}") from error
        damaged = isinstance(error, json.JSONDecodeError | AttributeError | KeyError | TypeError) or type(error) is Exception
        if not damaged or not Path(name).is_dir():
            raise
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"{name!r} cannot be loaded, most likely since one of its JSON files is damaged ({what}): see transduct doctor {name}"
        ) from error


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Inside, transformers shows no bar on a standard error that is no terminal."""
    from transformers.utils import logging

    if sys.stderr.isatty() or not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()
