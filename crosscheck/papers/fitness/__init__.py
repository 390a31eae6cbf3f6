"""Tables and figures of the fitness-for-use paper (FFU)."""

SHEETS = (*(f"table{number}" for number in range(2, 12)), *(f"figure{number}" for number in (1, 2, 3)))
