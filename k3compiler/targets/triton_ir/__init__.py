"""Tile programs as Triton IR, and Triton's stages: what the NVIDIA and AMD targets share."""
