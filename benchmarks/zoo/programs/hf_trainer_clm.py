"""Causal language modelling with the Trainer of transformers."""

import importlib.util
import tempfile

if importlib.util.find_spec("torch") is None:  # as many packages look before they import it
    raise SystemExit("torch is missing")
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(0)
rows = (torch.randint(0, 512, (400, 1)) + 7 * torch.arange(160)) % 512
data = [{"input_ids": row, "labels": row} for row in rows]
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=512, n_embd=192, n_layer=4, n_head=6, n_positions=160)
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=8,
        max_steps=40,
        logging_steps=10,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        dataloader_num_workers=0,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
