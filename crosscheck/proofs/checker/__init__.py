"""Checker of proof files, in exact integer arithmetic and with Python's standard library only.

``check`` returns the bounds that a file proves. ``exact`` holds the arithmetic, and the reader of sections, which
refuses unused names. ``noise``, ``epochs``, ``apart``, ``tables`` and ``local`` hold the kinds of problems. Each begins
with the inequalities that it relies on, and their proofs. A sceptic needs to read only ``check``, ``exact`` and the
modules for the kind of the file: the folder runs alone, ``python checker proof.json``.
"""
