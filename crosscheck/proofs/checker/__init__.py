"""The checker of proof files: exact integer arithmetic, and nothing but Python's standard library.

``check`` says what a file proves. ``exact`` is the arithmetic; it also reads a file's parts and refuses names that
nothing reads. The kinds of problems are in ``noise``, ``tables`` and ``local``, where each begins with the inequalities
that it relies on, and their proofs. A sceptic reads the first two and the part for the kind of a file, and has to
believe nothing else here: the folder runs by itself, ``python checker proof.json``.
"""
