"""Node classification on one graph, with masks for training and test."""

import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.nn import GATConv, GCNConv

torch.manual_seed(12345)
nodes, edges = 5000, 40000
x, ends = torch.randn(nodes, 96), torch.randint(0, nodes, (2, edges))
y = torch.zeros(nodes, 96).index_add_(0, ends[1], x[ends[0]])[:, :7].argmax(1)
is_train = torch.rand(nodes) < 0.6


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = GCNConv(96, 128), GATConv(128, 32, heads=4)
        self.three = GCNConv(128, 7)

    def forward(self, x, ends):
        x = F.dropout(F.relu(self.one(x, ends)), 0.3, self.training)
        x = F.dropout(F.elu(self.two(x, ends)), 0.3, self.training)
        return F.log_softmax(self.three(x, ends), dim=1)


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for epoch in range(40):
    model.train()
    optimizer.zero_grad()
    out = model(x, ends)
    loss = F.nll_loss(out[is_train], y[is_train])
    loss.backward()
    optimizer.step()
    if epoch % 10 == 0:
        model.eval()
        with torch.no_grad():
            right = (model(x, ends).argmax(1) == y)[~is_train].float().mean()
        print(f"Epoch {epoch:03d}, loss: {loss.item():.6f}, right {right:.4f}")
