"""Two LSTM cells over a series, one step at a time, with LBFGS, in double precision."""

import torch
from torch import nn

torch.manual_seed(0)
series = torch.sin((torch.arange(300) + 60 * torch.rand(40, 1)) / 20).double()


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1, self.lstm2 = nn.LSTMCell(1, 51), nn.LSTMCell(51, 51)
        self.linear = nn.Linear(51, 1)

    def forward(self, x):
        outputs = []
        h, c, k, d = (torch.zeros(x.size(0), 51, dtype=torch.double) for _ in range(4))
        for value in x.split(1, dim=1):
            h, c = self.lstm1(value, (h, c))
            k, d = self.lstm2(h, (k, d))
            outputs += [self.linear(k)]
        return torch.cat(outputs, dim=1)


seq, criterion = Sequence().double(), nn.MSELoss()
optimizer = torch.optim.LBFGS(seq.parameters(), lr=0.8, max_iter=4)
for step in range(5):

    def closure():
        optimizer.zero_grad()
        loss = criterion(seq(series[:, :-1]), series[:, 1:])
        print("loss:", f"{loss.item():.9f}")
        loss.backward()
        return loss

    optimizer.step(closure)
