"""Models: packaged weights, GGUF conversion, loading, KV slots and the draft runtime."""
