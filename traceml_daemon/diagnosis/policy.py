"""Every threshold of the diagnosis, and its reason. One is changed here, or nowhere.

Shares are of the mean steady step, 0 to 1. A warning is worth a person's time; critical is reserved for what dominates
a run beyond doubt. What a healthy run can show on a busy machine stays info.
"""

from __future__ import annotations

from typing import Final

# --- how much has to be known -----------------------------------------------------------------------------------------

MIN_STEPS: Final = 10
"""Fewer steady steps are a smoke test; their median moves by its own size."""
MEDIUM_STEPS: Final = 30
"""A median of 30 noisy steps is good to about a fifth of their spread."""
HIGH_STEPS: Final = 150
"""Of 150, to a tenth; by then caches, allocators and data loaders have settled too."""
BLOCK_STEPS: Final = 8
"""Data loaders with workers deliver in bursts of as many batches as there are workers: a share needs a whole burst."""
MAX_BLOCKS: Final = 24
"""Blocks of a run: medians over them shrug off a third of disturbed ones, and the mathematics stays small."""

# --- what a step is made of -------------------------------------------------------------------------------------------

INPUT_INFO: Final = 0.25
"""A quarter is worth knowing of, and common."""
INPUT_WARNING: Final = 0.40
"""Collating small batches costs up to a third of a small step in healthy runs."""
INPUT_CRITICAL: Final = 0.70
"""The ranks do little but wait: more than two thirds of the run's cost is lost."""
INPUT_FLOOR_MS: Final = 2.0
"""A wait below this is a queue's or a collate function's own cost on a busy machine."""
TRANSFER_WARNING: Final = 0.30
"""Pinned memory and copies beside the computation hide nearly all of it."""
TRANSFER_FLOOR_MS: Final = 1.0
"""A blocking copy of a usual batch takes well under a millisecond."""
OPTIMIZER_INFO: Final = 0.30
"""Adam over many small tensors reaches this honestly where batches are small."""
OPTIMIZER_WARNING: Final = 0.60
"""More than everything else together."""
RESIDUAL_INFO: Final = 0.50
"""Never more than info: what stands outside all phases may be exactly what the script is for."""
COMPUTE_INFO: Final = 0.80
"""Nothing else is left to win."""
DOMINANT_FLOOR_MS: Final = 5.0
"""Of a shorter step the interpreter itself is a large part, whatever the script does."""

# --- ranks against one another ----------------------------------------------------------------------------------------

STRAGGLER_INFO: Final = 0.10
"""Ranks of one job differ by some per cent: shards, clocks, places on the board."""
STRAGGLER_WARNING: Final = 0.25
"""Two ranks that share the cores of a busy machine differ by up to a fifth of a step for a while."""
STRAGGLER_CRITICAL: Final = 0.50
"""Every other rank waits for half of its time."""
STRAGGLER_FLOOR_MS: Final = 2.0
"""Less is the scheduler's time slice."""
STRAGGLER_CONSISTENCY: Final = 0.75
"""Share of blocks in which the same rank is behind by at least half of it: chance changes sides."""
STRAGGLER_CRITICAL_STEPS: Final = 24
"""Steps for which it must have lasted; three blocks."""
WINDOW_SHARES: Final = (1.0, 0.5, 0.25)
"""A rank may become slow late: the whole run, its last half and its last quarter are looked at."""
OWN_TOTAL_SHARE: Final = 0.6
"""A culprit's excess shows in the sum of all that it does itself; a victim's is balanced by less elsewhere."""
INPUT_ALL_WAIT: Final = 0.35
"""Where at the start the others waited this much of the culprit's wait too, input limits all of them: the rank with the
fastest loader fills its queue in time and then only seems to be free."""
INPUT_ALL_LOAD: Final = 0.6
"""Where the others' workers take this much of the culprit's time to load: of loaders so alike one is the slowest."""
MAX_CULPRIT_SHARE: Final = 0.5
"""More ranks than this are not behind the others; the others are ahead."""
CONTENTION_EXPLAINS: Final = 0.5
"""Of what a rank or a run is slower: without a core for that much longer, its slowness is the host's doing."""

EVEN_FACTOR: Final = 1.15
"""Slower by this much in every phase: longer samples leave the optimizer and the loop's own code alone."""
EVEN_MIN_SHARE: Final = 0.02
"""Of a step; a phase shorter than that says nothing."""
EVEN_MIN_MS: Final = 10_000.0
"""A core is shared for seconds at a time, and that is nothing to look after; a slow one stays slow."""

# --- trends and rhythms -----------------------------------------------------------------------------------------------

