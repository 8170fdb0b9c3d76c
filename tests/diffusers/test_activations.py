"""What is said of activations is what the autograd graph holds."""

import pytest
import torch
from torch import nn

from vgrpo_core import Policy, Process
from vgrpo_diffusers import Diffusers
from vgrpo_diffusers.memory import activations, measured, saved

LORA = {"lora": {"rank": 2}}
CHECKPOINTING = {"gradient_checkpointing": True}
HALF = {"dtype": "bfloat16"}
IN, HIDDEN = 12, 40


class Layers(Policy):
    """A network of two linear layers; of a policy it has only what a forward pass needs."""

    process = Process("flow")

    def __init__(self, *layers):
        self.module = nn.Sequential(*layers)

    def output(self, z, t, prompts):
        return self.module(z)

    def noise(self, prompts, generators):
        return torch.stack([torch.randn(IN, generator=generator) for generator in generators])

    decode = schedule = export = None


def test_two_linear_layers_keep_their_inputs_and_the_activation_between_them_its_own():
    """float32: what enters the first layer, what enters GELU, what enters the second layer."""
    policy = Layers(nn.Linear(IN, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, IN))
    assert activations(policy) == 4 * (IN + HIDDEN + HIDDEN)
    assert [saved(policy, rows) for rows in (1, 5)] == [activations(policy), 5 * activations(policy)]


def test_a_relu_s_output_is_what_the_next_layer_keeps_and_counts_once():
    assert activations(Layers(nn.Linear(IN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, IN))) == 4 * (IN + HIDDEN)


def test_a_frozen_first_layer_keeps_nothing():
    policy = Layers(nn.Linear(IN, HIDDEN).requires_grad_(False), nn.Linear(HIDDEN, IN))
    assert activations(policy) == 4 * HIDDEN


def test_weights_cast_for_the_arithmetic_are_counted_once_and_not_for_each_row():
    policy = Layers(nn.Linear(IN, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, IN))
    plain = policy.output

    def cast(z, t, prompts):
        with torch.autocast("cpu", torch.bfloat16):
            return plain(z, t, prompts)

    policy.output = cast
    weights = 2 * HIDDEN * IN  # of the second layer; the first one's input needs no gradient, so that its weights are not kept
    assert activations(policy) == 2 * (IN + HIDDEN + HIDDEN)
    assert saved(policy, 2) == 2 * activations(policy) + weights


def graph(output):
    """Walk an autograd graph and return each tensor that a node has saved; Python numbers, kept as scalars, are none."""
    seen, todo, found = set(), [output.grad_fn], []
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        kept = [getattr(node, name) for name in dir(node) if name.startswith("_saved_")] + list(getattr(node, "saved_tensors", ()))
        found += [part for value in kept for part in (value if isinstance(value, tuple | list) else [value])]
        todo += [following for following, _ in node.next_functions]
    return [part for part in found if isinstance(part, torch.Tensor) and part.ndim]


@pytest.mark.parametrize("options", [{}, LORA, HALF, HALF | LORA])
def test_it_is_what_the_nodes_of_the_graph_hold_besides_the_weights(tiny, options):
    policy = tiny.policy(**options)
    prompts = ["another text"] * 5
    output = policy.output(policy.noise(prompts, [torch.Generator() for _ in prompts]), torch.tensor(0.7), prompts)
    own = {part.untyped_storage().data_ptr() for part in (*policy.module.parameters(), *policy.module.buffers())}
    held = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in graph(output)}
    expected = sum(size for place, size in held.items() if place not in own)
    row = activations(policy)
    assert expected > 1e4
    assert expected == 3 * row + saved(policy, 2)


def test_checkpointing_keeps_much_less(tiny):
    whole, less = activations(tiny.unchanged), activations(tiny.policy(**CHECKPOINTING))
    assert 0 < less < whole / 3


def test_measuring_leaves_no_trace(tiny):
    policy = tiny.policy()
    before = tiny.draw(policy)
    evaluations = policy.evaluations
    activations(policy)
    assert policy.evaluations == evaluations
    assert not any(parameter.grad is not None for parameter in policy.trainable().values())
    assert torch.equal(tiny.draw(policy), before)


def test_it_is_said_per_row_and_once(sd3_tiny):
    policy = sd3_tiny.policy(**HALF)
    row = activations(policy)
    once = saved(policy, 2) - 2 * row
    rows, rest = (f"{size / 1e6:.2f} MB" for size in (row, once))
    assert measured(policy) == f"activations {rows} per row of a micro-batch and {rest} once (measured with 2 and 3 rows)"
    assert once > 2 * 50_000  # the weights in bfloat16
    assert Diffusers(model=str(sd3_tiny.folder), **HALF).verify(policy)[-1] == measured(policy)
