"""The reward `hpsv2`: Human Preference Score v2, a CLIP tuned on people's rankings of images for one prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from vgrpo_core import PluginError
from vgrpo_core.errors import nearest

from .checkpoint import assets, loading, state_dict
from .clip import TOKENS
from .networks import Limit, Network, in_batches
from .openclip import from_open_clip

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import torch
    from torch import Tensor

    from vgrpo_core import Asset
    from vgrpo_core.plugin import Score

CHECKPOINTS = {"2.0": "xswu/HPSv2/HPS_v2_compressed.pt", "2.1": "xswu/HPSv2/HPS_v2.1_compressed.pt"}


class HPSv2(Network):
    """Human Preference Score v2 or v2.1: the cosine of prompt and image in a CLIP tuned on people's rankings, not scaled.

    Source: Wu et al., arXiv 2306.09341.
    """

    name = "hpsv2"
    requires: ClassVar[tuple[str, ...]] = ("open_clip",)
    extra: ClassVar[str] = "vgrpo[clip]"
    range: ClassVar[str] = "about 0.2 to 0.4"
    text_limit: ClassVar[int | None] = TOKENS
    version: Literal["2.0", "2.1"] = Field(description="which model; their scores can't be compared")
    checkpoint: str | None = Field(default=None, description="weights of that version: a file, or owner/name/file of the hub")
    architecture: str = Field(default="ViT-H-14", description="open_clip's name of the network")

    def assets(self) -> Sequence[Asset]:
        """List the checkpoint, unless it is a file."""
        return assets(self._source())

    def load(self, device: torch.device) -> Score:
        """Load the model and return the scoring function: float32 [B] in [-1, 1]; an unusable checkpoint is a PluginError."""
        import open_clip

        network = self._network()
        tokenizer = open_clip.get_tokenizer(self.architecture)
        transform = padding(network.visual.image_size[0])
        clip = from_open_clip(network, tokenizer, transform, *self.place(device), Limit(self.name, TOKENS))
        return in_batches(clip.similarity, self.batch)

    def _source(self) -> str:
        return self.checkpoint or CHECKPOINTS[self.version]

    def _network(self) -> Any:
        import open_clip

        config, known = open_clip.get_model_config(self.architecture), open_clip.list_models()
        if config is None:
            what = f'reward "hpsv2": open_clip knows no architecture "{self.architecture}"{nearest(self.architecture, known)}'
            raise PluginError(what, fix="leave `architecture` out: both versions are a ViT-H-14")
        if config.get("quick_gelu"):
            what = f'reward "hpsv2": the architecture "{self.architecture}" has another activation than the weights were made for'
            raise PluginError(what, fix="leave `architecture` out, or name one without quickgelu")
        with loading(self.name, self._source()):
            network = open_clip.CLIP(**config)
            network.load_state_dict(state_dict(self.name, self._source()))
        return network


def padding(side: int) -> Callable[[np.ndarray], Tensor]:
    """Return the preprocessing of HPSv2: the longest side to `side` pixels, black beside the rest, CLIP's mean and deviation.

    It maps uint8 RGB [H, W, 3] to float32 [3, side, side]. As in the authors' package the float image is resized: bicubic,
    antialiased, not clipped.
    """
    import torch
    from open_clip import OPENAI_DATASET_MEAN, OPENAI_DATASET_STD
    from open_clip.transform import center_crop_or_pad
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.functional import resize

    mean, deviation = (torch.tensor(values)[:, None, None] for values in (OPENAI_DATASET_MEAN, OPENAI_DATASET_STD))

    def transform(picture: np.ndarray) -> Tensor:
        image = torch.from_numpy(picture).permute(2, 0, 1).float() / 255
        size = [round(length * (side / max(image.shape[1:]))) for length in image.shape[1:]]
        image = resize(image, size, InterpolationMode.BICUBIC, antialias=True)
        square: Tensor = center_crop_or_pad(image, [side, side])
        return (square - mean) / deviation

    return transform
