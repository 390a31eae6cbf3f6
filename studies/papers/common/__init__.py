"""Tables and figures of the common-mechanism paper (CMN)."""
