"""Texts of others on a terminal, which would act on some characters: clear itself, rename its window, hide what stands there."""


def printable(text: str, lines: bool = False) -> str:
    """The same text with what is no character to see, such as an escape, told by its number.

    Args:
        lines: whether it may have several; if not, a line break is told too, so that no text looks like a line of its own.
    """
    return "".join(char if char.isprintable() or (lines and char == "\n") else repr(char)[1:-1] for char in text)
