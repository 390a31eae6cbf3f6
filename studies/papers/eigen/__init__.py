"""Tables and figures of the Eigen-Design paper (EIG)."""
