"""Memory that outlives a step: MLA pages and KDA slots, and who holds them."""
