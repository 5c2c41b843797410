"""k3compiler: a compiler and runtime for Kimi K3."""

__version__ = "0.1.0"
