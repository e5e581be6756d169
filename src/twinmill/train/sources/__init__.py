"""What feeds the one step: corpora (mid-training), chats (SFT) and groups (RL), each as microbatches.

A corpus or chat batch is a pure function of (data, seed, step): a resumed run needs no data state but the step.
"""
