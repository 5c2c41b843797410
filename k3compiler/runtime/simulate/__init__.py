"""The runtime's scheduler and cache on a device that computes integers: planning and proofs."""
