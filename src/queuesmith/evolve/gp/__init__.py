"""Genetic programming: policies as programs, how they vary, and the proposer that breeds them."""
