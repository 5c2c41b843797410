"""The moe dialect: router and experts (level 2)."""

from k3compiler.dialects.moe.gate_up_mx import GateUpMx
from k3compiler.dialects.moe.ops import Combine, Down, GateUp, Moe, RouteTopk, Sort
from k3compiler.dialects.moe.route import Route

__all__ = ["Combine", "Down", "GateUp", "GateUpMx", "Moe", "Route", "RouteTopk", "Sort"]
