"""PROGRAMS lists: (family, params, symbol sizes), one file a kernel module."""
