"""A small network and what its training step leaves behind, for the tests of attribution."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYERS = ["body.1", "body.4"]


class Net(nn.Module):
    """conv-BN-ReLU twice, the second at half the size, then a pooled linear head."""

    def __init__(self, *, inplace: bool = True, dropout: float = 0.0, seed: int = 0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.body = nn.Sequential(
                nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)),
                nn.ReLU(inplace),
                nn.Dropout(dropout),
                nn.Sequential(nn.Conv2d(6, 8, 3, 2, 1), nn.BatchNorm2d(8)),
                nn.ReLU(inplace),
            )
            self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images).mean((2, 3)))


def pictures(n: int = 4, height: int = 12, width: int = 10, seed: int = 0) -> Tensor:
    return torch.randn((n, 3, height, width), generator=torch.Generator().manual_seed(seed))


def loss_of(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits, torch.arange(len(logits)) % logits.shape[1])


def grads_of(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def all_equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) > 0 and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def hooks_on(net: nn.Module) -> int:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(m, kind)) for m in net.modules() for kind in kinds)
