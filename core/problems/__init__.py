"""The problems: each holds data and judges any answer to it."""
