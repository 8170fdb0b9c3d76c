"""Check a backbone: its noise, network, images, gradients and weights, as a run uses them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..plugin import Backbone, Prompt
from ..policy import Policy
from ..samples import Samples
from .light import check_light
from .plugin import check_class, expect, home

PROMPTS = ("a red square", "two blue circles on a white ground", "a red square")


def check_backbone(backbone: Backbone, prompts: Sequence[str] = PROMPTS, device: str = "cpu", *, tolerance: float = 1e-3) -> None:
    """Load a backbone, best a small one, and check what vgrpo relies on; an AssertionError says what does not hold.

    Noise follows from its generators alone, one a row. `predict` gives float32, the same in a second call, and counts its rows.
    Rows together are the same as one by one, also with a time for each row, and so are images; `tolerance` is a share of the
    largest value. Images are float32 [B, 3, H, W] in [0, 1]; times float32 [steps + 1], falling. A gradient reaches each trained
    parameter, and none is in half precision. `restore` brings `state` back bit for bit, `evaluating` leaves nothing behind, and
    `export` writes the weights as they are now. Importing the module is light. The weights end as they began.
    """
    check_class("backbone", type(backbone))
    who, texts = f'backbone "{backbone.name}"', list(prompts)
    expect(len(texts) > 1, f"{who}: one prompt proves little; give two or more")
    described = backbone.describe()
    expect(bool(described.strip()) and "\n" not in described, f"{who}: `describe` has to return one line")
    policy = backbone.load(torch.device(device))
    expect(isinstance(policy, Policy), f"{who}: `load` returns {type(policy).__name__}, not a Policy")
    _check_parameters(who, policy)
    _check_schedule(who, policy)
    noise = _check_noise(who, policy, texts)
    times = policy.schedule(len(texts)).times[:-1].to(noise.device)
    _check_predict(who, policy, noise, times, texts, tolerance)
    _check_images(who, policy, noise, tolerance)
    _check_gradients(who, policy, noise, times, texts)
    _check_weights(who, policy, noise, times, texts)
    if module := home(backbone):
        check_light(module)


def _check_parameters(who: str, policy: Policy) -> None:
    trained = policy.trainable()
    expect(bool(trained), f"{who} trains nothing: no parameter of `module` requires a gradient")
    half = [name for name, parameter in trained.items() if parameter.dtype not in (torch.float32, torch.float64)]
    expect(not half, f"{who} trains {', '.join(half[:3])} in half precision, in which small steps are lost")


def _check_schedule(who: str, policy: Policy) -> None:
    for steps in (1, 4):
        schedule = policy.schedule(steps)
        times = schedule.times
        form = times.dtype == torch.float32 and times.shape == (steps + 1,)
        expect(form, f"{who}: `schedule({steps})` has times {times.dtype} {list(times.shape)}, not float32 [{steps + 1}]")
        expect(bool((times.diff() < 0).all()), f"{who}: the times of `schedule({steps})` do not fall from noise to data")
        same = schedule.process.prediction == policy.process.prediction
        levels = zip(schedule.process.coefficients(times), policy.process.coefficients(times), strict=True)
        expect(same and all(torch.equal(*pair) for pair in levels), f"{who}: `schedule` has another process than the policy")


def _check_noise(who: str, policy: Policy, prompts: list[str]) -> Tensor:
    """Check that a row follows from its generator, and return the noise of seeds 0, 1, ...: [B, *D]."""
    seeds = range(len(prompts))
    noise = policy.noise(prompts, _generators(*seeds))
    shape = f"{who}: `noise` returns {list(noise.shape)} for {len(prompts)} generators"
    expect(noise.ndim > 1 and len(noise) == len(prompts), shape)
    again = policy.noise([*prompts[1:], prompts[0]], _generators(*seeds))
    expect(torch.equal(again, noise), f"{who}: `noise` depends on more than its generators, such as prompts or earlier calls")
    alone = torch.cat([policy.noise([text], _generators(seed)) for seed, text in enumerate(prompts)])
    expect(torch.equal(alone, noise), f"{who}: the noise of a row depends on the rows beside it: draw each with its own generator")
    expect(not torch.equal(noise[0], noise[1]), f"{who}: two generators give the same noise")
    return noise


def _generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


@torch.no_grad()
def _check_predict(who: str, policy: Policy, z: Tensor, times: Tensor, prompts: list[str], tolerance: float) -> None:
    counted, output = policy.evaluations, policy.predict(z, times, prompts)
    expect(output.shape == z.shape, f"{who}: `predict` returns {list(output.shape)} for latents {list(z.shape)}")
    expect(output.dtype == torch.float32, f"{who}: `predict` returns {output.dtype}, not float32")
    expect(bool(output.isfinite().all()), f"{who}: `predict` returns values that are not finite")
    expect(policy.evaluations == counted + len(z), f"{who}: `predict` does not count its rows: override `output` instead")
    expect(torch.equal(policy.predict(z, times, prompts), output), f"{who}: a second `predict` differs: nothing may be random")
    with policy.evaluating():
        policy.predict(z, times, prompts)
    expect(torch.equal(policy.predict(z, times, prompts), output), f"{who}: `evaluating` leaves something behind")
    rows = [slice(row, row + 1) for row in range(len(z))]
    alone = torch.cat([policy.predict(z[row], times[row], prompts[row]) for row in rows])
    expect(_close(alone, output, tolerance), f"{who}: rows at times of their own differ from the same rows one by one")
    together, spread = policy.predict(z, times[0], prompts), policy.predict(z, times[:1].expand(len(z)), prompts)
    expect(_close(spread, together, tolerance), f"{who}: one time for all rows and the same time for each row differ")


@torch.no_grad()
def _check_images(who: str, policy: Policy, latents: Tensor, tolerance: float) -> None:
    images = policy.decode(latents)
    for drawn in (images, policy.decode(5 * latents)):
        try:
            Samples((Prompt(""),) * len(latents), drawn)
        except (TypeError, ValueError) as error:
            raise AssertionError(f"{who}: {str(error).replace('Samples.images', 'what `decode` returns')}") from error
    alone = torch.cat([policy.decode(row[None]) for row in latents])
    expect(_close(alone, images, tolerance), f"{who}: an image depends on the latents beside it")


def _check_gradients(who: str, policy: Policy, z: Tensor, times: Tensor, prompts: list[str]) -> None:
    output = policy.predict(z, times, prompts)
    expect(output.requires_grad, f"{who}: no gradient flows through `predict`")
    output.square().mean().backward()  # type: ignore[no-untyped-call]
    without = [name for name, parameter in policy.trainable().items() if parameter.grad is None]
    policy.module.zero_grad(set_to_none=True)
    expect(not without, f"{who}: no gradient reaches {', '.join(without[:3])}: freeze what takes no part")


@torch.no_grad()
def _check_weights(who: str, policy: Policy, z: Tensor, times: Tensor, prompts: list[str]) -> None:
    """Move the weights, and check what is written before and after, and that they come back."""
    kept, output = {name: weight.clone() for name, weight in policy.state().items()}, policy.predict(z, times, prompts)
    before = _exported(who, policy)
    for parameter in policy.trainable().values():
        parameter.add_(1)
    after = _exported(who, policy)
    policy.restore(kept)
    same = all(torch.equal(weight, kept[name]) for name, weight in policy.state().items())
    same = same and torch.equal(policy.predict(z, times, prompts), output)
    expect(same, f"{who}: `restore` does not bring back the weights that `state` returned")
    expect(before != after, f"{who}: `export` writes the same files after the weights have changed")


def _exported(who: str, policy: Policy) -> dict[str, bytes]:
    """Export as a run does, into a folder that is not there yet, and return what the files hold."""
    with tempfile.TemporaryDirectory() as folder:
        policy.export(Path(folder) / "model")
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        expect(any(path.stat().st_size for path in files), f"{who}: `export` writes no file")
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _close(one: Tensor, other: Tensor, tolerance: float) -> bool:
    return float((one - other).abs().max()) <= tolerance * float(other.abs().max())
