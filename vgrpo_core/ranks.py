"""The processes that train one model together. Every collective of vgrpo is here; none has a shape that depends on data.

Every rank knows all prompts, draws and judges its own share of the images, and learns all scores. Advantages, and with them the
rows of a gradient step, are then the same everywhere without a word.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from .errors import RankError, RunError, reason

TIMEOUT = timedelta(minutes=30)  # the longest that a rank waits for another: for its share of a rollout and slow rewards

Result = TypeVar("Result")


class Ranks:
    """One of `count` processes; alone, everything here does nothing."""

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count
        self.sharded = False
        self.agreed = False  # whether all ranks know that one of them has failed

    @classmethod
    @contextmanager
    def join(cls) -> Iterator[Self]:
        """Meet the other processes that torchrun or accelerate has started; without one of them, be alone."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            yield cls()
            return
        distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=TIMEOUT)
        try:
            yield cls(distributed.get_rank(), distributed.get_world_size())
        finally:
            distributed.destroy_process_group()

    @property
    def main(self) -> bool:
        """Tell whether this rank writes and prints."""
        return self.rank == 0

    def share(self, rows: int) -> range:
        """Return the rows that are this rank's: parts in order, whose lengths differ by one at most."""
        return range(self.rank * rows // self.count, (self.rank + 1) * rows // self.count)

    def rounds(self, rows: Tensor, own: range, size: int) -> Iterator[tuple[Tensor, bool]]:
        """Yield the rows of this rank among `rows` in parts of at most `size`, each with True.

        Sharded networks have to be called equally often on all ranks: then a rank that has fewer rows yields a row of its own
        with False, as often as it takes.
        """
        parts = [part for part in torch.split(rows[(rows >= own.start) & (rows < own.stop)], size) if len(part)]
        yield from ((part, True) for part in parts)
        if self.sharded:
            held = torch.bincount(rows // len(own), minlength=self.count)
            yield from ((torch.tensor([own.start]), False) for _ in range(-(-int(held.max()) // size) - len(parts)))

    def spread(self, values: Tensor, rows: range, size: int) -> Tensor:
        """Return the values [..., size] of all ranks from those of this rank's `rows`; float64 on the CPU, NaN allowed."""
        whole = torch.zeros(*values.shape[:-1], size, dtype=torch.float64)
        whole[..., rows.start : rows.stop] = values
        return self.sum(whole)

    def sum(self, values: Tensor) -> Tensor:
        """Add up tensors of one shape over the ranks, in place."""
        if self.count > 1:
            with _answered():
                distributed.all_reduce(values)
        return values

    def any(self, flag: bool) -> bool:
        """Tell whether a flag is set on some rank."""
        return bool(self.sum(torch.tensor(int(flag))))

    def gather(self, item: Any) -> list[Any]:
        """Return the item of every rank, on every rank."""
        items: list[Any] = [item] * self.count
        if self.count > 1:
            with _answered():
                distributed.all_gather_object(items, item)
        return items

    def told(self, item: Result) -> Result:
        """Return what the main rank says, on every rank."""
        items = [item]
        if self.count > 1:
            with _answered():
                distributed.broadcast_object_list(items)
        return items[0]

    def wait(self) -> None:
        """Go on once every rank is here."""
        self.any(False)

    @contextmanager
    def first(self) -> Iterator[None]:
        """Let the main rank go through a block before the others, so that what it fetches is there for them."""
        if not self.main:
            self.wait()
        yield
        if self.main:
            self.wait()

    def together(self, work: Callable[[], Result]) -> Result:
        """Do this rank's part of some work that has no collectives; where one rank fails, all of them do.

        A rank that fails raises its own error, the others a RunError that says which rank failed and why.
        """
        if self.count == 1 or self.sharded:  # a rank that fails amid the collectives of a sharded network leaves the others waiting
            return work()
        failure: Exception | None = None
        try:
            done = work()
        except Exception as error:
            failure = error
        reasons = self.gather(reason(failure) if failure else None)
        if found := [f"rank {rank}: {why}" for rank, why in enumerate(reasons) if why]:
            self.agreed = True
            raise RunError(found[0]) if failure is None else failure
        return done

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Add up gradients over the ranks in one flat tensor; a parameter that has one on no rank keeps none."""
        if self.count == 1 or self.sharded:  # a sharded network has added them up already
            return
        device = parameters[0].device
        present = torch.tensor([float(p.grad is not None) for p in parameters], device=device)
        flat = torch.cat([present, *(torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in parameters)])
        present, *parts = torch.split(self.sum(flat), [len(parameters), *(p.numel() for p in parameters)])
        for p, has, part in zip(parameters, present.tolist(), parts, strict=True):
            p.grad = part.view_as(p) if has else None

    def check_same(self, tensors: Mapping[str, Tensor]) -> None:
        """Compare a hash of weights over the ranks; a RankError names the ranks that differ from the main one."""
        if self.count == 1 or self.sharded:
            return
        digest = hashlib.blake2b()
        for tensor in tensors.values():
            digest.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().data)
        found = self.gather(digest.hexdigest())
        if wrong := [str(rank) for rank, other in enumerate(found) if other != found[0]]:
            raise RankError(f"the trained weights of rank {', '.join(wrong)} are not those of rank 0; go on from a checkpoint")

    def shard(self, module: nn.Module) -> None:
        """Split weights, gradients and optimizer over the ranks, block by block (FSDP2, in place)."""
        if self.count == 1:
            return
        mesh = init_device_mesh(next(module.parameters()).device.type, (self.count,))
        networks = list(module.children()) if isinstance(module, nn.ModuleDict) else [module]
        for network in networks:
            for part in [*_blocks(network), network]:
                sharded = fully_shard(part, mesh=mesh, reshard_after_forward=True)  # so that parameters are always the shards
                sharded.set_gradient_divide_factor(1.0)  # losses are shares of one mean: their gradients add up
                sharded.set_force_sum_reduction_for_comms(True)
        self.sharded = True

    @contextmanager
    def whole(self, module: nn.Module) -> Iterator[None]:
        """Inside, the parameters of a sharded network are whole on the main rank, on the CPU; called on all ranks."""
        kept = [(part, name, p) for part in module.modules() for name, p in part.named_parameters(recurse=False) if self.sharded]
        for part, name, p in kept:
            full = p.data.full_tensor() if isinstance(p.data, DTensor) else p.data
            part._parameters[name] = nn.Parameter(full.cpu() if self.main else full[:0], p.requires_grad)
        try:
            yield
        finally:
            for part, name, p in kept:
                part._parameters[name] = p


@contextmanager
def _answered() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RankError(f"another rank does not answer: it has ended, or it has been silent for {TIMEOUT}") from error


def _blocks(network: nn.Module) -> Iterable[nn.Module]:
    return [block for part in network.children() if isinstance(part, nn.ModuleList) for block in part]
