"""Losses: pure functions from `base.Tokens` to `base.LossValue`, one per file."""
