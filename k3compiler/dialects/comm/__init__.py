"""The comm dialect: collectives (level 2; placed by partition on level 1)."""

from k3compiler.dialects.comm.ops import AllGather, AllReduce, Comm, ReduceScatter

__all__ = ["AllGather", "AllReduce", "Comm", "ReduceScatter"]
