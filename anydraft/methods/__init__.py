"""Drafting methods, one a file, behind the protocol of :mod:`anydraft.methods.base`."""
