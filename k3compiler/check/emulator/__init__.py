"""Runs gfx950 and gfx942 code objects numerically on a CPU, without AMD hardware.

Scalar and vector arithmetic runs on the instruction emulator of a tinygrad checkout that ``TINYGRAD_SRC`` names
(imported at run time, a development aid only). Matrix instructions, LDS, global, flat, buffer and scratch memory,
LDS-direct loads, scaled conversions, lane swaps, DPP and SDWA are implemented here in numpy, by the hardware's register
layouts. Every memory access is bounds checked, LDS starts as NaN, and asynchronous copies land only where an
``s_waitcnt`` covers them. No timing, no bank conflicts, no memory ordering between workgroups.
"""
