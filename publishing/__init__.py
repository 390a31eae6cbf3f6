"""From records to published tables: whole numbers, exact discrete noise, labels, and what may be said of them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["records", "results"])
