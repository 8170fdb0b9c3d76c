"""What the packages of rewards and prompts cost and offer before anything is loaded."""

import subprocess
import sys

import pytest

import vgrpo_prompts
import vgrpo_rewards

HEAVY = ("torch", "numpy", "rapidocr", "onnxruntime", "PIL", "cv2")


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("make", ["vgrpo_rewards; vgrpo_rewards.OCR(mode='word')", "vgrpo_prompts; vgrpo_prompts.Words().load()"])
def test_importing_and_choosing_options_imports_nothing_heavy(make):
    assert run(f"import sys, {make}; print([name for name in {HEAVY} if name in sys.modules])") == "[]"


def test_without_the_extra_the_other_rewards_work_and_ocr_says_what_it_misses():
    blocked = "import sys; sys.modules |= dict.fromkeys(['rapidocr', 'onnxruntime']); import vgrpo_rewards as r; "
    assert run(blocked + "print(callable(r.PixelColor().load(None)), r.OCR(mode='word').mode)") == "True word"
    tried = blocked + "\ntry: r.OCR(threads=1).load(None)\nexcept ModuleNotFoundError as error: print(error.name)"
    assert run(tried) in vgrpo_rewards.OCR.requires


def test_the_hooks_offer_every_class_once():
    networks = ["aesthetic", "clipscore", "face_count", "geneval", "hpsv2", "imagereward", "ocr", "pickscore"]
    networks += ["unifiedreward", "vlm_judge"]
    formulas = ["jpeg_size", "pixel_color", "brightness", "color_entropy", "dark_fraction", "edge_density"]
    assert [reward.name for reward in vgrpo_rewards.vgrpo_rewards()] == networks + formulas
    assert [source.name for source in vgrpo_prompts.vgrpo_prompts()] == ["file", "geneval", "huggingface", "words"]


def test_the_prompts_and_the_reward_of_geneval_know_the_same_classes():
    from vgrpo_prompts import geneval
    from vgrpo_rewards import coco

    assert [coco.KNOWN[name] for name in geneval.CLASSES] == list(coco.CLASSES)
