"""IPMix: a convex sum of a picture and chains that are either ops or blends of patches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from .. import ops
from ..kernels import Clip, Mode
from ..rng import Key, Stream, integers
from ..types import Batch, Params, Pool
from . import _blend


@dataclass
class IPMix:
    """(1 - m) x + m sum_i w_i chain_i(x); Huang et al., "IPMix" (NeurIPS 2023), section 3.

    w ~ Dirichlet(1, ..., 1), m ~ U(0, 1).  A chain has 0 to `depth` links.  With probability 1/2 they are ops in
    sequence (image level), else patches (pixel and patch level): a random box of a random size is blended with the same
    box of the mixing picture by "add", "multiply", random pixels or random elements, and stored as uint8.

    width: chains, >= 0.  depth: most links a chain, >= 0.  beta: > 0, of the conic blend weights.  severity: in (0.1,
    10], of the ops.  patch_sizes: sides in pixels, >= 1; larger than the picture counts as its shorter side.  all_ops:
    also autocontrast, color, contrast, brightness and sharpness.  patch_source: "pool" (the paper's CIFAR code) or
    "either" (its ImageNet code: half of the patches come from one op on the original).  overflow: "wrap" keeps the
    published arithmetic, in which blends outside [0, 1] wrap around modulo 256, "clip" saturates.  pool: the mixing
    pictures, at least as large as the batch's.
    Raises ValueError for settings outside these ranges, and in `draw` for a missing or too small pool.

    Deviation from the paper's code: the picture is rounded to uint8 once more at the end.  Width or depth 0 is the
    identity.
    """

    width: int = 3
    depth: int = 3
    beta: float = 3.0
    severity: float = 3.0
    patch_sizes: tuple[int, ...] = (4, 8, 16, 32)
    all_ops: bool = False
    patch_source: str = "pool"
    overflow: str = "wrap"
    pool: Pool | None = field(default=None, repr=False, compare=False)
    enabled: bool = True
    label_preserving: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        _blend.check_count("width", self.width)
        _blend.check_count("depth", self.depth)
        _blend.check_positive("beta", self.beta)
        _blend.check_severity("severity", self.severity)
        ok = isinstance(self.patch_sizes, tuple | list) and len(self.patch_sizes) > 0
        _blend.check(ok, "patch_sizes", self.patch_sizes, "a side at least", "pass (4, 8)")
        for side in self.patch_sizes:
            _blend.check_count("a side in patch_sizes", side, 1)
        _blend.check_choice("patch_source", self.patch_source, ("pool", "either"))
        _blend.check_choice("overflow", self.overflow, ("wrap", "clip"))

    @classmethod
    def cifar(cls, **changes: Any) -> IPMix:
        """The setting of the paper's CIFAR runs: beta 3, severity 3, patches from the pool."""
        return cls(**{"beta": 3.0, "severity": 3.0, **changes})

    @classmethod
    def imagenet(cls, **changes: Any) -> IPMix:
        """The setting of the paper's ImageNet runs: beta 4, severity 1, sides up to 224, patches from either source."""
        sides = (4, 8, 16, 32, 64, 224)
        return cls(**{"beta": 4.0, "severity": 1.0, "patch_sizes": sides, "patch_source": "either", **changes})

    def draw(self, key: Key, batch: Batch) -> Params:
        """Draw the chains.  Layer 0 is the picture, 1 the pool picture; the others hold the ops, chain after chain."""
        if not self.enabled or self.width == 0 or self.depth == 0:
            return _blend.preserving(_blend.blank(key, batch))
        n, height, width = batch.images.shape[:3]
        size = height, width
        u = key.uniform(batch.targets.ids, Stream.METHOD, 1 + self.width * (3 + 14 * self.depth))
        chain = u[:, 1:].reshape(n, self.width, 3 + 14 * self.depth)
        links = chain[..., 3:].reshape(n, self.width, self.depth, 14)
        image_level = chain[..., 1] < 0.5
        length = integers(chain[..., 2], 0, self.depth + 1)
        used = np.arange(self.depth) < length[..., None]
        patched = used & ~image_level[..., None]
        own = patched & (links[..., 3] < 0.5) & (self.patch_source == "either")

        room = self.depth if self.patch_source == "either" else 1  # layers a chain
        layers, total = 2 + self.width * room, 2 + self.width * (self.depth + 2)
        program = _blend.blank(key, batch, layers=layers, chain=self.depth, steps=total)
        program.layers[:, 1] = _blend.pool_layers(self.pool, key, batch)
        with_op = own | used & image_level[..., None]
        row, c, link = np.nonzero(with_op)
        flat = image_level[row, c]  # the links of an image-level chain share a layer; a patch has a layer of its own
        suite = ops.IPMIX_ALL if self.all_ops else ops.IPMIX
        drawn = ops.draw(suite, links[with_op][:, :3], self.severity, size)
        program.ops[row, 2 + c * room + np.where(flat, 0, link), np.where(flat, link, 0)] = drawn

        # One chain: start, links, add to the total.  `steps` is a view.
        steps = program.steps[:, 1:-1].reshape(n, self.width, self.depth + 2)
        first = 2 + room * np.arange(self.width)
        steps["mode"][..., 0], steps["layer"][..., 0] = Mode.SET, np.where(image_level, first, 0)
        patches = steps[..., 1:-1]
        _blend.set_boxes(patches, links[..., 4:10], self.patch_sizes, size)
        _blend.set_blend(patches, integers(links[..., 10], 0, 4), links[..., 11:], self.beta)
        patches["clip"] = Clip.WRAP if self.overflow == "wrap" else Clip.CUT
        patches["layer"] = np.where(own, first[:, None] + np.arange(self.depth), 1)
        idle = length == 0  # such a chain is the picture itself, and joins the first sum
        share = np.where(idle, 0, u[:, :1] * _blend.simplex(chain[..., 0]))
        steps["mode"][..., -1], steps["a"][..., -1] = Mode.SUM, share
        active = np.pad(patched, ((0, 0), (0, 0), (1, 1)), constant_values=True) & ~idle[..., None]

        program.steps["mode"][:, 0], program.steps["a"][:, 0] = Mode.SUM, 1 - share.sum(axis=1)
        program.steps["mode"][:, -1] = Mode.TOTAL
        program.steps["stream"] = key.stream(Stream.PIXELS) + np.arange(total)
        _blend.pack(program.steps, np.pad(active.reshape(n, total - 2), ((0, 0), (1, 1)), constant_values=True))
        return _blend.preserving(program)
