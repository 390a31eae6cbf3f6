"""Fitting a data set to what was released: non-negative, consistent and whole tables, by cliques of attributes."""
