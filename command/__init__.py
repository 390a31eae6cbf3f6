"""The ``dualmech`` command."""
