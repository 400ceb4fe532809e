"""Search beyond `GenerationMixin`: beam search with every normalisation and exact stopping, on which `translate` rests."""

from transduct.decoding.beam import beam_search

__all__ = ["beam_search"]
