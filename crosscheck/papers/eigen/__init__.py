"""Tables and figures of the Eigen-Design paper (EIG)."""

SHEETS = (
    *("alternative", "ranges", "marginals", "designs", "completion", "reductions", "reductions8192"),
    *("pure", "relative"),
)
