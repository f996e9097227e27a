"""Tests against real vLLM; they run where vLLM is installed, in an environment of its own."""

import logging

import pytest


@pytest.fixture(scope="session", autouse=True)
def quiet():
    """Keep vLLM's remarks on this machine out of what a failing test shows."""
    for name in ("vllm.platforms.cpu", "vllm.config", "vllm.engine"):
        logging.getLogger(name).setLevel(logging.ERROR)
