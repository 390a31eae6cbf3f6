"""What a problem stands on: the structure of its workload, and how to evaluate noise on it."""
