"""Fixed mechanisms of the central model."""
