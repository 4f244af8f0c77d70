"""Inference of one model on two devices of unequal memory and speed.

Run it anywhere: ``python docs/examples/unequal_devices.py``. Where there are no two accelerators,
the plan for them is rehearsed in host memory.
"""

import torch
from torch import nn

from fxpartition import Device, MiB, partition_module

torch.manual_seed(0)
layers = [nn.TransformerEncoderLayer(128, 8, 512, batch_first=True) for _ in range(6)]
model = nn.Sequential(nn.Linear(32, 128), *layers, nn.Linear(128, 32)).eval()
x = torch.randn(8, 64, 32)

large = Device("cuda:0", memory_bytes=6 * MiB, device_class="a100-80gb")
small = Device("cuda:1", memory_bytes=4 * MiB, device_class="l4")
with torch.no_grad():
    result = partition_module(model, (x,), devices=[large, small])
print(result)

rehearsal = {"cuda:0": "cpu:0", "cuda:1": "cpu:1"}
placed = result.place(None if torch.cuda.device_count() > 1 else rehearsal)
with torch.inference_mode():
    y = placed(x)
    torch.testing.assert_close(y, model(x), rtol=1e-3, atol=1e-3)

print()
for name, device in placed.devices.items():
    held_bytes = sum(p.numel() * p.itemsize for p in placed.get_submodule(name).parameters())
    print(f"{name} on {device}: {held_bytes / 2**20:.1f} MiB of weights")
print(placed.code)
