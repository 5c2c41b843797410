"""Where plans run: memory, kernels and launches of one device each."""
