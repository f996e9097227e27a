"""``--backend`` and ``--scheduler-address``: one set for every verb, refused alike."""

import json

import pytest


@pytest.fixture(params=["compare", "study run", "evolve run", "evolve resume"])
def verb(request, quick, tmp_path):
    """Give the arguments of each verb, up to those on where it runs."""
    return {
        "compare": quick,
        "study run": ("study", "run", "atlas"),
        "evolve run": ("evolve", "run", "quick"),
        "evolve resume": ("evolve", "resume", tmp_path),
    }[request.param]


def test_an_unknown_backend_is_refused_with_the_one_that_was_meant(refused, verb):
    assert "no backend 'dusk'. Did you mean 'dask'?" in refused(*verb, "--backend", "dusk")


def test_an_address_is_for_clusters(refused, verb):
    error = refused(*verb, "--backend", "loky", "--scheduler-address", "tcp://127.0.0.1:9")

    assert "loky runs on this machine and has no scheduler address" in error


def test_a_missing_extra_is_named_with_the_command_that_installs_it(refused, verb, monkeypatch):
    monkeypatch.setattr("queuesmith.backends.find_spec", lambda name: None)

    assert "pip install 'queuesmith[ray]'" in refused(*verb, "--backend", "ray")


def test_an_address_that_refuses_is_one_line(run, quick, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("queuesmith.backends.clusters.CONNECT_SECONDS", 1.0)

    ran = run(*quick, "--backend", "dask", "--scheduler-address", "tcp://127.0.0.1:9")

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: no Dask cluster answers at 'tcp://127.0.0.1:9'")
    assert ran.err.count("\n") == 1


def test_processes_print_what_threads_do(run, quick):
    threads, processes = (
        json.loads(run(*quick, "--json", *more).out)
        for more in ([], ["--backend", "loky", "--workers", "2"])
    )

    assert threads == processes
