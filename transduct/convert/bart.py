"""BART, mBART and mBART-50, PLBart, BlenderBot and BlenderBot small.

All have learned positions. In mBART and PLBart the decoder starts from the label's own last token, which names the language
(`target_start="last_token"`), where it is made from labels; what generation starts with is `decoder_start_token_id` and
`forced_bos_token_id` of the generation config.

BlenderBot small normalises the embeddings of the target before it adds positions. It scales those of the source alone: before a
norm, a scale changes next to nothing, and transformers 5 leaves it out, where transformers 4 did not.
"""

from transduct.convert.bart_kin import Kin, family

GENERATION, CLASSIFICATION, QUESTIONS = "ForConditionalGeneration", "ForSequenceClassification", "ForQuestionAnswering"

BART = Kin(
    name="bart",
    prefix="Bart",
    fixed={"norm_position": "post", "embedding_norm": True, "positions": "learned", "position_offset": 2},
    classes=(GENERATION, "Model", CLASSIFICATION, QUESTIONS),
    has_classifiers=True,
)
MBART = Kin(
    name="mbart",
    prefix="MBart",
    fixed={**BART.fixed, "norm_position": "pre", "target_start": "last_token"},
    classes=(GENERATION, "Model", CLASSIFICATION, QUESTIONS),
    has_classifiers=True,
)
PLBART = Kin(
    name="plbart",
    prefix="PLBart",
    fixed={**BART.fixed, "target_start": "last_token"},
    classes=(GENERATION, "Model", CLASSIFICATION),
    has_classifiers=True,
)
BLENDERBOT = Kin(
    name="blenderbot",
    prefix="Blenderbot",
    fixed={"norm_position": "pre", "positions": "learned"},
    norms="prelayernorm",
    generation={"forced_eos_token_id": None, "encoder_no_repeat_ngram_size": 0},
)
BLENDERBOT_SMALL = Kin(
    name="blenderbot-small",
    prefix="BlenderbotSmall",
    fixed={
        "norm_position": "post",
        "embedding_norm": True,
        "decoder_embedding_norm": "before_positions",
        "decoder_scale_embeddings": False,
        "positions": "learned",
    },
    norms="xlm",
)

FAMILIES = [family(kin) for kin in (BART, MBART, PLBART, BLENDERBOT, BLENDERBOT_SMALL)]
