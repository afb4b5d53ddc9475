"""Networks that make pictures, of the package diffusers, with narrow layers."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.gallery.case import Made, Row

WIDTHS = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8}
DOWN, UP = ("DownBlock2D", "AttnDownBlock2D"), ("AttnUpBlock2D", "UpBlock2D")
CROSS = {"down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D")}
CROSS |= {"up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")}
CODER = {"down_block_types": ("DownEncoderBlock2D",) * 2}
CODER |= {"up_block_types": ("UpDecoderBlock2D",) * 2}
TEXT = ("encoder_hidden_states", (1, 7, 32))
HEADS: dict[str, Any] = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 1}

# class -> (options, inputs: name -> shape; a shape () is a time step)
NETWORKS: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "UNet2DModel": (
        {**WIDTHS, "sample_size": 16, "down_block_types": DOWN, "up_block_types": UP},
        {"sample": (1, 3, 16, 16), "timestep": ()},
    ),
    "UNet2DConditionModel": (
        {**WIDTHS, **CROSS, "sample_size": 16, "cross_attention_dim": 32},
        {"sample": (1, 4, 16, 16), "timestep": (), TEXT[0]: TEXT[1]},
    ),
    "AutoencoderKL": (
        {**WIDTHS, **CODER, "latent_channels": 4, "sample_size": 32},
        {"sample": (1, 3, 32, 32)},
    ),
    "AutoencoderTiny": (
        {"encoder_block_out_channels": (16,) * 4, "decoder_block_out_channels": (16,) * 4}
        | {"num_encoder_blocks": (1, 1, 1, 1), "num_decoder_blocks": (1, 1, 1, 1)},
        {"sample": (1, 3, 32, 32)},
    ),
    "VQModel": (
        {**WIDTHS, **CODER, "latent_channels": 3, "num_vq_embeddings": 16},
        {"sample": (1, 3, 32, 32)},
    ),
    "DiTTransformer2DModel": (
        {**HEADS, "in_channels": 4, "sample_size": 8, "num_embeds_ada_norm": 10}
        | {"norm_num_groups": 8, "out_channels": 4},
        {"hidden_states": (1, 4, 8, 8), "timestep": (1,), "class_labels": (1,)},
    ),
    "PixArtTransformer2DModel": (
        {**HEADS, "sample_size": 8, "cross_attention_dim": 32, "caption_channels": 32}
        | {"use_additional_conditions": False},
        {"hidden_states": (1, 4, 8, 8), TEXT[0]: TEXT[1], "timestep": (1,)},
    ),
    "SD3Transformer2DModel": (
        {**HEADS, "sample_size": 8, "in_channels": 4, "joint_attention_dim": 32}
        | {"caption_projection_dim": 32, "pooled_projection_dim": 32, "out_channels": 4},
        {
            "hidden_states": (1, 4, 8, 8),
            TEXT[0]: TEXT[1],
            "pooled_projections": (1, 32),
            "timestep": (1,),
        },
    ),
    "FluxTransformer2DModel": (
        {**HEADS, "in_channels": 4, "num_single_layers": 1, "joint_attention_dim": 32}
        | {"pooled_projection_dim": 32, "axes_dims_rope": (4, 4, 8)},
        {
            "hidden_states": (1, 16, 4),
            TEXT[0]: TEXT[1],
            "pooled_projections": (1, 32),
            "timestep": (1,),
            "img_ids": (16, 3),
            "txt_ids": (7, 3),
        },
    ),
    "AuraFlowTransformer2DModel": (
        {"num_attention_heads": 2, "attention_head_dim": 16, "num_mmdit_layers": 1}
        | {"num_single_dit_layers": 1, "sample_size": 8, "joint_attention_dim": 32}
        | {"caption_projection_dim": 32},
        {"hidden_states": (1, 4, 8, 8), TEXT[0]: TEXT[1], "timestep": (1,)},
    ),
    "SanaTransformer2DModel": (
        {**HEADS, "in_channels": 4, "out_channels": 4, "num_cross_attention_heads": 2}
        | {"cross_attention_head_dim": 16, "cross_attention_dim": 32, "caption_channels": 32}
        | {"sample_size": 8},
        {"hidden_states": (1, 4, 8, 8), TEXT[0]: TEXT[1], "timestep": (1,)},
    ),
    "AutoencoderDC": (
        {"in_channels": 3, "latent_channels": 4, "attention_head_dim": 8}
        | {"encoder_block_out_channels": (16, 32), "decoder_block_out_channels": (16, 32)}
        | {"encoder_block_types": "ResBlock", "decoder_block_types": "ResBlock"}
        | {"encoder_layers_per_block": (1, 1), "decoder_layers_per_block": (1, 1)}
        | {"encoder_qkv_multiscales": ((), ()), "decoder_qkv_multiscales": ((), ())},
        {"sample": (1, 3, 32, 32)},
    ),
    "PriorTransformer": (
        {**HEADS, "embedding_dim": 32, "num_embeddings": 7, "additional_embeddings": 4},
        {
            "hidden_states": (1, 32),
            "timestep": (),
            "proj_embedding": (1, 32),
            "encoder_hidden_states": (1, 7, 32),
        },
    ),
}


def make(name: str, options: dict[str, Any], inputs: dict[str, tuple[int, ...]]) -> Made:
    import diffusers
    import torch

    model = getattr(diffusers, name)(**options)
    model_inputs = {
        key: torch.tensor([3] if shape else 3)
        if key in ("timestep", "class_labels")
        else torch.randn(shape)
        for key, shape in inputs.items()
    }
    return model, model_inputs


ROWS = [Row(name, "diffusers", partial(make, name, *row)) for name, row in NETWORKS.items()]
