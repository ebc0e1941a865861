"""Captures tensors of a network in training: activations, their gradients, parameter state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from activation_training import MissingDataError, Task
from torch import Tensor, nn


def capture_activations(model: nn.Module, inputs: Tensor, modules: list[str]) -> dict[str, Tensor]:
    """Run one forward pass in training mode and return the outputs of the named submodules."""
    model.train()
    with torch.no_grad(), record_outputs(model, modules) as outputs:
        model(inputs)
    return outputs


def capture_gradients(
    model: nn.Module, task: Task, batch: tuple[Tensor, Tensor], modules: list[str]
) -> dict[str, Tensor]:
    """Run one training step without the update; leaves the parameters' gradients in place."""
    inputs, targets = batch
    model.train()
    model.zero_grad(set_to_none=True)
    with record_outputs(model, modules) as outputs:
        loss = task.compute_loss(model(inputs), targets)
        for output in outputs.values():
            output.retain_grad()
        loss.backward()
    gradients = {name: output.grad for name, output in outputs.items()}
    return {name: gradient for name, gradient in gradients.items() if gradient is not None}


@contextmanager
def record_outputs(model: nn.Module, modules: list[str]) -> Iterator[dict[str, Tensor]]:
    outputs: dict[str, Tensor] = {}

    def keep_as(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def keep(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            outputs[name] = output

        return keep

    handles = [model.get_submodule(name).register_forward_hook(keep_as(name)) for name in modules]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def stream_activation(
    model: nn.Module, batches: Sequence[Tensor], module: str, least_bytes: int, path: Path
) -> np.ndarray:
    """Append one submodule's output over successive inputs to a .npy file of known final size."""
    available = sum(len(batch) for batch in batches)
    sample_shape = capture_activations(model, batches[0], [module])[module].shape[1:]
    samples = -(-least_bytes // (4 * sample_shape.numel()))
    if samples > available:
        raise MissingDataError(
            f"{path.name} would need {samples} held-out inputs, but the data hold {available}; "
            "ask for a smaller --large-mb."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".partial")
    array = np.lib.format.open_memmap(
        aside, mode="w+", dtype=np.float32, shape=(samples, *sample_shape)
    )
    written = 0
    for batch in batches:
        if written >= samples:
            break
        output = capture_activations(model, batch, [module])[module].contiguous()
        kept = output[: samples - written].numpy()
        array[written : written + len(kept)] = kept
        written += len(kept)
    array.flush()
    aside.rename(path)
    return array


def take_samples(tensor: Tensor, target_bytes: int) -> Tensor:
    bytes_per_sample = tensor[0].numel() * tensor.element_size()
    return tensor[: max(1, round(target_bytes / bytes_per_sample))]


def flatten_parameters(model: nn.Module, optimizer: torch.optim.AdamW, kind: str) -> Tensor:
    parameters = list(model.parameters())
    if kind == "weights":
        chosen = [parameter.detach() for parameter in parameters]
    elif kind == "weight_gradients":
        chosen = [parameter.grad for parameter in parameters if parameter.grad is not None]
    elif kind == "adam_second_moment":
        chosen = [optimizer.state[parameter]["exp_avg_sq"] for parameter in parameters]
    else:
        raise ValueError(f"no parameter tensor is called {kind!r}")
    return torch.cat([tensor.contiguous().flatten() for tensor in chosen])
