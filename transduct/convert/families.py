"""The families that can be converted, and what those that cannot have that this architecture lacks."""

from transduct.convert import bart, m2m_100, marian, pegasus, t5, whisper
from transduct.convert.family import Family

FAMILIES = {family.model_type: family for module in (t5, bart, marian, pegasus, m2m_100, whisper) for family in module.FAMILIES}

GEMMA_2 = "the layers of Gemma 2: norms before and after each sublayer, capped scores, alternating local attention"
GEMMA_3 = "the layers of Gemma 3, self- and cross-attention in one, and images"
NOT_YET = {
    "longt5": "local and transient-global attention",
    "nllb-moe": "mixtures of experts in place of feed-forwards",
    "switch_transformers": "mixtures of experts in place of feed-forwards",
    **dict.fromkeys(("t5gemma", "t5_gemma_module"), GEMMA_2),
    **dict.fromkeys(("t5gemma2", "t5gemma2_encoder", "t5gemma2_decoder", "t5gemma2_text"), GEMMA_3),
}
"""Other encoder-decoders of transformers, and what is particular to them."""

READ_ONLY = {"fairseq": "fairseq's own format", "marian-npz": "Marian's own format"}
"""Formats that checkpoints are imported from and never written in."""


def family_of(model_type: str, where: str = "") -> Family:
    """The family whose config.json says `model_type`.

    Raises:
        ValueError: for one that is not known, with what differs where that is known.
    """
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    start = f"{where}: " if where else ""
    if model_type in NOT_YET:
        raise ValueError(f"{start}model_type={model_type!r} is not supported yet: it has {NOT_YET[model_type]}")
    if model_type in READ_ONLY:
        what = f"{READ_ONLY[model_type]} is only read, never written"
        raise ValueError(f"{start}{what}: choose one of {', '.join(FAMILIES)} with `to`, which must have all that the model has")
    raise ValueError(f"{start}model_type={model_type!r} is none of {', '.join(FAMILIES)}")
