"""Choosing schedules: the space of candidates, what they should cost, and the table that measurements make."""
