"""Train a small network on a folder of pictures with LayerMix; stop it at any time, and start it again to go on.

    python -c "from fastmix.photos import cut_photos; cut_photos('photos/train', 320); cut_photos('photos/val', 80, 1)"
    python examples/train_layermix.py photos/train photos/val --checkpoint run.pt

The model, the optimizer and the loader are saved every few steps.  A run that was stopped within an epoch sees the same
batches as one that was not.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

from fastmix import DataLoader, LayerMix, Pool, default_pool
from fastmix.demo import network


@torch.inference_mode()
def accuracy(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in loader)
    model.train()
    return right / len(loader.dataset)


def save(path: Path, parts: dict) -> None:
    """Write beside the old file first, so that there is always a whole one."""
    fresh = path.with_suffix(".new")
    torch.save({name: part.state_dict() for name, part in parts.items()}, fresh)
    fresh.replace(path)


def load(path: Path, parts: dict) -> None:
    saved = torch.load(path)
    for name, part in parts.items():
        part.load_state_dict(saved[name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("val")
    parser.add_argument("--checkpoint", type=Path, required=True, help="written every few steps, and read if it exists")
    parser.add_argument("--pool", type=Path, help="pictures to mix in, made by `fastmix pool`")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    torch.manual_seed(0)
    mix = LayerMix.imagenet(pool=Pool.open(options.pool) if options.pool else default_pool())
    common = {"batch_size": options.batch_size, "num_workers": options.workers, "size": options.size}
    train = DataLoader(options.train, shuffle=True, drop_last=True, mix=mix, seed=0, **common)
    val = DataLoader(options.val, crop="center", **common)
    model = network(len(train.dataset.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    parts = {"model": model, "optimizer": optimizer, "loader": train}
    if options.checkpoint.exists():
        load(options.checkpoint, parts)
        state = train.state_dict()
        print(f"going on with epoch {state['epoch']}, batch {state['batch']}")

    for epoch in range(train.state_dict()["epoch"], options.epochs):
        steps, total = 0, 0.0
        for images, labels in train:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps, total = steps + 1, total + loss.item()
            if steps % 5 == 0:
                save(options.checkpoint, parts)
        mean = total / max(steps, 1)  # 0 steps: it was stopped right behind the last one
        print(f"epoch {epoch}: loss {mean:.3f} over {steps} steps, accuracy {accuracy(model, val):.3f}")
    save(options.checkpoint, parts)


if __name__ == "__main__":
    main()
