"""Tables and figures of the fitness-for-use paper (FFU)."""
