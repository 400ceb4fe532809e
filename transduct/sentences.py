"""Our encoder in sentence-transformers: `SentenceTransformer(modules=[SentenceEncoder(folder), Pooling(...)])`.

sentence-transformers loads the encoder alone of encoder-decoders that it knows by name. This module does the same for ours; what
comes after it, such as pooling, training and saving, is theirs.
"""

from typing import Any

from sentence_transformers.sentence_transformer.modules import Transformer

from transduct.modeling import TransductEncoderModel


class SentenceEncoder(Transformer):
    """The encoder of any of our models, as the first module of a `SentenceTransformer`.

    Args:
        model_name_or_path: a folder with a model and its tokenizer, or an id of the Hub; of an encoder-decoder, the decoder's
            weights are left out.
    """

    def _load_encoder_only_model(self, model_name_or_path: str, config: Any, **model_kwargs: Any) -> TransductEncoderModel:
        return TransductEncoderModel.from_pretrained(model_name_or_path, config=config, **model_kwargs)
