"""Release of records as tables: exact counts, discrete noise, labels and statements."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["records", "results"])
