"""Level 2 to level 3: every fused op becomes launches of tile programs, and the launches a plan."""
