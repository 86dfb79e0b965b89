"""Drafting methods, all behind the protocol of :mod:`anydraft.methods.base`."""
