"""Fixed mechanisms of local privacy."""
