# SPDX-License-Identifier: Apache-2.0
"""
DeepSpeed's swappers on nvswap's engine: partitions are tensors of a store, one for parameters and one
for optimizer state of each rank. `store` opens them, `hold` has their tensors in memory, `parameters`
and `optimizer` have the interfaces that DeepSpeed calls. `host` loads jobs whose optimizer is in memory.
"""
