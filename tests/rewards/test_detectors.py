"""Detectors loaded from disk, against the libraries called directly; and COCO's classes against torchvision's list."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as T
from PIL import Image

from vgrpo_core import PluginError
from vgrpo_rewards import detect_yolo
from vgrpo_rewards.coco import ALIASES, CLASSES, SLOTS, labels
from vgrpo_rewards.detect_torchvision import SIZES, Torchvision, detector
from vgrpo_rewards.detect_transformers import Transformers, bounds, strongest
from vgrpo_rewards.detect_yolo import Yolo
from vgrpo_rewards.detectors import Detection, keep

from .detector_models import MODELS, WORDS, mask2former, rt_detr, save

CPU, FLOAT = torch.device("cpu"), torch.float32
PICTURES = np.random.default_rng(3).integers(0, 256, (2, 48, 96, 3), np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return folder(kind): where a tiny detector of that kind is."""
    return lambda kind: save(tmp_path_factory.mktemp(kind), kind)


def seen(found):
    """List what was detected in a form that compares: class and numbers."""
    return [one.label for one in found], torch.tensor([(one.confidence, *one.box) for one in found]).reshape(-1, 5)


# Names


def test_the_classes_and_their_numbers_are_those_of_torchvision():
    detection = pytest.importorskip("torchvision.models.detection")
    categories = detection.MaskRCNN_ResNet50_FPN_V2_Weights.DEFAULT.meta["categories"]
    known = {index: name for index, name in enumerate(categories) if name not in ("N/A", "__background__")}
    assert known == SLOTS
    assert tuple(known.values()) == CLASSES
    assert labels(dict(enumerate(categories))) == SLOTS


@pytest.mark.parametrize("made", ["{}", "LABEL_{}", "class{}", "class_{}"])
def test_labels_without_names_are_coco_s_classes_or_its_numbers(made):
    assert labels({index: made.format(index) for index in range(80)}) == WORDS
    assert labels({index: made.format(index) for index in range(91)}) == SLOTS
    assert SLOTS[90] == "toothbrush"
    assert SLOTS[13] == "stop sign"


def test_labels_with_names_keep_their_numbers_and_others_than_coco_s_are_left_out():
    assert labels({4: "Sofa", 7: "N/A", 9: "person", 11: "sky"}) == {4: "couch", 9: "person"}
    assert set(ALIASES.values()) < set(CLASSES)


@pytest.mark.parametrize("names", [{0: "oak", 1: "ash"}, dict.fromkeys(range(80), "oak"), {0: "LABEL_0", 1: "LABEL_1"}])
def test_labels_that_are_not_coco_s_are_refused(names):
    with pytest.raises(ValueError, match="is a class of COCO"):
        labels(names)


def test_what_is_kept_is_the_most_certain_of_each_class():
    rng = np.random.default_rng(0)
    found = [Detection(str(rng.choice(["cat", "dog"])), float(rng.integers(1, 20)) / 20, (0, 0, 1, 1)) for _ in range(200)]
    kept = keep(found, 0.3, 16)
    for label in ("cat", "dog"):
        best = sorted((one.confidence for one in found if one.label == label), reverse=True)
        assert [one.confidence for one in kept[label]] == best[:16]
    assert keep([Detection("cat", 0.3, (0, 0, 1, 1))], 0.3, 16) == {}


# transformers


@pytest.mark.parametrize("kind", ["rt_detr", "d_fine", "detr"])
def test_boxes_are_those_that_the_library_finds(kind, folder):
    path, above = folder(kind), 0.1
    model, processor = T.AutoModelForObjectDetection.from_pretrained(path).eval(), MODELS[kind][1]()
    found = Transformers(model=path).load(CPU, FLOAT).find(PICTURES, above)
    for picture, one in zip(PICTURES, found, strict=True):
        with torch.no_grad():
            outputs = model(**processor(Image.fromarray(picture), return_tensors="pt"))
        expected = processor.post_process_object_detection(outputs, above, target_sizes=[(48, 96)])[0]
        names, numbers = seen(one)
        assert names == [CLASSES[label] for label in expected["labels"].tolist()]
        assert len(names) > 0
        torch.testing.assert_close(numbers[:, 0], expected["scores"], atol=1e-5, rtol=0)
        torch.testing.assert_close(numbers[:, 1:], expected["boxes"], atol=1e-3, rtol=0)
        assert all(detection.mask is None for detection in one)
    assert not torch.equal(seen(found[0])[1], seen(found[1])[1])


