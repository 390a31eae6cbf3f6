"""Problems of local privacy: strategies, projections onto them, and non-negative estimates."""
