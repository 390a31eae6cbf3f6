"""The solver of the reuse of a release."""
