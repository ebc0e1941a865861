"""Triplets through one network three times, with in-place activations and a normalised output."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(3)
net = nn.Sequential(
    nn.Conv2d(1, 32, 5),
    nn.PReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 5),
    nn.LeakyReLU(0.1, inplace=True),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(64 * 16, 256),
    nn.SiLU(inplace=True),
    nn.Linear(256, 32),
)
loss_of = nn.TripletMarginLoss(margin=0.5)
optimizer = torch.optim.RMSprop(net.parameters(), 1e-3)
for step in range(40):
    one = torch.randn(48, 1, 28, 28).cumsum(3) / 5
    same, other = one + 0.2 * torch.randn_like(one), one[torch.randperm(48)]
    a, b, c = (F.normalize(net(x), dim=1) for x in (one, same, other))
    loss = loss_of(a, b, c)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.6f}")
