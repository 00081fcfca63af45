# SPDX-License-Identifier: Apache-2.0
"""Optimizers of torch.optim with their state on the drive."""
