"""Probability rules: sampling transforms, verification and keyed noise; pure functions."""
