"""Tables and figures of the common-mechanism paper (CMN)."""

SHEETS = ("examples", "ellipses", "saved", "census", "hisrace", "brazil", "thresholds")
