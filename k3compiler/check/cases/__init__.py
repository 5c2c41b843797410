"""Check cases by kernel family: fresh inputs, and the reference's answer."""