SLOWDOWN_WARNING: Final = 0.30
"""Growth over the run. Clocks that throttle and allocators that fragment cost up to a fifth."""
SLOWDOWN_CRITICAL: Final = 1.0
"""Steps take twice as long at the end."""
SLOWDOWN_FLOOR_MS: Final = 2.0
"""Less than the scheduler gives and takes."""
SLOWDOWN_Z: Final = 4.0
"""Mann-Kendall: one in 30,000 by chance for independent steps; load on a machine is not independent, hence the rest."""
SLOWDOWN_SEGMENTS: Final = 8
"""Seven changes: enough to tell a slope from a jump, with several steps in each of a short run."""
SLOWDOWN_RISES: Final = 5
"""Of the seven changes between segments, so many must go up by a fifth of the mean rise: a jump is no slowdown."""
SLOWDOWN_LARGEST_RISE: Final = 0.6
"""Of the whole rise in one change: above it is a step change, which other findings name."""
SLOWDOWN_MIN_STEPS: Final = 30
"""Fewer are shorter than what caches and allocators need to settle."""

SPIKE_FACTOR: Final = 2.0
"""Of the neighbours' median: below, a step is merely slow."""
STALL_MIN_COUNT: Final = 4
"""Three distances are the fewest that can be called regular."""
STALL_FIRST_STEP: Final = 6
"""Before it steps are long because everything is done for the first time."""
STALL_FLOOR_MS: Final = 20.0
"""Two time slices of a busy scheduler."""
STALL_LARGE_QUANTILE: Final = 0.75
"""Of the sizes of stalls: what the larger ones measure, whatever the largest is."""
STALL_SAME_SIZE: Final = 0.4
"""Of the size of the larger ones: what belongs to one rhythm is of one size."""
STALL_REGULAR: Final = 0.7
"""Share of distances within 15 % of the median, or of a multiple of it where one was missed."""
STALL_TOLERANCE: Final = 0.15
"""An epoch of odd length moves a rhythm by a step or two."""
STALL_WARNING: Final = 0.10
"""A tenth of the time is more than checkpoints and logging cost in a usual recipe."""
STALL_MIN_TOTAL_MS: Final = 500.0
"""Less is not worth a person's time, whatever its share of a short run."""
INPUT_STALL_WARNING: Final = 0.25
"""Workers that are started anew each epoch: a large share only in runs of very short epochs."""
CHECKPOINT_INFO: Final = 0.10
"""Below a tenth nobody would save less often."""
CHECKPOINT_WARNING: Final = 0.30
"""A usual recipe validates for up to a quarter of its time."""
CHECKPOINT_MIN_COUNT: Final = 3
"""One at the start and one at the end are no habit."""
CHECKPOINT_MIN_TOTAL_MS: Final = 1000.0
"""A checkpoint of a toy run is a large part of it and means nothing."""

# --- memory -----------------------------------------------------------------------------------------------------------

CREEP_MIN_SAMPLES: Final = 6
"""The fewest of which a steady rise is not chance (Mann-Kendall z of 2.6)."""
CREEP_Z: Final = 2.5
"""One in 160 by chance, and growth has to be large, lasting and gradual besides."""
CREEP_FLOOR_BYTES: Final = 32 << 20
"""Allocators and lazily loaded libraries take up to 25 MiB after the first steps."""
CREEP_SHARE: Final = 0.05
"""Of the level at the start."""
CREEP_LEAD_SHARE: Final = 0.2
"""Of the samples, left out at the start: caches fill, pools grow."""
CREEP_LAST_HALF: Final = 0.6
"""The rise of the last half against that of the first: what levels off is a cache."""
CREEP_LARGEST_STEP: Final = 0.5
"""Of the growth between two samples: above it is one large allocation."""
CREEP_CONFIRMED_SAMPLES: Final = 16
"""A rise in all of them is no chance (z above 5), and took at least four seconds."""
CREEP_CONFIRMED_SHARE: Final = 0.25
"""Of the level at the start: no pool of a library is that large."""
CREEP_CRITICAL_S: Final = 3600.0
"""Memory ends within an hour at this rate."""
IMBALANCE_FACTOR: Final = 1.5
"""Uneven shards and pipeline stages are planned for up to half as much again."""
IMBALANCE_FLOOR_BYTES: Final = 256 << 20
"""A rank that logs, checkpoints or validates alone holds up to that much more."""
PRESSURE_SHARE: Final = 0.90
"""Of a limit: beyond it the kernel reclaims, and a batch of odd length is enough to be killed."""
OURS_SHARE: Final = 0.5
"""Of a node's used memory that the ranks hold: below it somebody else fills the node."""

# --- hosts and devices ------------------------------------------------------------------------------------------------

THROTTLED_SHARE: Final = 0.25
"""Of a cgroup's periods: the quota, not the work, sets the pace."""
CONTENTION_SHARE: Final = 0.3
"""Of a training thread's time, ready to run and without a core."""
BUSY_SHARE: Final = 0.95
"""Of all cores."""
GPU_THROTTLED_SHARE: Final = 0.2
"""Of the samples; shorter is a power cap doing its work."""
LOW_GPU_SHARE: Final = 0.40
"""Utilisation counts time with any kernel at all; below this the device idles most of the run."""
