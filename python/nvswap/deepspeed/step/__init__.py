# SPDX-License-Identifier: Apache-2.0
"""
DeepSpeed's ZeRO-3 optimizer step by nvswap.Optimizer: the state of each rank's partitions lies in one
store, and a step reads, updates and writes it tile by tile. `stage3` is DeepSpeed's class with the
methods that touch state replaced, `state` opens the store, `weights` takes new weights to the
parameters that are on a drive.
"""
