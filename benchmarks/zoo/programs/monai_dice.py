"""Segmentation of volumes with MONAI: Dice and cross entropy, a sliding window in evaluation."""

import torch
from monai.inferers import sliding_window_inference
from monai.losses import DiceCELoss
from monai.networks.nets import SegResNet

torch.manual_seed(0)
model = SegResNet(spatial_dims=3, in_channels=1, out_channels=3, init_filters=8)
loss_function = DiceCELoss(to_onehot_y=True, softmax=True)
optimizer = torch.optim.Adam(model.parameters(), 1e-3, weight_decay=1e-5)
for step in range(30):
    wave = torch.randn(2, 1, 48, 48, 48).cumsum(2).cumsum(3).tanh()
    labels = (wave > 0.5).long() + (wave > -0.5).long()
    optimizer.zero_grad()
    loss = loss_function(model(wave + 0.1 * torch.randn_like(wave)), labels)
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        model.eval()
        with torch.no_grad():
            found = sliding_window_inference(wave[:1], (32, 32, 32), 2, model).argmax(1)
        model.train()
        right = (found == labels[:1, 0]).float().mean()
        print(f"{step}, train_loss: {loss.item():.6f}, right {right:.4f}")
