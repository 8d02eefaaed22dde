"""A `torch.utils.data.DataLoader` that crops and mixes in threads."""

from .loader import DataLoader

__all__ = ["DataLoader"]
