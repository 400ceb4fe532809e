"""Sounds, and what turns them into the inputs of a tiny Whisper: tones, a local synthesiser, a processor made on the spot."""

import ctypes
import json
import math
from pathlib import Path

import espeakng_loader
import numpy as np
from transformers import WhisperFeatureExtractor, WhisperProcessor, WhisperTokenizer

RATE = 16000
"""Samples of a second, as Whisper's feature extractor takes them."""
LETTERS = "abcdefghijklmnopqrstuvwxyz'., "
SPECIAL = [
    "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|zh|>", "<|de|>", "<|translate|>", "<|transcribe|>", "<|startoflm|>",
    "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
]  # fmt: skip


def tone(seconds: float, hertz: float = 440.0) -> np.ndarray:
    """A sine (samples)."""
    return (0.5 * np.sin(2 * math.pi * hertz * np.arange(int(RATE * seconds)) / RATE)).astype(np.float32)


def spoken(text: str) -> np.ndarray:
    """What espeak-ng says (samples), at Whisper's rate. The library comes with the package `espeakng-loader`."""
    library = ctypes.CDLL(espeakng_loader.get_library_path())
    synchronous, utf8 = 2, 1
    rate = library.espeak_Initialize(synchronous, 0, espeakng_loader.get_data_path().encode(), 0)
    assert rate > 0, "espeak-ng has not found its voices"
    heard: list[np.ndarray] = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
    def keep(samples, count, _):
        if samples and count > 0:
            heard.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    library.espeak_SetSynthCallback(keep)
    assert library.espeak_SetVoiceByName(b"en") == 0
    said = text.encode()
    assert library.espeak_Synth(said, ctypes.c_size_t(len(said) + 1), 0, 1, 0, utf8, None, None) == 0
    library.espeak_Synchronize()
    library.espeak_Terminate()
    samples = np.concatenate(heard).astype(np.float32) / 2**15
    moments = np.arange(int(len(samples) * RATE / rate)) * rate / RATE
    return np.interp(moments, np.arange(len(samples)), samples).astype(np.float32)


def tokenizer(folder: Path) -> WhisperTokenizer:
    """A WhisperTokenizer of letters, a few merges and the special tokens."""
    merges = ["t h", "th e", "Ġ the", "i n"]
    pieces = [*LETTERS.replace(" ", "Ġ"), *(merge.replace(" ", "") for merge in merges)]
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {piece: number for number, piece in enumerate([*pieces, *SPECIAL])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8")
    return WhisperTokenizer.from_pretrained(
        folder, unk_token=SPECIAL[0], bos_token=SPECIAL[0], eos_token=SPECIAL[0], pad_token=SPECIAL[0],
        extra_special_tokens=SPECIAL[1:],
    )  # fmt: skip


def processor(folder: Path, seconds: int = 2, mel_bins: int = 8) -> WhisperProcessor:
    """A WhisperProcessor for clips of up to so many seconds."""
    return WhisperProcessor(WhisperFeatureExtractor(feature_size=mel_bins, chunk_length=seconds), tokenizer(folder))
