"""The tile dialect: bodies of kernels as programs over tiles (docs/tile.md)."""
