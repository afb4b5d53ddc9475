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
    given = {"input_features": torch.randn(1, 16, 64), "decoder_input_ids": words(1, 5)}
    return AutoModel.from_config(config), given


def speech_to_text() -> Made:
    import torch
    from transformers import AutoModel

    config = configured("speech_to_text", {"input_feat_per_channel": 16, "conv_channels": 32})
    given = {"input_features": torch.randn(1, 40, 16), "decoder_input_ids": words(1, 5)}
    return AutoModel.from_config(config), given


def encodec() -> Made:
    """Its encoder and decoder have LSTMs."""
    import torch
    from transformers import EncodecConfig, EncodecModel

    config = EncodecConfig(num_filters=4, hidden_size=16, codebook_size=32, codebook_dim=16)
    model = EncodecModel(config)

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = model.encoder, model.decoder

        def forward(self, x: Any) -> Any:
            made = self.encoder(x)
            return made, self.decoder(made)

    return Encoder(), (torch.randn(1, 1, 3200),)


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
    Row("encodec", "transformers", encodec, ("torch", "dynamo")),
    Row("speecht5-hifigan", "transformers", mel),
]
