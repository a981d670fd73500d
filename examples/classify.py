"""Train a small model on scikit-learn's digits, in a plain PyTorch loop that uses only the model of this package."""

import timm
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import inline_attention  # noqa: F401  registers the models with timm

EPOCHS, BATCH = 3, 64

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1  # (1797, 1, 8, 8), from -1 to 1
split = train_test_split(images, torch.tensor(digits.target), test_size=0.2, random_state=0, stratify=digits.target)
train_x, test_x, train_y, test_y = split

model = timm.create_model("inline_swin_nano", img_size=8, in_chans=1, num_classes=10)
steps = EPOCHS * (len(train_x) // BATCH)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps)

for epoch in range(EPOCHS):
    model.train()
    for batch in torch.randperm(len(train_x))[: len(train_x) // BATCH * BATCH].split(BATCH):
        loss = F.cross_entropy(model(train_x[batch]), train_y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        right = (model(test_x).argmax(1) == test_y).float().mean()
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}, {100 * right:.1f} % of {len(test_x)} validation digits")
