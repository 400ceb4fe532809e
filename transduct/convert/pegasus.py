"""Pegasus: pre-norm, halved sinusoids, scaled embeddings; the decoder starts from the padding token."""

from transduct.convert.bart_kin import Kin, family
from transduct.convert.marian import tables

PEGASUS = Kin(
    name="pegasus",
    prefix="Pegasus",
    fixed={"norm_position": "pre", "positions": "sinusoidal", "sinusoid_layout": "halves"},
    tables=tables,
)

FAMILIES = [family(PEGASUS)]
