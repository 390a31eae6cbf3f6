"""The checker of proof files: exact integer arithmetic, and nothing but Python's standard library.

``check`` says what a file proves, ``given`` reads it and refuses what it does not know, ``exact`` is the arithmetic,
and of each kind of problem there is a module that begins with the inequalities which it relies on, and their proofs.
A sceptic reads these three and what the kind of a file needs, and has to believe nothing else here: the folder runs by
itself, ``python checker proof.json``. Of tables that is ``domain`` (what is asked), and ``blocks`` with ``classes``,
or ``split``, by the form of the proof.
"""
