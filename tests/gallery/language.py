"""Networks for text, of the package transformers: encoders, decoders, both, mixtures of experts and
state spaces, with a few narrow layers."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.gallery.case import Made, Row
from tests.gallery.configurations import EXPERTS, HEADS, WORDS, configured, mask, words

# type of model -> options beside SMALL
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    "albert": {},
    "electra": {},
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "mpnet": {},
    "camembert": {},
    "xlm-roberta": {},
    "roformer": {},
    "squeezebert": {},
    "mobilebert": {"intra_bottleneck_size": 32, "true_hidden_size": 32, "use_bottleneck": True},
    "ibert": {},
    "layoutlm": {},
    "megatron-bert": {},
    "mra": {"block_per_row": 1},
    "convbert": {"head_ratio": 1, "num_groups": 1},
    "rembert": {"input_embedding_size": 32, "output_embedding_size": 32},
    "ernie": {},
    "esm": {"position_embedding_type": "rotary", "mask_token_id": 3},
    "modernbert": {"global_attn_every_n_layers": 2, "local_attention": 8},
    "big_bird": {"attention_type": "original_full"},
    "splinter": {},
    "xlnet": {"d_head": 8, "d_inner": 64},
    "xlm": {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "n_words": WORDS},
    "yoso": {"use_expectation": True},
}
DECODERS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    "gptj": {"rotary_dim": 4},
    "gpt_neox": {},
    "gpt_bigcode": {},
    "openai-gpt": {},
    "codegen": {"rotary_dim": 4},
    "ctrl": {"dff": 64},
    "opt": {"word_embed_proj_dim": 32},
    "bloom": {},
    "falcon": {"new_decoder_architecture": False},
    "mpt": {"n_heads": 4, "n_layers": 2, "max_seq_len": 64},
    "xglm": {"attention_heads": 4},
    "llama": HEADS,
    "mistral": {**HEADS, "sliding_window": 4},
    "qwen2": HEADS,
    "qwen3": HEADS,
    "gemma": HEADS,
    "gemma2": {**HEADS, "sliding_window": 4, "query_pre_attn_scalar": 8},
    "gemma3_text": {**HEADS, "sliding_window": 4, "query_pre_attn_scalar": 8},
    "phi": {"num_key_value_heads": 4},
    "phi3": {"num_key_value_heads": 2},
    "stablelm": HEADS,
    "starcoder2": HEADS,
    "olmo": HEADS,
    "olmo2": HEADS,
    "cohere": HEADS,
    "cohere2": {**HEADS, "sliding_window": 4},
    "granite": HEADS,
    "glm": {**HEADS, "partial_rotary_factor": 0.5},
    "glm4": {**HEADS, "partial_rotary_factor": 0.5},
    "nemotron": HEADS,
    "persimmon": {},
    "smollm3": HEADS,
    "helium": HEADS,
    "exaone4": {**HEADS, "sliding_window": 4},
    "ernie4_5": HEADS,
    "biogpt": {},
}
MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": {**HEADS, **EXPERTS},
    "qwen2_moe": {**HEADS, **EXPERTS, "shared_expert_intermediate_size": 32},
    "qwen3_moe": {**HEADS, **EXPERTS},
    "olmoe": {**HEADS, **EXPERTS},
    "phimoe": {**HEADS, **EXPERTS},
    "granitemoe": {**HEADS, **EXPERTS},
    "gpt_oss": {**HEADS, **EXPERTS, "sliding_window": 4},
    "deepseek_v3": {
        **EXPERTS,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "num_key_value_heads": 4,
        "n_shared_experts": 1,
    },
}
STATES: dict[str, dict[str, Any]] = {
    "mamba": {"state_size": 4, "conv_kernel": 4, "time_step_rank": 4},
    "mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 4},
    "falcon_mamba": {"state_size": 4, "time_step_rank": 4},
    "rwkv": {"attention_hidden_size": 32, "context_length": 32, "rescale_every": 0},
    "recurrent_gemma": {**HEADS, "lru_width": 32, "attention_window_size": 8},
    "jamba": {
        **HEADS,
        **EXPERTS,
        "mamba_d_state": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
    },
    "lfm2": {**HEADS, "layer_types": ["conv", "full_attention"], "block_multiple_of": 8},
    "xlstm": {"num_blocks": 2, "chunk_size": 4, "num_heads": 4, "embedding_dim": 32},
}
PAIRS: dict[str, dict[str, Any]] = {
    "t5": {},
    "mt5": {},
    "longt5": {"local_radius": 3, "encoder_attention_type": "local"},
    "bart": {},
    "mbart": {},
    "pegasus": {},
    "m2m_100": {},
    "marian": {},
    "blenderbot": {},
    "blenderbot-small": {},
    "umt5": {},
}


def text(rows: int = 2, length: int = 16) -> dict[str, Any]:
    return {"input_ids": words(rows, length), "attention_mask": mask(rows, length)}


def encoder(kind: str, options: dict[str, Any]) -> Made:
    from transformers import AutoModel

    return AutoModel.from_config(configured(kind, options)), text()


def decoder(kind: str, options: dict[str, Any]) -> Made:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(configured(kind, options)), text()


def of_words(kind: str, options: dict[str, Any]) -> Made:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(configured(kind, options))
    return model, {"input_ids": words(2, 16)}


def pair(kind: str, options: dict[str, Any]) -> Made:
    from transformers import AutoModel

    model = AutoModel.from_config(configured(kind, options))
    return model, {**text(), "decoder_input_ids": words(2, 5)}


def rows(table: dict[str, dict[str, Any]], make: Any) -> list[Row]:
    return [
        Row(
            kind.replace("_", "-"),
            "transformers",
            partial(make, kind, options),
            ("torch", "dynamo") if kind in BY_ALL else ("torch",),
        )
        for kind, options in table.items()
    ]


BY_ALL = {"bert", "deberta-v2", "gpt2", "llama", "t5", "mamba"}


def sizes(names: tuple[str, ...]) -> Any:
    import torch

    n, m = torch.export.Dim("rows", max=64), torch.export.Dim("words", min=2, max=60)
    return {name: {0: n, 1: m} for name in names}


OF_ANY_SIZE = [
    Row(
        f"{kind}-of-any-size",
        "transformers",
        partial(make, kind, table[kind]),
        sizes=partial(sizes, ("input_ids", "attention_mask")),
        other_inputs=partial(text, 3, 23),
    )
    for kind, table, make in (
        ("bert", ENCODERS, encoder),
        ("distilbert", ENCODERS, encoder),
        ("gpt2", DECODERS, decoder),
        ("llama", DECODERS, decoder),
        ("qwen3", DECODERS, decoder),
    )
]
ROWS = [
    *rows(ENCODERS, encoder),
    *rows(DECODERS, decoder),
    *rows(MIXTURES, decoder),
    *rows(STATES, of_words),
    *rows(PAIRS, pair),
    *OF_ANY_SIZE,
]
