"""Denoising diffusion with diffusers: a scheduler's noise, a moving average of the weights."""

import copy

import torch
from diffusers import DDPMScheduler, UNet2DModel
from torch.nn import functional as F

torch.manual_seed(0)
model = UNet2DModel(
    sample_size=32,
    in_channels=3,
    out_channels=3,
    layers_per_block=1,
    block_out_channels=(32, 64, 64),
    norm_num_groups=8,
    down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
)
average = copy.deepcopy(model).requires_grad_(False)
noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(40):
    clean = torch.randn(12, 3, 32, 32).cumsum(2).cumsum(3).tanh()
    noise = torch.randn(clean.shape)
    timesteps = torch.randint(0, 1000, (12,)).long()
    noisy = noise_scheduler.add_noise(clean, noise, timesteps)
    loss = F.mse_loss(model(noisy, timesteps, return_dict=False)[0], noise)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
            mine.lerp_(theirs, 0.01)
    if step % 10 == 0:
        print(f"step {step} loss={loss.item():.6f}")
