"""A trial: load a folder as anybody would, run it once, and let it write a few tokens."""

from pathlib import Path
from typing import Any

import psutil
import torch

from transduct.convert.memory import quiet
from transduct.doctor.findings import Findings

NEW_TOKENS = 5
ROOM = 1.2
"""Times the bytes of weights that must be free in memory."""
TEXT = "a b c"


def try_model(folder: Path, class_name: str, tokenizer: Any, findings: Findings) -> None:
    """Load the model, run it forward, and generate."""
    from transduct import modeling

    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    free = psutil.virtual_memory().available
    if ROOM * size > free:
        findings.note("loading", f"not tried: {size / 1e9:,.1f} GB of weights, but {free / 1e9:,.1f} GB of memory are free")
        return
    with findings.problems_of("loading"):
        with quiet():
            model = getattr(modeling, class_name).from_pretrained(folder, local_files_only=True).eval()
        findings.ok("loading", f"as {class_name}, {model.num_parameters():,} parameters", model.num_parameters())
        with findings.problems_of("forward"), torch.no_grad():
            _try_forward(model, findings)
        if model.can_generate():
            with findings.problems_of("generate"), torch.no_grad():
                _try_generate(model, tokenizer, findings)


def _try_forward(model: Any, findings: Findings) -> None:
    """One forward pass must give finite numbers."""
    outputs = model(**model.dummy_inputs)
    first = outputs[0]  # logits, or states of the last layer
    if bool(first.isfinite().all()):
        findings.ok("forward", f"finite numbers of shape {tuple(first.shape)}")
    else:
        findings.problem("forward", "gives NaN or infinite numbers: in half precision, load it with dtype=float32; or retrain")


def _try_generate(model: Any, tokenizer: Any, findings: Findings) -> None:
    """Greedy and beam search, of a text where there is a tokenizer."""
    inputs = {name: value for name, value in model.dummy_inputs.items() if name != "decoder_input_ids"}
    if tokenizer is not None and model.main_input_name == "input_ids":
        encoded = tokenizer(TEXT, return_tensors="pt")
        inputs = {name: encoded[name] for name in ("input_ids", "attention_mask") if name in encoded}
    with quiet():
        greedy = model.generate(**inputs, num_beams=1, do_sample=False, max_new_tokens=NEW_TOKENS, min_new_tokens=1)
        model.generate(**inputs, num_beams=2, do_sample=False, max_new_tokens=NEW_TOKENS)
    begin = 1 if model.config.is_encoder_decoder else inputs[model.main_input_name].shape[-1]
    count = greedy.shape[-1] - begin
    text = f"{count} tokens, greedily and with two beams"
    if tokenizer is not None:
        text += f", such as {tokenizer.decode(greedy[0], skip_special_tokens=True)!r}"
    findings.ok("generate", text)
