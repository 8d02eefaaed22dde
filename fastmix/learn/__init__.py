"""What the training loop needs besides the loader: losses.  Needs torch."""

try:
    from .losses import jensen_shannon, pair_cross_entropy
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError('fastmix.learn needs torch: pip install "fastmix[torch]"', name="torch") from error

__all__ = ["jensen_shannon", "pair_cross_entropy"]
