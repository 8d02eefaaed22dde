"""What the training loop needs besides the loader: losses, and open-set recognition.  Needs torch."""

try:
    from . import openset, protocols, prototypes
    from .contrastive import contrastive_objective, nt_xent, nt_xent_mixed, supcon
    from .gradmix import GradMixStep
    from .losses import jensen_shannon, pair_cross_entropy
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError('fastmix.learn needs torch: pip install "fastmix[torch]"', name="torch") from error

__all__ = [
    "GradMixStep",
    "contrastive_objective",
    "jensen_shannon",
    "nt_xent",
    "nt_xent_mixed",
    "openset",
    "pair_cross_entropy",
    "protocols",
    "prototypes",
    "supcon",
]
