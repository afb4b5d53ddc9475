"""Networks for sound, of the package transformers, with a few narrow layers."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.gallery.case import Made, Row
from tests.gallery.configurations import configured, words

WAVES: dict[str, Any] = {
    "conv_dim": [16, 16, 16],
    "conv_kernel": [10, 3, 2],
    "conv_stride": [5, 2, 2],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
# Of samples of sound.
SAMPLES: dict[str, dict[str, Any]] = {
    "wav2vec2": WAVES,
    "wav2vec2-conformer": WAVES,
    "hubert": WAVES,
    "wavlm": WAVES | {"num_buckets": 32},
    "unispeech": WAVES,
    "unispeech-sat": WAVES,
    "data2vec-audio": WAVES,
    "sew": WAVES | {"squeeze_factor": 2},
    "sew-d": WAVES | {"squeeze_factor": 2},
}
# Of spectra [rows, length, features], by the name of the input.
SPECTRA: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "audio-spectrogram-transformer": (
        "input_values",
        (1, 64, 32),
        {"max_length": 64, "num_mel_bins": 32},
    ),
    "wav2vec2-bert": ("input_features", (1, 40, 16), {"feature_projection_input_dim": 16}),
    "parakeet_encoder": ("input_features", (1, 64, 80), {}),
    "lasr_encoder": ("input_features", (1, 64, 128), {}),
}


def samples(kind: str, options: dict[str, Any]) -> Made:
    import torch
    from transformers import AutoModel

    return AutoModel.from_config(configured(kind, options)), {"input_values": torch.randn(1, 2000)}


def spectrum(kind: str, name: str, shape: tuple[int, ...], options: dict[str, Any]) -> Made:
    import torch
    from transformers import AutoModel

    return AutoModel.from_config(configured(kind, options)), {name: torch.randn(shape)}


def whisper() -> Made:
    import torch
    from transformers import AutoModel

    config = configured("whisper", {"num_mel_bins": 16, "max_source_positions": 32})
    inputs = {"input_features": torch.randn(1, 16, 64), "decoder_input_ids": words(1, 5)}
    return AutoModel.from_config(config), inputs


def speech_to_text() -> Made:
    import torch
    from transformers import AutoModel

    config = configured("speech_to_text", {"input_feat_per_channel": 16, "conv_channels": 32})
    inputs = {"input_features": torch.randn(1, 40, 16), "decoder_input_ids": words(1, 5)}
    return AutoModel.from_config(config), inputs


def listener() -> Made:
    """A recogniser of what is said in a spectrum: an LSTM in both directions over any length, as
    Listen, Attend and Spell has it: each layer sees pairs of the steps of the one before."""
    import torch
    from torch import nn

    class Listener(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.LSTM(20, 24, bidirectional=True, batch_first=True)
            self.second = nn.LSTM(96, 24, bidirectional=True, batch_first=True)
            self.out = nn.Linear(48, 29)

        def forward(self, x: Any) -> Any:
            y, _ = self.first(x)
            y, _ = self.second(y.reshape(y.shape[0], y.shape[1] // 2, 96))
            return self.out(y).log_softmax(-1)

    return Listener(), (torch.randn(1, 40, 20),)


def of_any_length() -> Any:
    import torch

    half = torch.export.Dim("half", min=2, max=400)
    return ({1: 2 * half},)


def longer() -> tuple[Any, ...]:
    import torch

    return (torch.randn(1, 130, 20),)


def mel() -> Made:
    """HiFi-GAN, of SpeechT5: a spectrum becomes sound."""
    import torch
    from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

    config = SpeechT5HifiGanConfig(model_in_dim=16, upsample_initial_channel=32)
    return SpeechT5HifiGan(config), (torch.randn(20, 16),)


ROWS = [
    *(Row(k, "transformers", partial(samples, k, options)) for k, options in SAMPLES.items()),
    *(
        Row(k.replace("_", "-"), "transformers", partial(spectrum, k, *row))
        for k, row in SPECTRA.items()
    ),
    Row("whisper", "transformers", whisper, ("torch", "dynamo")),
    Row("speech-to-text", "transformers", speech_to_text),
    Row("listener-of-any-length", "torch", listener, sizes=of_any_length, other_inputs=longer),
    Row("speecht5-hifigan", "transformers", mel),
]
