"""From a problem on a geometry to the bare arrays that the engine needs, and back."""
