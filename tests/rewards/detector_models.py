"""Tiny random detectors of the real classes, saved in the layouts that hubs have."""

from __future__ import annotations

import functools

import torch
import transformers as T

from vgrpo_rewards.coco import CLASSES

WORDS = dict(enumerate(CLASSES))
SIDE = 64  # pixels that the tiny networks see


def lively(make):
    """Draw larger weights than networks start with, and always the same, so that outputs differ well from picture to picture."""

    @functools.wraps(make)
    def made(names=WORDS):
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
            network = make(names).eval()
            for parameter in network.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=0.3)
        return network

    return made


@lively
def rt_detr(names):
    size = {"d_model": 32, "encoder_hidden_dim": 32, "encoder_in_channels": [16] * 3, "decoder_in_channels": [32] * 3}
    layers = {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "decoder_layers": 1, "num_queries": 10}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    stages = ["stage2", "stage3", "stage4"]
    backbone = T.RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1] * 4, layer_type="basic", out_features=stages
    )
    config = T.RTDetrConfig(backbone_config=backbone, id2label=names, **size, **layers, **heads)
    return T.RTDetrForObjectDetection(config)


@lively
def d_fine(names):
    size = {"d_model": 32, "encoder_hidden_dim": 32, "encoder_in_channels": [16, 16], "decoder_in_channels": [32, 32]}
    layers = {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "decoder_layers": 2, "num_queries": 10, "num_feature_levels": 2}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_n_points": [2, 2], "feat_strides": [16, 32]}
    backbone = T.HGNetV2Config(
        stem_channels=[3, 8, 8], stage_in_channels=[8, 8, 16, 16], stage_mid_channels=[8] * 4, stage_out_channels=[8, 16, 16, 16],
        stage_num_blocks=[1] * 4, stage_numb_of_layers=[1] * 4, hidden_sizes=[8, 16, 16, 16], depths=[1] * 4,
        out_features=["stage3", "stage4"],
    )  # fmt: skip
    config = T.DFineConfig(backbone_config=backbone, id2label=names, encode_proj_layers=[1], eval_idx=-1, **size, **layers, **heads)
    return T.DFineForObjectDetection(config)


@lively
def detr(names):
    backbone = T.ResNetConfig(embedding_size=8, hidden_sizes=[8] * 4, depths=[1] * 4, layer_type="basic", out_features=["stage4"])
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "num_queries": 8}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "use_timm_backbone": False}
    return T.DetrForObjectDetection(T.DetrConfig(backbone_config=backbone, d_model=16, id2label=names, **layers, **heads))


@lively
def mask2former(names):
    stages = [f"stage{index}" for index in (1, 2, 3, 4)]
    swin = T.SwinConfig(image_size=SIDE, embed_dim=8, depths=[1] * 4, num_heads=[1, 1, 2, 2], window_size=2, out_features=stages)
    size = {"feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32, "encoder_feedforward_dim": 32, "dim_feedforward": 32}
    layers = {"encoder_layers": 1, "decoder_layers": 2, "num_attention_heads": 2, "num_queries": 12}
    return T.Mask2FormerForUniversalSegmentation(T.Mask2FormerConfig(backbone_config=swin, id2label=names, **size, **layers))


SQUARE = {"height": SIDE, "width": SIDE}
MODELS = {
    "rt_detr": (rt_detr, lambda: T.RTDetrImageProcessorPil(size=SQUARE)),
    "d_fine": (d_fine, lambda: T.RTDetrImageProcessorPil(size=SQUARE)),
    "detr": (detr, lambda: T.DetrImageProcessorPil(size={"shortest_edge": SIDE, "longest_edge": 96})),
    "mask2former": (mask2former, lambda: T.Mask2FormerImageProcessorPil(size=SQUARE)),
}


def save(folder, kind, model=None):
    """Save a model with its processor; return the folder's name."""
    make, processor = MODELS[kind]
    (model or make()).save_pretrained(folder)
    processor().save_pretrained(folder)
    return str(folder)


def sure_of(model, label, logit):
    """Make an RT-DETR see an object of one class everywhere, with the confidence of a logit."""
    with torch.no_grad():
        for head in model.model.decoder.class_embed:
            head.weight.zero_()
            head.bias.fill_(-9.0)
            head.bias[CLASSES.index(label)] = logit
    return model
