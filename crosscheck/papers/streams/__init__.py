"""Known strategies of running sums, before the proven optimum."""
