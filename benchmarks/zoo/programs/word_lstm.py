"""Word-level LSTM with truncated backpropagation: the state is carried on and detached."""

import torch
from torch import nn

torch.manual_seed(1111)
words, width, batch, length = 2000, 192, 20, 35
stream = (torch.arange(200000) * 31 + torch.randint(0, 7, (200000,))) % words
data = stream.view(batch, -1).t().contiguous()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(words, width)
        self.rnn = nn.LSTM(width, width, 2, dropout=0.2)
        self.decoder = nn.Linear(width, words)

    def forward(self, x, hidden):
        y, hidden = self.rnn(self.drop(self.encoder(x)), hidden)
        return torch.log_softmax(self.decoder(self.drop(y)).view(-1, words), 1), hidden


model, criterion = Model(), nn.NLLLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
hidden = tuple(torch.zeros(2, batch, width) for _ in range(2))
model.train()
for step in range(40):
    at = step * length
    x, y = data[at : at + length], data[at + 1 : at + 1 + length].reshape(-1)
    model.zero_grad()
    hidden = tuple(h.detach() for h in hidden)
    output, hidden = model(x, hidden)
    loss = criterion(output, y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    if step % 10 == 0:
        print(f"| batch {step} | loss {loss.item():.6f}")
