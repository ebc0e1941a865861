"""A network trained through a frozen one: losses on features, gradients only for the first."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(42)
features = nn.ModuleList(
    nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    for a, b in ((3, 32), (32, 64), (64, 64))
).requires_grad_(False)


def layer(a, b, stride=1):
    return nn.Sequential(
        nn.ReflectionPad2d(1),
        nn.Conv2d(a, b, 3, stride),
        nn.InstanceNorm2d(b, affine=True),
        nn.ReLU(inplace=True),
    )


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = layer(width, width), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return self.two(self.one(x)) + x


network = nn.Sequential(
    layer(3, 16),
    layer(16, 32, 2),
    Residual(32),
    Residual(32),
    nn.Upsample(scale_factor=2),
    layer(32, 16),
    nn.Conv2d(16, 3, 3, padding=1),
)


def look(x):
    found = []
    for stage in features:
        x = stage(x)
        found.append(x)
    return found


def gram(y):
    f = y.flatten(2)
    return f @ f.mT / f[0].numel()


optimizer = torch.optim.Adam(network.parameters(), 1e-3)
style = [gram(f) for f in look(torch.rand(1, 3, 96, 96))]
for step in range(25):
    x = torch.rand(4, 3, 96, 96)
    optimizer.zero_grad()
    y = network(x)
    seen, wanted = look(y), look(x)
    content = F.mse_loss(seen[1], wanted[1])
    manner = sum(F.mse_loss(gram(a), b.expand(4, -1, -1)) for a, b in zip(seen, style))
    loss = content + 10 * manner
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(f"step {step} content {content.item():.6f} loss {loss.item():.6f}")
