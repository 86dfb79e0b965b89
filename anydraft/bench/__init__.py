"""Answers about a pair of models: does it work, does it pay, is it lossless."""
