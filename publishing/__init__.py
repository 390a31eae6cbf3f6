"""From records to published tables: whole numbers, exact discrete noise, labels, and what may be said of them."""
