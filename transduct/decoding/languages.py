"""What a model must be told about languages and tasks, in the form that its tokenizer and config have for it.

A tokenizer has one of these forms; it tells which by what it does, not by its class:
- a source and a target language of its own (`src_lang`, `tgt_lang`: mBART, NLLB, M2M100, PLBart). The target's token begins the
  output (`forced_bos_token_id`), or starts the decoder where the tokenizer puts it behind a target;
- a token in the source that names the target language: "<2de>" of our tokenizers, ">>deu<<" of Marian;
- none, but tasks in the config that name languages: "translation_en_to_de" of T5, each with a prefix for its sources.
"""

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from transduct.tokenization import TransductTokenizer, language_token


@dataclass(frozen=True)
class Direction:
    """How sources are written and outputs begun.

    Args:
        prefix: text before each source.
        languages: attributes that the tokenizer has while it encodes.
        generation: arguments of `generate` that follow from the languages, and `task`, those of the config's task.
    """

    prefix: str = ""
    languages: dict[str, Any] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)
    task: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def applied(self, tokenizer: Any) -> Iterator[None]:
        """Inside, the tokenizer writes in these languages; afterwards it is as it was."""
        before = {name: getattr(tokenizer, name) for name in self.languages}
        try:
            for name, value in self.languages.items():
                setattr(tokenizer, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(tokenizer, name, value)


def direction(
    model: Any,
    tokenizer: Any,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    task: str | None = None,
    prefix: str | None = None,
) -> Direction:
    """What follows from the languages, the task and the prefix that a caller names.

    Args:
        src_lang, tgt_lang: codes as the tokenizer or the config writes them; None: those that the tokenizer has.
        task: a name of the config's `task_specific_params`; prefix: None: that of the task, or of the config.

    Raises:
        ValueError: for a language or a task that is not known, naming those that come close.
    """
    tasks = setting(model.config, "task_specific_params") or {}
    if hasattr(tokenizer, "tgt_lang"):
        found = _own_languages(model, tokenizer, src_lang, tgt_lang)
    elif isinstance(tokenizer, TransductTokenizer) and tgt_lang is not None:
        found = _source_token(tokenizer, src_lang, tgt_lang)
    elif getattr(tokenizer, "supported_language_codes", None) and tgt_lang is not None:
        found = _marian_token(tokenizer, src_lang, tgt_lang)
    else:
        found = Direction()
        task = _task_of_languages(tasks, src_lang, tgt_lang) if task is None else task
    settings = dict(tasks[known("task", task, list(tasks))]) if task is not None else {}
    of_task = settings.pop("prefix", None)
    if prefix is None:
        prefix = of_task if of_task is not None else setting(model.config, "prefix") or ""
    return Direction(prefix + found.prefix, found.languages, found.generation, settings)


def setting(config: Any, name: str) -> Any:
    """A value of a config, or of the one from which it was converted."""
    value = getattr(config, name, None)
    if value is None:
        value = ((getattr(config, "origin", None) or {}).get("config") or {}).get(name)
    return value


def known(what: str, name: str, names: Sequence[str]) -> str:
    """`name`, if it is one of `names`.

    Raises:
        ValueError: naming the closest ones.
    """
    if name in names:
        return name
    if not names:
        raise ValueError(f"{what}={name!r}: this model and its tokenizer know none; leave it out")
    lower = {each.lower(): each for each in names}
    close = [lower[each] for each in difflib.get_close_matches(name.lower(), lower, n=5, cutoff=0.5)]
    close = close or sorted(names)[:5]
    raise ValueError(f"{what}={name!r} is unknown; of the {len(names)} that are known, the closest are {', '.join(close)}")


def _own_languages(model: Any, tokenizer: Any, src_lang: str | None, tgt_lang: str | None) -> Direction:
    codes = own_codes(tokenizer)
    wanted = {"src_lang": src_lang, "tgt_lang": tgt_lang}
    languages = {name: known(name, code, codes) for name, code in wanted.items() if code is not None}
    target = languages.get("tgt_lang")
    if target is None and _settled(model):
        return Direction(languages=languages)
    if target is None and tokenizer.tgt_lang is None:
        raise ValueError("tgt_lang is needed: neither the tokenizer nor the generation config says which language to write")
    with Direction(languages=languages).applied(tokenizer):
        ids = tokenizer(text_target="")["input_ids"]
    if ids[0] in (tokenizer.eos_token_id, tokenizer.bos_token_id):
        return Direction(languages=languages, generation={"decoder_start_token_id": ids[-1], "forced_bos_token_id": None})
    return Direction(languages=languages, generation={"forced_bos_token_id": ids[0]})


def _settled(model: Any) -> bool:
    """Whether the generation config says by itself in which language to begin."""
    config = model.generation_config
    starts = (config.forced_bos_token_id, config.decoder_start_token_id)
    special = {model.config.bos_token_id, model.config.eos_token_id, model.config.pad_token_id, None}
    return any(token not in special for token in starts)


def own_codes(tokenizer: Any) -> list[str]:
    """The languages of a tokenizer that has a source and a target language."""
    table = getattr(tokenizer, "lang_code_to_token", None) or getattr(tokenizer, "lang_code_to_id", None)
    if table:
        return list(table)
    named = {tokenizer.eos_token, tokenizer.bos_token, tokenizer.unk_token, tokenizer.pad_token, tokenizer.mask_token}
    return [token for token in tokenizer.all_special_tokens if token not in named]


def target_codes(tokenizer: Any) -> list[str]:
    """The target languages that a token in the source can name."""
    if isinstance(tokenizer, TransductTokenizer):
        return [mark[2:-1] for mark in _marks(tokenizer)]
    return [token.strip("<>") for token in getattr(tokenizer, "supported_language_codes", None) or ()]


def _marks(tokenizer: TransductTokenizer) -> list[str]:
    return [token for token in tokenizer.extra_special_tokens if token.startswith("<2") and token.endswith(">")]


def _source_token(tokenizer: TransductTokenizer, src_lang: str | None, tgt_lang: str) -> Direction:
    if src_lang is not None:
        raise ValueError(f"src_lang={src_lang!r} has no use: the sources of this tokenizer name the target language alone")
    code = known("tgt_lang", tgt_lang, target_codes(tokenizer))
    return Direction(languages={"source_prefix": [language_token(code), *_without(tokenizer.source_prefix, _marks(tokenizer))]})


def _without(tokens: Sequence[str], removed: Sequence[str]) -> list[str]:
    return [token for token in tokens if token not in removed]


def _marian_token(tokenizer: Any, src_lang: str | None, tgt_lang: str) -> Direction:
    if src_lang is not None:
        raise ValueError(f"src_lang={src_lang!r} has no use: the sources of this tokenizer name the target language alone")
    return Direction(prefix=f">>{known('tgt_lang', tgt_lang.strip('<>'), target_codes(tokenizer))}<< ")


def _task_of_languages(tasks: dict[str, Any], src_lang: str | None, tgt_lang: str | None) -> str | None:
    """The task that translates between two languages, or None if none are named."""
    if src_lang is None and tgt_lang is None:
        return None
    pairs = {name: name.removeprefix("translation_").split("_to_") for name in tasks if name.startswith("translation_")}
    if not pairs:
        name, code = ("tgt_lang", tgt_lang) if tgt_lang is not None else ("src_lang", src_lang)
        raise ValueError(f"{name}={code!r}: neither the tokenizer nor the config of this model knows languages; leave it out")
    for place, (name, code) in enumerate((("src_lang", src_lang), ("tgt_lang", tgt_lang))):
        if code is not None:
            known(name, code, sorted({pair[place] for pair in pairs.values()}))
    fitting = [name for name, pair in pairs.items() if src_lang in (None, pair[0]) and tgt_lang in (None, pair[1])]
    if len(fitting) != 1:
        found = f"fit {len(fitting)} of the model's tasks, {', '.join(fitting or pairs)}; name one as task"
        raise ValueError(f"src_lang={src_lang!r}, tgt_lang={tgt_lang!r} {found}")
    return fitting[0]
