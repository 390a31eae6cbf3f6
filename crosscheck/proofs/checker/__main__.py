"""Check a proof file without installing the library: ``python crosscheck/proofs/checker proof.json``."""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    if not __package__:  # run as a folder, which Python does not treat as a package
        sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    name = __package__ or Path(__file__).resolve().parent.name
    sys.exit(importlib.import_module(f"{name}.check").main(sys.argv[1:]))
