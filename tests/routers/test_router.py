"""A router: found by name or file, checked like a policy, and the same compiled."""

import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from queuesmith.engine.compile import compile_router
from queuesmith.errors import PolicyError
from queuesmith.policies.policy import load_text
from queuesmith.routers import get_router, router_names
from queuesmith.routers.router import load_router
from queuesmith.routers.rows import OWN_FIELDS, REPLICA_DTYPE, REPLICA_FIELDS, SENT_DTYPE

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "routers.md"


def load(*lines, head=""):
    text = head + "def route_key(request, replica):\n" + "".join(f"    {line}\n" for line in lines)
    return load_router("mine", text, Path("mine.py"))


def random_rows(seed, dtype):
    """Rows of numbers such as engines show, some of them extreme."""
    rng = np.random.default_rng(seed)
    rows = np.zeros(200, dtype)
    for name in dtype.names:
        kind = dtype[name].kind
        values = rng.integers(-1, 50, 200) if kind == "i" else rng.exponential(3.0, 200)
        rows[name] = values
    for name in ("deadline", "last_sent_ts"):
        if name in dtype.names:
            rows[name][:20] = np.inf if name == "deadline" else -np.inf
    return rows.view(np.recarray)


def as_object(row):
    return SimpleNamespace(**{name: row[name].item() for name in row.dtype.names})


@pytest.mark.parametrize("name", router_names())
def test_a_built_in_router_says_what_it_knows_and_is_on_the_page(name):
    router = get_router(name)

    assert router.summary
    assert router.knows
    assert router.origin
    assert router.caution
    assert f"| `{name}` |" in PAGE.read_text()


@pytest.mark.parametrize("name", router_names())
def test_a_compiled_router_gives_the_same_bits_as_plain_python(name):
    router = get_router(name)
    compiled = compile_router(router)
    requests, replicas = random_rows(1, SENT_DTYPE), random_rows(2, REPLICA_DTYPE)

    for request, replica in zip(requests, replicas, strict=True):
        plain = float(router.route_key(as_object(request), as_object(replica)))
        assert np.float64(compiled(request, replica)).tobytes() == np.float64(plain).tobytes()


def test_every_field_is_explained_and_no_other():
    fields = {*(SENT_DTYPE.names or ()), *REPLICA_FIELDS}
    tables = PAGE.read_text().split("## What it sees")[1].split("## The built-in")[0]
    rows = [line.split("|")[1] for line in tables.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in row.replace("`", "").replace(",", " ").split()}

    assert named - {"request.", "replica."} == fields


def test_a_router_that_looks_at_no_engine_is_known_as_such():
    assert not get_router("round_robin").reads_engines
    assert not get_router("random").reads_engines
    assert all(get_router(name).reads_engines for name in ("least_loaded", "prefix_affinity"))
    assert set(OWN_FIELDS) < set(REPLICA_FIELDS)


def test_parameters_are_written_into_the_text():
    three = get_router("power_of_two(CHOICES=3)")

    assert three.name == "power_of_two(CHOICES=3)"
    assert "CHOICES = 3" in three.source
    assert three != get_router("power_of_two")
    assert three.sha256 != get_router("power_of_two").sha256
    assert get_router("power_of_two(CHOICES=3)") == three


def test_a_router_survives_pickling():
    router = get_router("power_of_two(CHOICES=3)")
    again = pickle.loads(pickle.dumps(router))

    assert again == router
    assert again.reads == router.reads


def test_a_file_is_found_by_its_path(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def route_key(request, replica):\n    return replica.index\n")

    assert get_router(str(file)) == get_router(file)
    assert repr(get_router(file)) == "Router(mine)"


def test_a_helper_may_have_the_name_of_a_policys_hook():
    helper = "def admit(number):\n    return number + 1.0\n\n\n"
    router = load("return admit(replica.num_sent)", head=helper)
    row = np.zeros(1, REPLICA_DTYPE).view(np.recarray)[0]

    assert compile_router(router)(np.zeros(1, SENT_DTYPE).view(np.recarray)[0], row) == 1.0


def test_a_helper_of_a_policy_may_be_called_route_key():
    text = "def waiting_key(request, engine):\n    return route_key(1.0)\n"
    policy = load_text("p", text + "\n\ndef route_key(x):\n    return x\n", Path("p.py"))

    assert policy.waiting_key(None, None) == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no `route_key`; define route_key(request, replica), which returns a number"),
        ("import os\n", "a router imports nothing but `math`"),
        ("ENGINE = {'max_num_seqs': 3}\n", "a router sets no engine"),
        ("def route_key(request, engine):\n    return 1\n", "must take (request, replica)"),
        (
            "def route_key(request, replica):\n    return request.output_len\n",
            "a router cannot see the true output length",
        ),
        (
            "def route_key(request, replica):\n    return replica.num_runing\n",
            "Did you mean 'num_running'?",
        ),
        (
            "def route_key(request, replica):\n    return replica.session\n",
            "Write request.session.",
        ),
        ("def route_key(request, replica):\n    return replica\n", "`replica` is a row"),
        ("def route_key(request, replica):\n    return 1\n" * 2, "defined twice"),
        ("def route_ky(request, replica):\n    return 1\n", "Did you mean 'route_key'?"),
        ("def route_key(request, replica):\n    while True:\n        pass\n", "could never end"),
    ],
)
def test_what_no_router_may_be_is_refused_in_one_line(text, message):
    with pytest.raises(PolicyError) as raised:
        load_router("mine", text, Path("mine.py"))

    assert message in str(raised.value)
    assert str(raised.value).startswith("mine.py")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("least_loadd", "there is no router 'least_loadd'. Did you mean 'least_loaded'? Known: "),
        ("./nowhere.py", "there is no such file"),
        ("power_of_two(CHOICE=3)", "router 'power_of_two' has no parameter 'CHOICE'"),
        (7, "a router is given by name or path, got 7"),
    ],
)
def test_a_router_that_is_not_there_is_refused_in_one_line(spec, message):
    with pytest.raises(PolicyError) as raised:
        get_router(spec)

    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_router_is_compiled_once():
    router = load(
        "if replica.num_sent > 1:", "    return 1", "return math.inf", head="import math\n"
    )
    assert compile_router(router) is compile_router(router)
