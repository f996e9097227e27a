"""``queuesmith compare --replicas``: what is printed and what is refused."""

import json


def test_the_replicas_and_their_router_are_printed(run, quick):
    ran = run(*quick, "--replicas", "2", "--router", "least_loaded")

    assert ran.code == 0
    assert "2 replicas, router least_loaded" in " ".join(ran.out.split())


def test_a_router_may_be_a_file(run, quick, tmp_path):
    file = tmp_path / "first.py"
    file.write_text("def route_key(request, replica):\n    return replica.index\n")
    ran = run(*quick, "--replicas", "2", "--router", "first.py", "--json")

    assert json.loads(ran.out)["config"]["router"] == "first"


def test_a_router_that_is_not_there_ends_with_2_and_one_line(run, quick):
    ran = run(*quick, "--replicas", "2", "--router", "nobody")

    assert ran.code == 2
    assert "there is no router 'nobody'" in ran.err
    assert "Traceback" not in ran.err
    assert ran.created == set()


def test_a_log_without_sessions_has_no_closed_loop(run, quick):
    ran = run(*quick, "--closed-loop")

    assert ran.code == 2
    assert "does not say which requests are of one session" in ran.err
