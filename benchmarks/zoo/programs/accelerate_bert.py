"""Sentence classification with Accelerate: two micro-batches a step, a schedule, evaluation."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, get_scheduler

torch.manual_seed(0)
accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
rows = torch.randint(5, 500, (960, 96))
labels = (rows[:, :48].float().mean(1) > rows[:, 48:].float().mean(1)).long()
data = TensorDataset(rows, labels)
train = DataLoader(data, batch_size=16, shuffle=True)
test = DataLoader(TensorDataset(rows[:64], labels[:64]), batch_size=32)
config = BertConfig(
    vocab_size=500,
    hidden_size=192,
    num_hidden_layers=4,
    num_attention_heads=6,
    intermediate_size=768,
)
model = BertForSequenceClassification(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
schedule = get_scheduler("linear", optimizer, num_warmup_steps=5, num_training_steps=60)
model, optimizer, train, schedule = accelerator.prepare(model, optimizer, train, schedule)
for epoch in range(2):
    model.train()
    for step, (x, y) in enumerate(train):
        with accelerator.accumulate(model):
            loss = model(input_ids=x, labels=y).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if step % 20 == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.6f}")
    model.eval()
    with torch.no_grad():
        right = sum((model(input_ids=x).logits.argmax(1) == y).sum().item() for x, y in test)
    print(f"epoch {epoch} right {right}")
