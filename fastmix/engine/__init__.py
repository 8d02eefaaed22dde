"""Batches out of a source, made by threads, with no framework in sight.

`Order` says which samples make a batch and `Progress` which epoch it is; `Recipe` says what becomes of a sample; a
`Job` makes one batch in small tasks; a `Crew` runs the tasks of a few jobs at a time; `Kept` holds memory for the next
epoch; `explain` tells what was done to one sample; `Delivered` is what is remembered of the batch handed out last;
`Extras` are maps and pictures that come from elsewhere.
"""

from .crew import Crew, made
from .delivered import Delivered
from .explain import Explanation, check_sample, explain
from .extras import Extras
from .job import Bad, Job, has_partners, jobs
from .kept import Buffers, Kept
from .memory import memory_bound
from .progress import STREAM_VERSION, Order, Progress, Run, keyed_batches
from .recipe import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    LABELS,
    ON_ERROR,
    Crop,
    Output,
    Recipe,
    check_inputs,
    check_method,
    check_size,
    form_labels,
    level_table,
)

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "LABELS",
    "ON_ERROR",
    "STREAM_VERSION",
    "Bad",
    "Buffers",
    "Crew",
    "Crop",
    "Delivered",
    "Explanation",
    "Extras",
    "Job",
    "Kept",
    "Order",
    "Output",
    "Progress",
    "Recipe",
    "Run",
    "check_inputs",
    "check_method",
    "check_sample",
    "check_size",
    "explain",
    "form_labels",
    "has_partners",
    "jobs",
    "keyed_batches",
    "level_table",
    "made",
    "memory_bound",
]
