"""Candidates written by a language model: prompts, calls, answers and their budget."""
