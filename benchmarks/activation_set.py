"""Dumps the real activation set: tensors of trained networks for the compression benchmarks.

Usage: python benchmarks/activation_set.py --out DIR [--data DIR] [--threads N] [--large-mb MB]

Activations come from held-out inputs, gradients from a training batch, both in training mode: that
is what a training step would have to keep. DIR/manifest.json describes every .npy file in DIR. A
network whose part of the manifest exists is not trained again.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from activation_capture import (
    capture_activations,
    capture_gradients,
    flatten_parameters,
    stream_activation,
    take_samples,
)
from activation_training import (
    Metric,
    MissingDataError,
    Task,
    UndertrainedError,
    load_cifar_task,
    load_climate_task,
    load_text_task,
    train_network,
)
from torch import Tensor

DUMP_BYTES = 3_000_000
BYTES_PER_MB = 2**20
LARGE_BATCH_SAMPLES = 64

IMAGE_LAYOUT = "N,C,H,W"
SEQUENCE_LAYOUT = "N,T,C"
ATTENTION_LAYOUT = "N,heads,T,T; exact zeros above the diagonal"
QKV_LAYOUT = "N,T,3C; query, key and value side by side"
FLAT_LAYOUT = "all parameters flattened and concatenated in definition order"


@dataclass(frozen=True)
class LayerDump:
    """A tensor to take from one named submodule."""

    kind: str
    depth: str
    module: str
    layout: str

    @property
    def is_gradient(self) -> bool:
        return self.kind.endswith("_gradient")


@dataclass(frozen=True)
class NetworkDump:
    """What to take from one network."""

    load_task: Callable[[Path], Task]
    capture_samples: int
    layers: tuple[LayerDump, ...]
    parameter_kinds: tuple[str, ...]


NETWORKS: dict[str, NetworkDump] = {
    "transformer": NetworkDump(
        load_text_task,
        32,
        (
            LayerDump("residual_stream", "early", "blocks.0", SEQUENCE_LAYOUT),
            LayerDump("residual_stream", "late", "blocks.3", SEQUENCE_LAYOUT),
            LayerDump("layernorm_output", "late", "blocks.3.norm2", SEQUENCE_LAYOUT),
            LayerDump("pre_gelu", "early", "blocks.0.expand", SEQUENCE_LAYOUT),
            LayerDump("post_gelu", "early", "blocks.0.gelu", SEQUENCE_LAYOUT),
            LayerDump("post_gelu", "late", "blocks.3.gelu", SEQUENCE_LAYOUT),
            LayerDump(
                "attention_probabilities", "early", "blocks.0.attention.softmax", ATTENTION_LAYOUT
            ),
            LayerDump(
                "attention_probabilities", "late", "blocks.3.attention.softmax", ATTENTION_LAYOUT
            ),
            LayerDump("qkv", "early", "blocks.0.attention.qkv", QKV_LAYOUT),
            LayerDump("attention_output", "late", "blocks.3.attention.mixed", SEQUENCE_LAYOUT),
            LayerDump("residual_gradient", "early", "blocks.0", SEQUENCE_LAYOUT),
            LayerDump("residual_gradient", "late", "blocks.3", SEQUENCE_LAYOUT),
        ),
        ("weights", "weight_gradients", "adam_second_moment"),
    ),
    "resnet": NetworkDump(
        load_cifar_task,
        256,
        (
            LayerDump("pre_bn", "early", "stages.0.0.conv1", IMAGE_LAYOUT),
            LayerDump("pre_bn", "late", "stages.3.1.conv1", IMAGE_LAYOUT),
            LayerDump("post_bn", "early", "stages.0.0.bn1", IMAGE_LAYOUT),
            LayerDump("post_relu", "early", "stages.0.1.relu2", IMAGE_LAYOUT),
            LayerDump("post_relu", "middle", "stages.2.1.relu2", IMAGE_LAYOUT),
            LayerDump("post_relu", "late", "stages.3.1.relu1", IMAGE_LAYOUT),
            LayerDump("pre_bn_gradient", "early", "stages.0.0.conv1", IMAGE_LAYOUT),
            LayerDump("pre_bn_gradient", "late", "stages.3.1.conv1", IMAGE_LAYOUT),
        ),
        ("weights", "weight_gradients"),
    ),
    "unet": NetworkDump(
        load_climate_task,
        8,
        (
            LayerDump("pre_bn", "early", "encoder.0.conv1", IMAGE_LAYOUT),
            LayerDump("pre_bn", "late", "decoder.2.conv1", IMAGE_LAYOUT),
            LayerDump("post_relu", "early", "encoder.0.relu2", IMAGE_LAYOUT),
            LayerDump("post_relu", "middle", "encoder.3.relu2", IMAGE_LAYOUT),
            LayerDump("post_relu", "late", "decoder.2.relu2", IMAGE_LAYOUT),
            LayerDump("pre_bn_gradient", "late", "decoder.2.conv1", IMAGE_LAYOUT),
        ),
        ("weight_gradients",),
    ),
}

LARGE_LAYERS: tuple[tuple[str, LayerDump], ...] = (
    ("resnet", LayerDump("post_relu", "early", "stages.0.1.relu2", IMAGE_LAYOUT)),
    ("resnet", LayerDump("pre_bn", "early", "stages.0.0.conv1", IMAGE_LAYOUT)),
    ("transformer", LayerDump("post_gelu", "early", "blocks.0.gelu", SEQUENCE_LAYOUT)),
)


def main() -> None:
    options = parse_options()
    torch.set_num_threads(options.threads)
    started_s = time.monotonic()
    try:
        for network in NETWORKS:
            dump_network(network, options.data, options.out)
        if options.large_mb:
            dump_large(options.data, options.out, options.large_mb * BYTES_PER_MB)
    except (MissingDataError, UndertrainedError) as error:
        raise SystemExit(str(error)) from None
    print(f"The activation set is complete after {time.monotonic() - started_s:.0f} s.")


def parse_options() -> argparse.Namespace:
    beside_repository = Path(__file__).resolve().parents[2] / "shared" / "data"
    data_default = Path(os.environ.get("ELBOWROOM_DATA", beside_repository))
    parser = argparse.ArgumentParser(description="Dump the real activation set.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the dumps")
    parser.add_argument("--data", type=Path, default=data_default, help="folder with the data")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads for PyTorch")
    parser.add_argument(
        "--large-mb",
        type=int,
        default=0,
        help="also dump three tensors of at least this many MB (2**20 bytes) to DIR/large",
    )
    return parser.parse_args()


def dump_network(network: str, data_dir: Path, out_dir: Path) -> None:
    """Train one network and write its tensors, its checkpoint and, last, its manifest part."""
    part_path = out_dir / f"{network}.json"
    if part_path.exists():
        print(f"{network}: {part_path} exists, skipped", flush=True)
        return
    recipe = NETWORKS[network]
    task = recipe.load_task(data_dir)
    model, optimizer, metric = train_network(task)
    # Capturing runs in training mode and would move the batch-norm statistics.
    with replace_file(out_dir / "checkpoints" / f"{network}.pt") as file:
        torch.save(model.state_dict(), file)

    entries: list[dict[str, Any]] = []

    def write(name: str, tensor: Tensor, **facts: str) -> None:
        path = out_dir / f"{network}_{name}.npy"
        array = tensor.detach().contiguous().numpy()
        with replace_file(path) as file:
            np.save(file, array)
        entries.append(describe_array(path.name, array, network, task.seed, metric, **facts))

    activations = capture_activations(
        model,
        task.held_out_inputs[: recipe.capture_samples],
        [layer.module for layer in recipe.layers if not layer.is_gradient],
    )
    generator = torch.Generator().manual_seed(task.seed + 1)
    gradients = capture_gradients(
        model,
        task,
        task.draw_training_batch(recipe.capture_samples, generator),
        [layer.module for layer in recipe.layers if layer.is_gradient],
    )
    for layer in recipe.layers:
        tensor = (gradients if layer.is_gradient else activations)[layer.module]
        write(
            f"{layer.kind}_{layer.depth}",
            take_samples(tensor, DUMP_BYTES),
            kind=layer.kind,
            depth=layer.depth,
            module=layer.module,
            layout=layer.layout,
            inputs="training batch" if layer.is_gradient else "held-out batch",
        )
    for kind in recipe.parameter_kinds:
        write(
            kind,
            flatten_parameters(model, optimizer, kind),
            kind=kind,
            depth="all",
            module="",
            layout=FLAT_LAYOUT,
            inputs="training batch" if kind == "weight_gradients" else "none",
        )
    write_json(part_path, entries)
    merge_manifest(out_dir)
    print(f"{network}: wrote {len(entries)} tensors to {out_dir}", flush=True)


def dump_large(data_dir: Path, out_dir: Path, least_bytes: int) -> None:
    """Write the tensors of LARGE_LAYERS over as many different held-out inputs as they need."""
    large_dir = out_dir / "large"
    manifest_path = large_dir / "manifest.json"
    if manifest_path.exists():
        held = json.loads(manifest_path.read_text())
        if all(entry["bytes"] >= least_bytes for entry in held):
            print(f"large: {manifest_path} exists, skipped", flush=True)
            return
    entries: list[dict[str, Any]] = []
    for network, layer in LARGE_LAYERS:
        task = NETWORKS[network].load_task(data_dir)
        model = task.build()
        checkpoint = out_dir / "checkpoints" / f"{network}.pt"
        model.load_state_dict(torch.load(checkpoint, weights_only=True))
        metric = Metric(**json.loads((out_dir / f"{network}.json").read_text())[0]["metric"])
        path = large_dir / f"{network}_{layer.kind}_{layer.depth}.npy"
        batches = task.held_out_inputs.split(LARGE_BATCH_SAMPLES)
        array = stream_activation(model, batches, layer.module, least_bytes, path)
        entries.append(
            describe_array(
                path.name,
                array,
                network,
                task.seed,
                metric,
                kind=layer.kind,
                depth=layer.depth,
                module=layer.module,
                layout=layer.layout,
                inputs=f"held-out, batches of {LARGE_BATCH_SAMPLES}",
            )
        )
        print(f"large: {path.name} {array.shape}, {array.nbytes / 1e6:.0f} MB", flush=True)
    write_json(manifest_path, entries)


def describe_array(
    file: str, array: np.ndarray, network: str, seed: int, metric: Metric, **facts: str
) -> dict[str, Any]:
    return {
        "name": file.removesuffix(".npy"),
        "file": file,
        "network": network,
        **facts,
        "shape": list(array.shape),
        "dtype": str(array.dtype),
        "bytes": array.nbytes,
        "metric": asdict(metric),
        "seed": seed,
    }


def merge_manifest(out_dir: Path) -> None:
    parts = [out_dir / f"{network}.json" for network in NETWORKS]
    entries = [entry for part in parts if part.exists() for entry in json.loads(part.read_text())]
    write_json(out_dir / "manifest.json", entries)


def write_json(path: Path, content: list[dict[str, Any]]) -> None:
    with replace_file(path) as file:
        file.write((json.dumps(content, indent=1) + "\n").encode())


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """Write aside and rename, so that a reader or a restart never meets half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".partial")
    with aside.open("wb") as file:
        yield file
    aside.replace(path)


if __name__ == "__main__":
    main()
