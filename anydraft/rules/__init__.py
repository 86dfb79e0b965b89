"""Probability rules: how a request is sampled, and how proposals are verified. Pure functions."""
