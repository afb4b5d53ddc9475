"""Small configurations of the package transformers."""

from __future__ import annotations

from typing import Any

WORDS = 99
# The options of most configurations; those that one does not know are left out.
SMALL: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "initializer_range": 0.2,
    "d_model": 32,
    "n_embd": 32,
    "embedding_size": 32,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "num_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_decoder_layers": 2,
    "num_attention_heads": 4,
    "n_head": 4,
    "num_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "intermediate_size": 64,
    "d_ff": 64,
    "d_kv": 8,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "ffn_dim": 64,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
HEADS = {"num_key_value_heads": 2, "head_dim": 8}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
EXPERTS |= {"moe_intermediate_size": 32, "n_routed_experts": 4, "n_group": 1, "topk_group": 1}


def configured(kind: str, options: dict[str, Any]) -> Any:
    """A configuration of a type of model: SMALL as far as it has such options, then `options`."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    default_config = CONFIG_MAPPING[kind]()
    attribute_map = default_config.attribute_map
    names, mapped_options = (
        {*vars(default_config), *attribute_map},
        {attribute_map.get(k, k) for k in options},
    )
    small = {
        k: v
        for k, v in SMALL.items()
        if k in names and attribute_map.get(k, k) not in mapped_options
    }
    return AutoConfig.for_model(kind, **small, **options, use_cache=False)


def words(rows: int, length: int) -> Any:
    import torch

    return torch.randint(3, WORDS, (rows, length))


def mask(rows: int, length: int) -> Any:
    """The last words of the first row are none."""
    import torch

    ones_mask = torch.ones(rows, length, dtype=torch.int64)
    ones_mask[0, length - 3 :] = 0
    return ones_mask
