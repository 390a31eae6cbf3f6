"""Studies: the papers' tables and figures, rivals, benchmarks and sweeps. This folder imports as `dualmech.studies`."""