@pytest.mark.parametrize("above", [0.0, 0.05, 0.3, 0.99])
def test_masks_of_mask2former_are_those_that_the_library_finds_with_all_its_queries(above, folder):
    path = folder("mask2former")
    model, processor = T.AutoModelForUniversalSegmentation.from_pretrained(path).eval(), MODELS["mask2former"][1]()
    found = Transformers(model=path).load(CPU, FLOAT).find(PICTURES, above)
    for picture, one in zip(PICTURES, found, strict=True):
        with torch.no_grad():
            outputs = model(**processor(Image.fromarray(picture), return_tensors="pt"))
        process = processor.post_process_instance_segmentation
        expected = process(outputs, threshold=above, target_sizes=[(48, 96)], return_binary_maps=True)[0]
        infos = sorted(expected["segments_info"], key=lambda info: info["score"])
        one = sorted(one, key=lambda each: each.confidence)
        assert [each.label for each in one] == [CLASSES[info["label_id"]] for info in infos]
        assert [each.confidence for each in one] == pytest.approx([info["score"] for info in infos], abs=1e-4)
        for each, info in zip(one, infos, strict=True):
            assert (each.mask != expected["segmentation"][info["id"]].bool().numpy()).mean() < 0.001
            assert each.box == Image.fromarray(each.mask).getbbox()
    assert bool(found[0]) == (above < 0.4)


def test_a_query_with_two_classes_over_the_limit_keeps_both():
    logits = torch.full((20, 81), -9.0)
    logits[:, 80] = 9.0
    logits[7, [3, 5]], logits[7, 80] = 4.0, -9.0
    kept, masks = strongest(logits, torch.arange(20.0).reshape(20, 1, 1), 0.3)
    assert len(kept) == 3  # pairs over 0.3 that one query can have, and so as many as are scored
    assert 7 in masks.flatten().tolist()


def test_the_box_around_a_mask_ends_behind_its_last_pixel():
    mask = np.zeros((5, 7), bool)
    mask[1:3, 2] = mask[2, 4] = True
    assert bounds(mask) == Image.fromarray(mask).getbbox() == (2, 1, 5, 3)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("rt_detr", torch.bfloat16), ("rt_detr", torch.float16), ("mask2former", torch.float16)]
)
def test_half_precision_finds_about_the_same(kind, dtype, folder):
    path = folder(kind)
    whole, half = (Transformers(model=path).load(CPU, each).find(PICTURES, 0.1)[0] for each in (FLOAT, dtype))
    assert max(one.confidence for one in half) == pytest.approx(max(one.confidence for one in whole), abs=0.1)


def test_numbers_that_overflow_are_an_error_and_not_an_empty_image(tmp_path):
    model = rt_detr()
    with torch.no_grad():
        model.model.decoder.class_embed[-1].bias.fill_(float("inf"))
    find = Transformers(model=save(tmp_path, "rt_detr", model)).load(CPU, torch.float16).find
    with pytest.raises(PluginError, match="not finite in float16"):
        find(PICTURES, 0.3)


def test_r041_a_checkpoint_without_a_trained_head_is_refused(tmp_path):
    path = save(tmp_path, "rt_detr")
    whole = rt_detr().state_dict()
    T.RTDetrForObjectDetection.from_pretrained(path).save_pretrained(
        path, state_dict={name: value for name, value in whole.items() if "class_embed" not in name and "enc_score" not in name}
    )
    with pytest.raises(PluginError, match=r"lacks \d+ of the weights, such as .*(class_embed|enc_score)"):
        Transformers(model=path).load(CPU, FLOAT)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: (path / "model.safetensors").write_bytes(b"nothing"), "damaged or of another kind"),
        (lambda path: (path / "config.json").unlink(), "damaged or of another kind"),
        (lambda path: T.CLIPConfig().save_pretrained(path), "none of its"),
    ],
)
def test_a_folder_that_is_no_detector_is_refused_with_its_path(spoil, message, tmp_path):
    path = save(tmp_path, "rt_detr")
    spoil(tmp_path)
    with pytest.raises(PluginError, match=message) as error:
        Transformers(model=path).load(CPU, FLOAT)
    assert path in str(error.value)


def test_what_is_not_there_is_refused_with_its_path():
    for choice in (Transformers(model="/none"), Torchvision(use="torchvision", weights="/none.pt")):
        with pytest.raises(PluginError, match='"/none.*correct the path'.replace(".*", "(.|\n)*")):
            choice.load(CPU, FLOAT)


