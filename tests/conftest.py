"""Fixtures every test may use."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# A shell starts what it runs in the background deaf to Ctrl-C, and the commands that tests start
# and interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The first example of a test may compile for seconds. In CI the examples are the same every time,
# so that a red run is a change's doing; at a desk they wander.
settings.register_profile("queuesmith", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("queuesmith")


@pytest.fixture(scope="session", autouse=True)
def _nobodys_home(tmp_path_factory, request):
    """Let no test read or write the cache, state or configuration of the account it runs under.

    Compiled policies are kept from run to run all the same, in the cache of pytest if it has one.
    """
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        for kind in ("CACHE", "CONFIG", "DATA", "STATE"):
            patch.setenv(f"XDG_{kind}_HOME", str(home / kind.lower()))
        patch.delenv("XDG_CONFIG_DIRS", raising=False)
        patch.delenv("XDG_DATA_DIRS", raising=False)
        if request.config.pluginmanager.hasplugin("cacheprovider"):
            patch.setenv("QUEUESMITH_CACHE", str(request.config.cache.mkdir("queuesmith")))
        yield


@pytest.fixture(scope="session")
def traces_dir() -> Path:
    """Return the folder with real traces, or skip."""
    folder = os.environ.get("QUEUESMITH_TRACES")
    if not folder:
        pytest.skip("QUEUESMITH_TRACES is not set: it names a folder with the public traces")
    return Path(folder).resolve()
