"""The prompt source `huggingface`: a data set of the hub or of this machine, through the library datasets."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, model_validator

from vgrpo_core import Asset, PluginError, Prompt, Prompts

from .rows import absent, prompts

PLAIN = re.compile(r"null|bool|u?int\d+|float\d+|(large_)?string")


class HuggingFace(Prompts):
    """Read prompts from a data set: a hub id, a local folder, or a format with its `data_files`. One column holds the text.

    The others become the metadata, except those that JSON can not hold (images, sounds, dates). Nulls are left out: a data set has
    one wherever a table lacks a key that another one has.
    """

    name = "huggingface"
    requires: ClassVar[tuple[str, ...]] = ("datasets",)
    extra: ClassVar[str] = "vgrpo[datasets]"
    dataset: str = Field(min_length=1, description='hub id, local folder, or a format such as "json" with `data_files`')
    config: str | None = Field(default=None, description="configuration of the data set, where it has several")
    data_files: str | tuple[str, ...] | None = Field(default=None, description="files to read, patterns allowed; all without it")
    split: str = Field(default="train", description='a split, or a part of one such as "train[:90%]"')
    revision: str | None = Field(default=None, description="branch, tag or commit on the hub")
    column: str = Field(default="prompt", description="what holds the text")
    metadata: tuple[str, ...] | None = Field(default=None, description="columns to keep; default: all others that JSON can hold")
    streaming: bool = Field(default=False, description="read row by row, without fetching the whole data set first")
    limit: int | None = Field(default=None, ge=1, description="how many to take at most; all without it")

    @model_validator(mode="after")
    def _whole_split(self) -> HuggingFace:
        if self.streaming and "[" in self.split:
            raise ValueError("streaming reads whole splits; take the first rows with limit")
        return self

    def assets(self) -> Sequence[Asset]:
        """Name the data set unless it is on this machine; its size and licence are on its page."""
        remote = "/" in self.dataset and not self._place.exists()
        return (Asset(self.dataset, math.nan, "see its page"),) if remote else ()

    def load(self) -> Sequence[Prompt]:
        """Return the prompts in the data set's order; what can not be reached, found or read is a PluginError."""
        import datasets

        try:
            numbered = [(f"row {number}", row) for number, row in enumerate(self._rows(), 1)]
        except ConnectionError as error:
            fix = "without a network, name a local folder; what was loaded here before is found again"
            raise PluginError(f"{self._source} can not be reached", str(error), fix) from error
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            raise PluginError(f"{self._source} can not be read", self._reason(error)) from error
        return prompts(self._source, numbered, self.column)

    @property
    def _source(self) -> str:
        return f'prompts "huggingface": {self.dataset}, {self.split}'

    @property
    def _place(self) -> Path:
        return Path(self.dataset).expanduser()

    @property
    def _arguments(self) -> dict[str, Any]:
        files = list(self.data_files) if isinstance(self.data_files, tuple) else self.data_files
        return {"path": str(self._place), "data_files": files, "revision": self.revision}

    def _rows(self) -> Iterator[dict[str, Any]]:
        import datasets

        if self.dataset.startswith((".", "/", "~")) and not self._place.exists():
            raise FileNotFoundError(f"no folder {self._place.absolute()}")
        found = datasets.load_dataset(name=self.config, split=self.split, streaming=self.streaming, **self._arguments)
        # A stream of a text format does not know its columns beforehand.
        found = found.select_columns(self._columns(found.features or dict.fromkeys(next(iter(found), {}))))
        for row in found if self.limit is None else found.take(self.limit):
            yield _without_nulls(row) | {self.column: row[self.column]}

    def _columns(self, features: dict[str, Any]) -> list[str]:
        plain = [name for name, feature in features.items() if _is_plain(feature)]
        columns = dict.fromkeys([self.column, *(plain if self.metadata is None else self.metadata)])
        for name in columns:
            if name not in features:
                raise PluginError(f"{self._source}: {absent(name, features)}")
            if name not in plain:
                raise PluginError(f"{self._source}: JSON can not hold the column {name}: {features[name]}")
        return list(columns)

    def _reason(self, error: Exception) -> str:
        if re.match("(Unknown|Bad) split", str(error)):
            import datasets

            return absent(
                self.split.partition("[")[0], datasets.get_dataset_split_names(config_name=self.config, **self._arguments)
            )
        return str(error.__cause__ or error)


def _is_plain(feature: Any) -> bool:
    """Tell whether JSON can hold the values of a feature; where the feature is unknown, they were written as text."""
    import datasets

    if feature is None:
        return True
    if isinstance(feature, dict):
        return all(map(_is_plain, feature.values()))
    if isinstance(feature, datasets.List | datasets.LargeList):
        return _is_plain(feature.feature)
    if isinstance(feature, datasets.Value):
        return PLAIN.fullmatch(feature.dtype) is not None
    return isinstance(feature, datasets.ClassLabel | datasets.Json)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
