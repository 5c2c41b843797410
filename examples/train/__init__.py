"""Training of the two example checkpoints, in plain torch."""
