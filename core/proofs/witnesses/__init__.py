"""What shows both bounds of a problem, from an answer to it: for each kind a module, named as the checker's."""
