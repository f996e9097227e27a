"""What is kept of a candidate's simulations, and the score, bounds and guards made of it."""
