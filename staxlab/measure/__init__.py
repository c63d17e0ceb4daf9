"""Models and measurement (Section 13): what a compiler should gain, and how to find out whether it did.

=======================  ==========================================================================================
module                   question
=======================  ==========================================================================================
``timing``               How long does it take, and how sure are we? (Definition 13.1, Propositions 13.1 and 13.2)
``rounds``               Do other rounds say the same, and is a difference established? (Sections 13.1 and 13.5)
``bytes``                How much memory traffic must it cause? (Section 1.1, Proposition 1.1, Proposition 13.3)
``roofline``             What can this machine do? (Definition 1.1, Section 13.1)
``roofline_nominal``     What should a GPU be able to do, by its data sheet? (Definition 1.1)
``size_sweep``           Where do a machine's caches end, by their speed? (Section 13.1, Lab 1)
``change_points``        Where does a noisy sequence change its level? (Section 13.1)
``rounding``             How far may two right answers differ? (Section 6.5, Theorem 13.1, Corollary 13.1)
``rounding_study``       How far do simulated sums and those of real kernels differ? (Section 13.3)
``tolerance``            Which tolerance is right for these data, and why? (Sections 6.5, 11.4 and 13.3)
``program_bounds``       How far may the results of a whole program differ? (Sections 6.5, 11.4 and 13.3)
``agreement``            Do two runs agree, bit for bit or in units of their bounds? (Section 11.4)
``validation``           Does every kernel compute what its loops mean? (Section 6.9, Theorems 6.1 to 6.3)
``survey``               Does every operator give eager's values, and how was it compiled? (Section 6.1)
``identities``           Which laws of algebra do floating-point numbers keep? (Section 4.2, Table 4.1)
``transcendental``       How inaccurate is a formula in place of an operator? (Section 4.4, Table 4.2)
``accuracy``             How far are generated functions from exact values, over all exponents? (Section 8.1)
``inner_loop``           What is the inner loop made of, and what bounds its speed? (Section 8.1)
``little``               How many bytes must be on their way for the bandwidth to be used? (Section 9.1)
``occupancy``            How many warps of a kernel does a multiprocessor hold, and what limits them? (Section 9.1)
``coalescing``           Which sectors of memory do the lanes of a warp touch? (Sections 9.1 and 9.3)
``lowering_steps``       What did each step of Triton's compiler make of a kernel? (Section 9.2)
``matrix_traffic``       How much traffic must a matrix product cause, and how much do its tiles? (Theorem 9.1)
``pebbles``              Does a schedule keep that bound, and every step of its proof? (Lemma 9.1, Theorem 9.1)
``grouped_numbering``    What do blocks that run at the same time read together? (Proposition 9.4)
``pipeline_stages``      How many pipeline stages fit, and how many are of use? (Section 9.8)
``tensor_cores``         Where is the ridge point of each kind of number? (Section 9.8)
``epilogue_saving``      What does it save to fuse what follows a product? (Section 9.8)
``product_models``       What do these models say of a kernel that was compiled? (Section 9.8)
``online_softmax``       Do states of attention merge in any order, and is LSE enough to go back? (Section 9.10)
``attention_traffic``    What does attention move, by operators and in tiles? (Theorem 9.2)
``interpreted_traffic``  What does a kernel read and write, counted while it runs in the interpreter? (Section 9.2)
``attention_state``      What does a program instance of attention hold after each block? (Figure 9.2)
``block_counts``         Which blocks does a window leave to be computed? (Section 9.10, Exercise 37)
``launch_timeline``      What does launching cost, and what does a CUDA graph save? (Section 9.9)
``reproduce``            What are Tables 13.1 and 13.2 and Figure 13.1 on this machine? (Section 13.2)
``amortize``             When has compiling paid for itself? (Propositions 13.4, 13.5 and 13.6)
``amortization``         What do first calls and calls cost here, and when does compiling pay? (Section 13.4)
``version_counts``       How many versions does a history of calls need? (Proposition 13.5)
=======================  ==========================================================================================

Importing this package costs a few milliseconds; matplotlib and a C++ compiler are looked for when first used.
"""

from __future__ import annotations

from . import amortize, bytes, identities, roofline, rounding, timing
from .amortize import break_even, bucket_bound, expected_versions, minimum_size
from .bytes import SpeedupDecomposition, Traffic, TrafficModel, decompose, eager_traffic, lower_bound, traffic_model
from .identities import IdentityTable, identity_table
from .roofline import Roofline
from .rounding import condition_number, error_model, summation_bound, unit_roundoff
from .timing import Comparison, MedianInterval, Ratio, Timing, compare, median_interval, sample

__all__ = [
    "Comparison",
    "IdentityTable",
    "MedianInterval",
    "Ratio",
    "Roofline",
    "SpeedupDecomposition",
    "Timing",
    "Traffic",
    "TrafficModel",
    "amortize",
    "break_even",
    "bucket_bound",
    "bytes",
    "compare",
    "condition_number",
    "decompose",
    "eager_traffic",
    "error_model",
    "expected_versions",
    "identities",
    "identity_table",
    "lower_bound",
    "median_interval",
    "minimum_size",
    "roofline",
    "rounding",
    "sample",
    "summation_bound",
    "timing",
    "traffic_model",
    "unit_roundoff",
]
