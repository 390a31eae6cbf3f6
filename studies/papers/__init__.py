"""The papers' tables and figures, next to certified values."""
