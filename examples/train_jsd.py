"""Train a small network on a folder of pictures with AugMix, three views and the Jensen-Shannon loss.

    python -c "from fastmix.photos import cut_photos; cut_photos('photos/train', 320); cut_photos('photos/val', 80, 1)"
    python examples/train_jsd.py photos/train photos/val

The folders have a subfolder for each class.  The first line makes such folders from photographs that the [demo] extra
installs; they are crops of the same few photographs, so the accuracy says that training works, and nothing more.
"""

import argparse
import time

import torch
from torch import nn

from fastmix import AugMix, DataLoader
from fastmix.demo import network
from fastmix.learn import jensen_shannon


@torch.inference_mode()
def accuracy(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in loader)
    model.train()
    return right / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("val")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    torch.manual_seed(0)
    common = {"batch_size": options.batch_size, "num_workers": options.workers, "size": options.size}
    train = DataLoader(
        options.train, shuffle=True, drop_last=True, mix=AugMix.imagenet(), views=3, seed=0, **common
    )  # batches of (clean, mixed, mixed)
    val = DataLoader(options.val, crop="center", **common)
    model = network(len(train.dataset.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(train))

    for epoch in range(options.epochs):
        start, total = time.perf_counter(), 0.0
        for images, labels in train:
            loss = jensen_shannon(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        seconds = time.perf_counter() - start
        print(f"epoch {epoch}: loss {total / len(train):.3f}, accuracy {accuracy(model, val):.3f}, {seconds:.1f} s")


if __name__ == "__main__":
    main()
