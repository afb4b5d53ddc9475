"""Networks for pictures and for pictures with text, of the package transformers."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.gallery.case import Made, Row
from tests.gallery.configurations import configured, mask, words

SIDE = 64
SIDES = {"deformable_detr": 256}
VIT: dict[str, Any] = {"image_size": SIDE, "patch_size": 16}
STAGES: dict[str, Any] = {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]}
TWO: dict[str, Any] = {"depths": [1, 1], "embed_dim": 16, "num_heads": [2, 4], "window_size": 4}
TWO |= {"image_size": SIDE, "patch_size": 4}
BOXES: dict[str, Any] = {"num_queries": 10, "num_labels": 5, "use_pretrained_backbone": False}
BOXES |= {"encoder_layers": 1, "decoder_layers": 1}

# type of model -> (class or head, options beside the small ones)
PLAIN: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("AutoModelForImageClassification", VIT),
    "deit": ("AutoModel", VIT),
    "beit": ("AutoModelForImageClassification", VIT | {"use_relative_position_bias": True}),
    "data2vec-vision": ("AutoModelForImageClassification", VIT),
    "dinov2": ("AutoModelForImageClassification", VIT | {"mlp_ratio": 2}),
    "dinov2_with_registers": ("AutoModel", VIT | {"mlp_ratio": 2}),
    "dinov3_vit": ("AutoModel", VIT),
    "vit_msn": ("AutoModelForImageClassification", VIT),
    "vivit": ("AutoModelForVideoClassification", {"image_size": 32, "num_frames": 4}),
    "videomae": ("AutoModelForVideoClassification", VIT | {"num_frames": 4, "tubelet_size": 2}),
    "timesformer": ("AutoModelForVideoClassification", VIT | {"num_frames": 4}),
    "ijepa": ("AutoModel", VIT),
    "hiera": (
        "AutoModel",
        {"image_size": [224, 224], "depths": [1, 1, 1, 1], "num_heads": [1, 2, 4, 8]},
    ),
    "swin": ("AutoModelForImageClassification", TWO),
    "swinv2": ("AutoModelForImageClassification", TWO),
    "focalnet": ("AutoModelForImageClassification", {**TWO, "hidden_sizes": [16, 32]}),
    "resnet": ("AutoModelForImageClassification", STAGES | {"embedding_size": 16}),
    "regnet": ("AutoModelForImageClassification", STAGES | {"embedding_size": 16}),
    "bit": (
        "AutoModelForImageClassification",
        {**STAGES, "hidden_sizes": [128, 128, 128, 128], "embedding_size": 32},
    ),
    "poolformer": ("AutoModelForImageClassification", {**STAGES, "depths": [1, 1, 1, 1]}),
    "pvt_v2": (
        "AutoModelForImageClassification",
        {"depths": [1, 1, 1, 1], "image_size": SIDE, "num_attention_heads": [1, 2, 5, 8]},
    ),
    "mobilevit": ("AutoModelForImageClassification", {"image_size": SIDE}),
    "mobilevitv2": ("AutoModelForImageClassification", {"image_size": SIDE}),
    "mobilenet_v1": ("AutoModelForImageClassification", {"image_size": SIDE}),
    "mobilenet_v2": ("AutoModelForImageClassification", {"image_size": SIDE}),
    "efficientnet": ("AutoModelForImageClassification", {"image_size": SIDE}),
    "swiftformer": ("AutoModelForImageClassification", {"image_size": 224}),
    "segformer": (
        "AutoModelForSemanticSegmentation",
        {"depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 5, 8]},
    ),
    "dpt": (
        "AutoModelForDepthEstimation",
        VIT | {"backbone_out_indices": [0, 1, 2, 3], "num_hidden_layers": 4},
    ),
    "glpn": (
        "AutoModelForDepthEstimation",
        {"depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 5, 8]},
    ),
    "yolos": ("AutoModelForObjectDetection", {"image_size": [SIDE, SIDE], "num_labels": 5}),
    "swin2sr": (
        "AutoModelForImageToImage",
        {"depths": [1, 1], "embed_dim": 16, "window_size": 4, "num_heads": [2, 2]},
    ),
    "rt_detr": ("AutoModelForObjectDetection", BOXES),
    "rt_detr_v2": ("AutoModelForObjectDetection", BOXES | {"decoder_layers": 2}),
    "detr": ("AutoModelForObjectDetection", BOXES),
    "conditional_detr": ("AutoModelForObjectDetection", BOXES),
    "deformable_detr": ("AutoModelForObjectDetection", BOXES | {"decoder_layers": 2}),
    "table-transformer": ("AutoModelForObjectDetection", BOXES),
}
TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 99}
TEXT |= {"num_attention_heads": 4, "max_position_embeddings": 64, "projection_dim": 32}
SIGHT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "image_size": SIDE}
SIGHT |= {"num_attention_heads": 4, "patch_size": 16, "projection_dim": 32}
# Pictures with text: options of the parts.
PAIRS: dict[str, dict[str, Any]] = {
    "clip": {"text_config": TEXT | {"eos_token_id": 2}, "vision_config": SIGHT},
    "siglip": {"text_config": TEXT, "vision_config": SIGHT},
    "altclip": {"text_config": TEXT | {"project_dim": 32}, "vision_config": SIGHT},
    "chinese_clip": {"text_config": TEXT, "vision_config": SIGHT},
    "owlvit": {"text_config": TEXT, "vision_config": SIGHT},
    "groupvit": {
        "text_config": TEXT | {"eos_token_id": 2},
        "vision_config": SIGHT
        | {"depths": [1, 1, 1], "num_group_tokens": [8, 4, 0]}
        | {"num_output_groups": [8, 4, 0]},
    },
    "blip": {"text_config": TEXT | {"bos_token_id": 1}, "vision_config": SIGHT},
}


def picture(rows: int = 1, side: int = SIDE) -> Any:
    import torch

    return torch.randn(rows, 3, side, side)


def plain(kind: str, head: str, options: dict[str, Any]) -> Made:
    import torch
    import transformers

    model = getattr(transformers, head).from_config(configured(kind, options))
    side = options.get("image_size", SIDES.get(kind, SIDE))
    side = side[0] if isinstance(side, list) else side
    if head == "AutoModelForVideoClassification":
        return model, {"pixel_values": torch.randn(1, options["num_frames"], 3, side, side)}
    return model, {"pixel_values": picture(side=side)}


def pair(kind: str, options: dict[str, Any]) -> Made:
    import transformers

    config = transformers.AutoConfig.for_model(kind, projection_dim=32, **options)
    model = transformers.AutoModel.from_config(config)
    return model, {
        "input_ids": words(1, 16),
        "pixel_values": picture(),
        "attention_mask": mask(1, 16),
    }


ROWS = [
    *(
        Row(f"{kind.replace('_', '-')}-hf", "transformers", partial(plain, kind, *row))
        for kind, row in PLAIN.items()
    ),
    *(
        Row(kind.replace("_", "-"), "transformers", partial(pair, kind, options))
        for kind, options in PAIRS.items()
    ),
]
