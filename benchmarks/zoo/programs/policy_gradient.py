"""Reinforcement learning: many tiny forwards, one backward through all of them."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(543)
policy = nn.Sequential(nn.Linear(4, 128), nn.Dropout(0.6), nn.ReLU(), nn.Linear(128, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for episode in range(25):
    state, logs, rewards = torch.randn(4), [], []
    for _ in range(60):
        choice = Categorical(torch.softmax(policy(state), -1))
        action = choice.sample()
        logs.append(choice.log_prob(action))
        state = 0.9 * state + (action.float() - 0.5) * torch.tensor([0.1, -0.2, 0.3, 0.1])
        rewards.append(1.0 - float(state.abs().sum()) / 4)
    returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    loss = -(torch.stack(logs) * returns).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if episode % 5 == 0:
        print(f"episode {episode} loss {loss.item():.6f}")
