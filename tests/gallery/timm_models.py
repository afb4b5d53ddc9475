"""Networks for pictures, of the package timm: one of each family that it has."""

from __future__ import annotations

from functools import partial

from tests.gallery.case import Made, Row

# name -> size of the pictures that it is built for, and options of its constructor
NETWORKS: dict[str, tuple[int, dict[str, object]]] = {
    "resnet10t": (64, {}),
    "resnetv2_50": (64, {}),
    "resnext26ts": (64, {}),
    "seresnet18": (64, {}),
    "ecaresnet26t": (64, {}),
    "skresnet18": (64, {}),
    "resnest14d": (64, {}),
    "res2net50_14w_8s": (64, {}),
    "densenet121": (64, {}),
    "dla34": (64, {}),
    "dpn48b": (64, {}),
    "vgg11_bn": (64, {}),
    "xception41": (96, {}),
    "inception_v3": (128, {}),
    "inception_v4": (128, {}),
    "inception_resnet_v2": (128, {}),
    "nasnetalarge": (96, {}),
    "pnasnet5large": (96, {}),
    "mobilenetv2_050": (64, {}),
    "mobilenetv3_small_050": (64, {}),
    "mobilenetv4_conv_small": (64, {}),
    "mobilenetv5_base": (64, {}),
    "mobileone_s0": (64, {}),
    "mobilevit_xxs": (64, {}),
    "mobilevitv2_050": (64, {}),
    "mnasnet_small": (64, {}),
    "spnasnet_100": (64, {}),
    "fbnetc_100": (64, {}),
    "ghostnet_050": (64, {}),
    "ghostnetv2_100": (64, {}),
    "lcnet_050": (64, {}),
    "tinynet_e": (64, {}),
    "hardcorenas_a": (64, {}),
    "efficientnet_b0": (64, {}),
    "efficientnet_lite0": (64, {}),
    "tf_efficientnetv2_b0": (64, {}),  # larger ones are chaotic with random weights
    "efficientvit_b0": (64, {}),
    "efficientvit_m0": (64, {}),
    "efficientformer_l1": (224, {}),
    "efficientformerv2_s0": (224, {}),
    "mixnet_s": (64, {}),
    "rexnet_100": (64, {}),
    "regnetx_002": (64, {}),
    "regnety_002": (64, {}),
    "regnetz_005": (64, {}),
    "repvgg_a0": (64, {}),
    "repvit_m0_9": (64, {}),
    "repghostnet_050": (64, {}),
    "fastvit_t8": (64, {}),
    "fasternet_t0": (64, {}),
    "starnet_s1": (64, {}),
    "hrnet_w18_small": (64, {}),
    "hgnetv2_b0": (64, {}),
    "cs3darknet_s": (64, {}),
    "cspresnet50": (64, {}),
    "darknet53": (64, {}),
    "selecsls42": (64, {}),
    "tresnet_m": (64, {}),
    "gernet_s": (64, {}),
    "vovnet39a": (64, {}),
    "ese_vovnet19b_dw": (64, {}),
    "nf_resnet26": (64, {}),
    "nfnet_f0": (64, {}),
    "convnext_atto": (64, {}),
    "convnextv2_atto": (64, {}),
    "inception_next_atto": (64, {}),
    "rdnet_tiny": (64, {}),
    "convmixer_768_32": (64, {}),
    "poolformer_s12": (64, {}),
    "caformer_s18": (64, {}),
    "edgenext_xx_small": (64, {}),
    "focalnet_tiny_srf": (64, {}),
    "vit_tiny_patch16_224": (224, {}),
    "vit_relpos_small_patch16_224": (224, {}),
    "deit_tiny_distilled_patch16_224": (224, {}),
    "beit_base_patch16_224": (224, {"depth": 2}),
    "beitv2_base_patch16_224": (224, {"depth": 2}),
    "eva02_tiny_patch14_224": (224, {"depth": 3}),
    "cait_xxs24_224": (224, {"depth": 3}),
    "xcit_nano_12_p16_224": (224, {"depth": 3}),
    "swin_tiny_patch4_window7_224": (224, {"depths": (1, 1, 2, 1)}),
    "swinv2_cr_tiny_224": (224, {"depths": (1, 1, 2, 1)}),
    "swinv2_tiny_window8_256": (256, {"depths": (1, 1, 2, 1)}),
    "maxvit_pico_rw_256": (256, {}),
    "coatnet_nano_rw_224": (224, {}),
    "coat_lite_tiny": (224, {}),
    "crossvit_tiny_240": (240, {}),
    "convit_tiny": (224, {}),
    "davit_tiny": (224, {"depths": (1, 1, 1, 1)}),
    "gcvit_xxtiny": (224, {}),
    "hiera_tiny_224": (224, {}),
    "levit_128s": (224, {}),
    "mvitv2_tiny": (224, {}),
    "nest_tiny": (224, {}),
    "nextvit_small": (224, {}),
    "pit_ti_224": (224, {}),
    "pvt_v2_b0": (224, {}),
    "sequencer2d_s": (224, {"layers": (1, 1, 1, 1)}),
    "tiny_vit_5m_224": (224, {}),
    "tnt_s_patch16_224": (224, {"depth": 3}),
    "twins_svt_small": (224, {}),
    "visformer_tiny": (224, {}),
    "volo_d1_224": (224, {}),
    "mixer_s32_224": (224, {}),
    "gmlp_ti16_224": (224, {}),
    "resmlp_12_224": (224, {}),
    "botnet26t_256": (256, {}),
    "halonet26t": (256, {}),
    "lambda_resnet26t": (256, {}),
    "mambaout_femto": (64, {}),
    "samvit_base_patch16_224": (224, {"depth": 2, "global_attn_indexes": (1,)}),
    "vitamin_small_224": (224, {}),
    "shvit_s1": (64, {}),
    "csatv2": (512, {}),
}
# By torch's exporters too.
BOTH = ("resnet10t", "mobilenetv3_small_050", "efficientnet_b0", "vit_tiny_patch16_224")
BOTH += ("swin_tiny_patch4_window7_224", "convnext_atto", "mobilevit_xxs", "coat_lite_tiny")


def make(name: str, side: int, options: dict[str, object]) -> Made:
    import timm
    import torch

    model = timm.create_model(name, pretrained=False, num_classes=10, **options)
    return model, (torch.randn(1, 3, side, side),)


ROWS = [
    Row(name, "timm", partial(make, name, side, options), ("torch", "dynamo", "script"))
    if name in BOTH
    else Row(name, "timm", partial(make, name, side, options))
    for name, (side, options) in NETWORKS.items()
]
