"""Rewards behind HTTP: `Remote` is the client, `vgrpo serve` the server. Importing this is cheap."""

from __future__ import annotations

from vgrpo_core import Reward, hookimpl

from .remote import Remote


@hookimpl
def vgrpo_rewards() -> list[type[Reward]]:
    """Offer the rewards of this package."""
    return [Remote]
