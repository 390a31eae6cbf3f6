"""What all statements share: backends, units, and attempts until the judge is satisfied."""
