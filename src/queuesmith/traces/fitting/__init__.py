"""Recipes that fit a model to sources that are no plain trace."""
