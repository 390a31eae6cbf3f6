"""The papers' tables and figures, beside certified values."""
