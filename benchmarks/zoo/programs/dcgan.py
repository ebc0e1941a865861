"""DCGAN: two networks with an optimizer each, and fakes that are detached for the critic."""

import torch
from torch import nn

torch.manual_seed(999)
z, g, d = 64, 32, 32
generator = nn.Sequential(
    nn.ConvTranspose2d(z, g * 4, 4, 1, 0, bias=False),
    nn.BatchNorm2d(g * 4),
    nn.ReLU(True),
    nn.ConvTranspose2d(g * 4, g * 2, 4, 2, 1, bias=False),
    nn.BatchNorm2d(g * 2),
    nn.ReLU(True),
    nn.ConvTranspose2d(g * 2, g, 4, 2, 1, bias=False),
    nn.BatchNorm2d(g),
    nn.ReLU(True),
    nn.ConvTranspose2d(g, 3, 4, 2, 1, bias=False),
    nn.Tanh(),
)
critic = nn.Sequential(
    nn.Conv2d(3, d, 4, 2, 1, bias=False),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(d, d * 2, 4, 2, 1, bias=False),
    nn.BatchNorm2d(d * 2),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(d * 2, d * 4, 4, 2, 1, bias=False),
    nn.BatchNorm2d(d * 4),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(d * 4, 1, 4, 1, 0, bias=False),
    nn.Sigmoid(),
)
criterion = nn.BCELoss()
opt_d = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
opt_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
for step in range(25):
    real = torch.randn(64, 3, 32, 32).cumsum(3).tanh()
    critic.zero_grad()
    label = torch.ones(64)
    loss_real = criterion(critic(real).view(-1), label)
    loss_real.backward()
    fake = generator(torch.randn(64, z, 1, 1))
    loss_fake = criterion(critic(fake.detach()).view(-1), torch.zeros(64))
    loss_fake.backward()
    opt_d.step()
    generator.zero_grad()
    loss_g = criterion(critic(fake).view(-1), label)
    loss_g.backward()
    opt_g.step()
    if step % 5 == 0:
        print(f"{step}: loss_D {(loss_real + loss_fake).item():.6f} loss_G {loss_g.item():.6f}")
