"""The strings of a vocabulary, for engines that call tokens by them."""

from typing import Any

from transduct.tokenization import TransductTokenizer


def token_strings(tokenizer: Any, size: int, target: bool) -> list[str]:
    """One string for each of `size` ids.

    Args:
        tokenizer: of any class; None: each token is called by its id, "0", "1", ...
        target: of the target's vocabulary, where it has its own.

    Returns:
        Different strings; ids without a token, of embeddings that were rounded up, are called "<unused_17>".

    Raises:
        ValueError: for an id beyond `size`, and for two ids with one string.
    """
    if tokenizer is None:
        return [str(number) for number in range(size)]
    strings = {number: string for string, number in _table(tokenizer, target).items()}
    if max(strings, default=0) >= size:
        side = "target" if target else "source"
        raise ValueError(f"the tokenizer has ids up to {max(strings)} for the {side}, but the model only {size} embeddings")
    found = [strings.get(number, f"<unused_{number}>") for number in range(size)]
    if len(set(found)) < size:
        twice = sorted({string for string in found if found.count(string) > 1})[:5]
        raise ValueError(f"the tokenizer has several ids for one string: {', '.join(map(repr, twice))}")
    return found


def _table(tokenizer: Any, target: bool) -> dict[str, int]:
    if isinstance(tokenizer, TransductTokenizer) and target:
        with tokenizer.as_target():
            return tokenizer.get_vocab()
    if target and getattr(tokenizer, "separate_vocabs", False):  # Marian's
        return tokenizer.target_encoder
    return tokenizer.get_vocab() | getattr(tokenizer, "lang_token_to_id", {})  # M2M100 counts languages after its vocabulary
