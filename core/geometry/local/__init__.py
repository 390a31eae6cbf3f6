"""What problems of local privacy stand on: extremal patterns, their prices, and strategies over them."""