def test_r042_what_an_alternative_needs_is_said_and_the_default_needs_nothing_more(monkeypatch, folder, tmp_path):
    monkeypatch.setattr("vgrpo_rewards.detectors.find_spec", lambda name: None)
    assert Transformers(model=folder("rt_detr")).load(CPU, FLOAT).labels == set(CLASSES)
    alternatives = {
        "geneval": [Transformers(model=save(tmp_path, "mask2former", mask2former())), Torchvision(use="torchvision")],
        "yolo": [Yolo(use="yolo", model="any.pt")],
    }
    for extra, choices in alternatives.items():
        for choice in choices:
            with pytest.raises(PluginError, match=rf'pip install "vgrpo\[{extra}\]"'):
                choice.load(CPU, FLOAT)


def test_a_folder_is_no_asset_and_a_name_is(tmp_path):
    assert Transformers(model=str(tmp_path)).assets() == []
    assert [asset.name for asset in Transformers().assets()] == ["PekingU/rtdetr_r50vd"]
    assert Torchvision(use="torchvision", weights="mine.pt").assets() == []
    assert Yolo(use="yolo").assets()[0].licence == "AGPL-3.0"


# torchvision


def test_boxes_of_torchvision_are_those_of_its_model_called_directly(tmp_path):
    detection = pytest.importorskip("torchvision.models.detection")
    torch.manual_seed(0)
    model = detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None).eval()
    for name, parameter in model.head.classification_head.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)  # so that scores differ
    torch.save(model.state_dict(), tmp_path / "model.pt")
    choice = Torchvision(use="torchvision", model="ssdlite320_mobilenet_v3_large", weights=str(tmp_path / "model.pt"))
    found = choice.load(CPU, FLOAT)
    assert found.labels == set(CLASSES)
    with torch.no_grad():
        expected = model([torch.from_numpy(picture).permute(2, 0, 1) / 255 for picture in PICTURES])
    sure = expected[0]["scores"].median().item()
    for one, whole in zip(found.find(PICTURES, sure), expected, strict=True):
        rows = [at for at, label in enumerate(whole["labels"].tolist()) if label in SLOTS and whole["scores"][at] > sure]
        assert 0 < len(rows) < len(whole["labels"])
        assert seen(one)[0] == [SLOTS[label] for label in whole["labels"][rows].tolist()]
        assert torch.equal(seen(one)[1], torch.cat([whole["scores"][rows, None], whole["boxes"][rows]], 1))


def test_masks_of_torchvision_are_those_of_its_model_called_directly():
    pytest.importorskip("torchvision")
    from torchvision.models.detection import MaskRCNN
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
    from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor

    torch.manual_seed(0)
    body = torch.nn.Conv2d(3, 8, 3, stride=8, padding=1)
    body.out_channels = 8
    size = {"min_size": 48, "max_size": 96, "rpn_post_nms_top_n_test": 9, "box_score_thresh": 0.0}
    heads = {"box_head": TwoMLPHead(8 * 7 * 7, 16), "box_predictor": FastRCNNPredictor(16, 91)}
    masks = {"mask_head": torch.nn.Conv2d(8, 8, 3, padding=1), "mask_predictor": MaskRCNNPredictor(8, 8, 91)}
    model = MaskRCNN(body, rpn_anchor_generator=AnchorGenerator(((16, 32),), ((1.0,),)), **size, **heads, **masks)
    with torch.no_grad():
        found = detector(model, SLOTS, CPU).find(PICTURES[:1], 0.0)[0]
        whole = model([torch.from_numpy(PICTURES[0]).permute(2, 0, 1) / 255])[0]
    known = [at for at, label in enumerate(whole["labels"].tolist()) if label in SLOTS]
    assert 0 < len(known) < len(whole["labels"])  # some are numbers that COCO does not use
    assert [one.label for one in found] == [SLOTS[label] for label in whole["labels"][known].tolist()]
    for one, at in zip(found, known, strict=True):
        assert (one.mask == (whole["masks"][at, 0] > 0.5).numpy()).all()


def test_the_sizes_of_torchvision_s_weights_are_those_that_it_states():
    pytest.importorskip("torchvision")
    from torchvision.models import get_model_weights

    stated = {name: get_model_weights(name).DEFAULT.meta["_file_size"] / 1000 for name in SIZES}
    assert pytest.approx(stated, abs=0.005) == SIZES


