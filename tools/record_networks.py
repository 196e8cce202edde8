"""Records the networks that the testbed ships (testbed/traces/networks.py) on a device, for testbed/traces/recordings.

On a machine with a GPU, and torch, torchvision, timm and transformers, from the root of this repository:

    python tools/record_networks.py h100 --device cuda --output testbed/traces/recordings

Every network is timed at several batch sizes, in float32 as torch is set and with autocast to bfloat16 (`h100` and
`h100_bf16`), as `testbed trace record` times a model. Sizes that the device's memory does not hold are left out.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from testbed.errors import SpecError
from testbed.machine.layer_times import Autocast, Recording, record_layers
from testbed.traces.networks import network
from testbed.traces.table import ELEMENT_BYTES, LayerTable

IMAGES = ((3, 224, 224), None, (8, 16, 32, 64, 128, 256))
NUM_ITERATIONS, NUM_WARMUP = 15, 3


class Pooled(nn.Module):
    """BERT-base up to its pooler."""

    def __init__(self) -> None:
        from transformers import BertConfig, BertModel

        super().__init__()
        self.bert = BertModel(BertConfig())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        pooled: torch.Tensor = self.bert(tokens).pooler_output
        return pooled


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    made: nn.Module = GPT2LMHeadModel(GPT2Config(use_cache=False))
    return made


def mobilenet() -> nn.Module:
    import timm

    made: nn.Module = timm.create_model("mobilenetv1_100", pretrained=False)
    return made


def of_torchvision(name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import torchvision

        made: nn.Module = getattr(torchvision.models, name)(weights=None, **options)
        return made

    return make


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int | None, Sequence[int]]] = {
    "alexnet": (of_torchvision("alexnet"), *IMAGES),
    "bert_base": (Pooled, (128,), 30522, (8, 16, 32, 64, 128)),
    "googlenet": (of_torchvision("googlenet", aux_logits=False, init_weights=False), *IMAGES),
    "gpt2": (gpt2, (1024,), 50257, (1, 4, 8, 16, 32)),
    "mobilenet": (mobilenet, *IMAGES),
    "resnet50": (of_torchvision("resnet50"), *IMAGES),
    "resnet101": (of_torchvision("resnet101"), *IMAGES),
    "vgg16": (of_torchvision("vgg16_bn"), *IMAGES),
}


def recorded(name: str, device: str, autocast: Autocast | None) -> dict[str, Any]:
    """A network at all the batch sizes that fit, as the file has it."""
    make, sample_shape, num_tokens, batch_sizes = NETWORKS[name]
    model = make()
    tables: dict[int, LayerTable] = {}
    for batch_size in batch_sizes:
        recording = Recording(
            model=name,
            make=lambda: model,
            sample_shape=sample_shape,
            num_tokens=num_tokens,
            batch_size=batch_size,
            device=device,
            num_iterations=NUM_ITERATIONS,
            num_warmup=NUM_WARMUP,
            autocast=autocast,
        )
        model.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        try:
            table, hooked_s, unhooked_s = record_layers(recording)
        except (SpecError, torch.cuda.OutOfMemoryError) as error:
            if "out of memory" not in str(error):
                raise
            print(f"{name} {autocast}: batches of {batch_size} do not fit", flush=True)
            break
        tables[batch_size] = table
        print(f"{name} {autocast} {batch_size}: {1e3 * unhooked_s:.2f} ms, hooked {1e3 * hooked_s:.2f}", flush=True)
    return document(name, tables)


def document(name: str, tables: dict[int, LayerTable]) -> dict[str, Any]:
    """Raises ValueError where its parameters are not those of the network that the testbed ships, or where the order of
    layers depends on the batch."""
    first, *others = tables.values()
    names = [layer.name for layer in first.layers]
    if any([layer.name for layer in table.layers] != names for table in others):
        raise ValueError(f"{name}: layers come in another order with another batch")
    expected = sum(ELEMENT_BYTES * layer.num_parameters for layer in network(name))  # type: ignore[arg-type]
    found = sum(layer.size_bytes for layer in first.layers)
    if expected != found:
        raise ValueError(f"{name}: {found} bytes of parameters; the network of that name has {expected}")

    def us(values: Sequence[float]) -> list[float]:
        return [round(1e6 * value, 1) for value in values]

    return {
        "network": name,
        "recorded_on": first.recorded_on,
        "batch_sizes": list(tables),
        "host_to_device_us": us([table.host_to_device_s for table in tables.values()]),
        "update_us": us([table.update_s for table in tables.values()]),
        "layers": [
            {
                "name": layer.name.removeprefix("bert.").removeprefix("transformer."),
                "shapes": layer.shapes,
                "forward_us": us([table.layers[number].forward_s for table in tables.values()]),
                "backward_us": us([table.layers[number].backward_s for table in tables.values()]),
            }
            for number, layer in enumerate(first.layers)
        ],
    }


def written(found: dict[str, Any]) -> str:
    """JSON, a layer on each line."""
    head = {key: value for key, value in found.items() if key != "layers"}
    layers = ",\n".join(json.dumps(each, separators=(",", ":")) for each in found["layers"])
    return f'{json.dumps(head)[:-1]}, "layers": [\n{layers}\n]}}\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="of the device, as specs will have it")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", default=",".join(NETWORKS))
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    for device, autocast in ((given.name, None), (f"{given.name}_bf16", "bfloat16")):
        for name in given.only.split(","):
            try:
                found = recorded(name, given.device, autocast)  # type: ignore[arg-type]
            except (SpecError, ValueError) as error:
                print(f"{name} on {device}: {error}", flush=True)
                continue
            (given.output / f"{device}-{name}.json").write_text(written(found), encoding="utf-8")
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
