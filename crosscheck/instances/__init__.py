"""Problems from papers, and the numbers that the papers print."""