@pytest.mark.parametrize(
    ("options", "message"),
    [({"model": "yolo"}, "its detection models are .*maskrcnn"), ({"weights": "{}"}, "size mismatch|Missing key")],
)
def test_torchvision_says_what_does_not_fit(options, message, tmp_path):
    pytest.importorskip("torchvision")
    torch.save({"weight": torch.zeros(2)}, tmp_path / "other.pt")
    options = {key: value.format(tmp_path / "other.pt") for key, value in options.items()}
    small = {"model": "ssdlite320_mobilenet_v3_large"} | options
    with pytest.raises(PluginError, match=f'reward "geneval"(.|\n)*({message}|Error.s. in loading)'):
        Torchvision(use="torchvision", **small).load(CPU, FLOAT)


# ultralytics


@pytest.fixture(scope="module")
def yolo(tmp_path_factory):
    """Return yolo(kind): the path of a tiny YOLO, built from ultralytics' own file."""
    path = tmp_path_factory.mktemp("yolo")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"OFFLINE": "true", "AUTOINSTALL": "false", "CONFIG_DIR": str(path)}.items():
            patch.setenv(f"YOLO_{name}", value)
        YOLO = pytest.importorskip("ultralytics.models").YOLO  # once it is imported, it has read them

        def made(kind):
            torch.manual_seed(1)
            model = YOLO(f"{kind}.yaml", verbose=False)
            for module in model.model.modules():
                if isinstance(module, torch.nn.BatchNorm2d):
                    torch.nn.init.uniform_(module.weight, 1, 3)
            with torch.no_grad():
                for branch in model.model.model[-1].cv3:
                    branch[-1].bias.add_(6)  # or nothing would be sure enough
            model.save(path / f"{kind}.pt")
            return str(path / f"{kind}.pt")

        yield made


@pytest.mark.parametrize(("kind", "above"), [("yolo11n", 0.02), ("yolo11n-seg", 0.02)])
def test_what_yolo_finds_is_what_its_predict_finds(kind, above, yolo):
    from ultralytics.models import YOLO

    path = yolo(kind)
    found = Yolo(use="yolo", model=path, size=96).load(CPU, FLOAT)
    assert found.labels == set(CLASSES)  # a file made from a yaml calls them 0 to 79
    for picture, one in zip(PICTURES, found.find(PICTURES, above), strict=True):
        whole = YOLO(path).predict(Image.fromarray(picture), imgsz=96, conf=above, verbose=False, device="cpu", retina_masks=True)[
            0
        ]
        names, numbers = seen(one)
        assert names == [CLASSES[int(label)] for label in whole.boxes.cls]
        assert names
        torch.testing.assert_close(numbers[:, 0], whole.boxes.conf, atol=1e-4, rtol=0)
        torch.testing.assert_close(numbers[:, 1:], whole.boxes.xyxy, atol=1e-2, rtol=0)
        if whole.masks is not None:
            assert all((each.mask == mask.bool().numpy()).all() for each, mask in zip(one, whole.masks.data, strict=True))
    assert (whole.masks is not None) == kind.endswith("seg")
    assert [len(one) for one in found.find(PICTURES, 0.99)] == [0, 0]  # and not what the call before was given


def test_a_file_that_is_no_yolo_is_refused_and_nothing_is_fetched_for_a_file(yolo, tmp_path, monkeypatch):
    (tmp_path / "other.pt").write_bytes(b"nothing")
    monkeypatch.delenv("YOLO_OFFLINE", raising=False)
    with pytest.raises(PluginError, match=r"other\.pt"):
        Yolo(use="yolo", model=str(tmp_path / "other.pt")).load(CPU, FLOAT)
    assert os.environ["YOLO_OFFLINE"] == "true"


def test_ultralytics_neither_installs_nor_writes_at_home_nor_goes_online_for_a_file(monkeypatch):
    for name in ("OFFLINE", "AUTOINSTALL", "CONFIG_DIR"):
        monkeypatch.setenv(f"YOLO_{name}", "")  # so that what is set below is taken back
        monkeypatch.delenv(f"YOLO_{name}")
    detect_yolo._quieten(offline=False)
    assert os.environ["YOLO_AUTOINSTALL"] == "false"
    assert Path(os.environ["YOLO_CONFIG_DIR"]).parent == Path(tempfile.gettempdir())
    assert "YOLO_OFFLINE" not in os.environ
    detect_yolo._quieten(offline=True)
    assert os.environ["YOLO_OFFLINE"] == "true"
