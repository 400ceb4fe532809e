"""Models on the Hub: `push` shares a folder in one commit, with a card that says what is known of the model."""

from transduct.hub.cards import Said, write_card
from transduct.hub.facts import Facts, facts_of
from transduct.hub.sharing import Options, Share, Shared, prepare, push, upload

__all__ = ["Facts", "Options", "Said", "Share", "Shared", "facts_of", "prepare", "push", "upload", "write_card"]
