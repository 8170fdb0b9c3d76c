"""The 80 classes of COCO: their names, other names that they go by, and the label spaces of detectors trained on them."""

from __future__ import annotations

import re
from collections.abc import Mapping

CLASSES = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light", "fire hydrant",
    "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe",
    "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard", "sports ball", "kite", "baseball bat",
    "baseball glove", "skateboard", "surfboard", "tennis racket", "bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl",
    "banana", "apple", "sandwich", "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch",
    "potted plant", "bed", "dining table", "toilet", "tv", "laptop", "mouse", "remote", "keyboard", "cell phone", "microwave",
    "oven", "toaster", "sink", "refrigerator", "book", "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush",
)  # fmt: skip
UNUSED = {0, 12, 26, 29, 30, 45, 66, 68, 69, 71, 83}  # slots that no image is labelled with; COCO numbers from 1
SLOTS = dict(zip([slot for slot in range(91) if slot not in UNUSED], CLASSES, strict=True))
"""COCO's own category numbers, 1 to 90 with gaps."""
ALIASES = {
    "computer mouse": "mouse", "computer keyboard": "keyboard", "tv remote": "remote",  # GenEval's
    "aeroplane": "airplane", "diningtable": "dining table", "motorbike": "motorcycle", "pottedplant": "potted plant",  # VOC's
    "sofa": "couch", "tvmonitor": "tv",
}  # fmt: skip
KNOWN = {name: name for name in CLASSES} | ALIASES
"""Every name that is understood, and the class that it means."""
_PLACEHOLDER = re.compile(r"(LABEL_|class_?)?\d+")


def labels(names: Mapping[int, str]) -> dict[int, str]:
    """Return the COCO class of each label of a detector; labels that are none are left out.

    `names` are the detector's own. Where they are placeholders such as "LABEL_3", 80 labels are COCO's classes in order, and 90 or
    91 are COCO's category numbers. A ValueError if none of them is a class of COCO.
    """
    if all(_PLACEHOLDER.fullmatch(name) for name in names.values()):
        found = dict(enumerate(CLASSES)) if len(names) == len(CLASSES) else SLOTS if len(names) in (90, 91) else {}
    else:
        found = {index: KNOWN[name.lower()] for index, name in names.items() if name.lower() in KNOWN}
    if not found:
        raise ValueError(f"none of its {len(names)} labels is a class of COCO: {', '.join(list(names.values())[:5])}, ...")
    return found
