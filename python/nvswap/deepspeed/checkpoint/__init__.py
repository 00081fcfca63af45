# SPDX-License-Identifier: Apache-2.0
"""
Checkpoints of ZeRO-3 jobs whose optimizer state is in a store, in DeepSpeed's own layout. `zero3` has
the methods of DeepSpeed's optimizer that save and load state, `stored` makes the pickle of a .pt file
whose data the library writes from the store, `writing` saves all else, `durable` locks and marks
the folder of a tag, `engine` is the checkpoint engine that DeepSpeed calls, `loads` has
a load fail on all ranks if it fails on one, and `frozen` and `buffers` load what a universal checkpoint has
in its model states.
"""
