"""A character model in the manner of small GPT repositories: bfloat16 autocast, clipping, cosine."""

import math

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1337)
block, batch, width, heads, layers = 128, 16, 192, 6, 4
text = torch.randint(0, 65, (50000,)).cumsum(0) % 65


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q, k, v = (z.view(b, t, heads, c // heads).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        return self.drop(self.out(y.transpose(1, 2).contiguous().view(b, t, c)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention()
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x):
        x = x + self.attention(self.one(x))
        return x + self.feed(self.two(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(65, width), nn.Embedding(block, width)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 65, bias=False)
        self.tokens.weight = self.head.weight

    def forward(self, x, y=None):
        h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        for each in self.blocks:
            h = each(h)
        logits = self.head(self.norm(h))
        if y is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, 65), y.view(-1))


def get_batch():
    at = torch.randint(len(text) - block - 1, (batch,))
    x = torch.stack([text[i : i + block] for i in at])
    y = torch.stack([text[i + 1 : i + 1 + block] for i in at])
    return x, y


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
for step in range(40):
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * step / 40))
    x, y = get_batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, loss = model(x, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 10 == 0:
        model.eval()
        with torch.no_grad():
            _, check = model(*get_batch())
        model.train()
        print(f"step {step}: train loss {loss.item():.6f}, val loss {check.item():.6f}")
