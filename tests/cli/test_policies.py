"""``queuesmith policies``: a list, an explanation, a check."""

import json
import re
from pathlib import Path

import pytest

from queuesmith.policies import get_policy, policy_names

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "compare_json.md"


def test_every_policy_is_listed_with_its_summary(run):
    ran = run("policies")

    listed = [line.split()[0] for line in ran.out.splitlines() if line and line[0] != " "]
    assert set(policy_names()) <= set(listed)
    assert "oracle, not deployable" in ran.out
    assert ran.err == ""


def test_a_policy_is_explained_with_its_text(run):
    out = run("policies", "aged_sjf").out

    assert out.startswith("aged_sjf\n")
    assert "Caution: " in out
    assert "Parameters: SECONDS_PER_TOKEN=0.003" in out
    assert "def waiting_key(request, engine):" in out


def test_json_lists_the_same_policies(run):
    document = json.loads(run("policies", "--json").out)

    assert document["schema"] == "queuesmith.policies/1"
    assert [policy["name"] for policy in document["policies"]] == policy_names()


def test_json_of_one_policy_is_a_list_of_one(run):
    (policy,) = json.loads(run("policies", "aged_sjf(SECONDS_PER_TOKEN=0.5)", "--json").out)[
        "policies"
    ]

    assert policy["name"] == "aged_sjf(SECONDS_PER_TOKEN=0.5)"
    assert policy["parameters"] == {"SECONDS_PER_TOKEN": 0.5}
    assert policy["sha256"] == get_policy(policy["name"]).sha256


def test_the_page_names_every_key(run):
    document = json.loads(run("policies", "fcfs", "--check", "--json").out)

    named = set(re.findall(r"`([^`]+)`", PAGE.read_text().partition("\n## policies\n")[2]))
    assert {*document, *document["policies"][0]} <= named
    assert "checked" in document["policies"][0]


def test_a_file_that_keeps_the_contract_passes_its_check(run, policy_file):
    path = policy_file("return request.num_prompt_tokens + engine.num_running")

    ran = run("policies", path, "--check")

    assert ran.code == 0
    assert ran.out.startswith("mine: keeps the contract\n")
    assert "checked: " in ran.out


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 1 / engine.num_running", "ZeroDivisionError"),
        ("return request.output_len", "has no field 'output_len'"),
    ],
)
def test_a_file_that_breaks_the_contract_fails_its_check(refused, policy_file, body, message):
    assert message in refused("policies", policy_file(body), "--check")


def test_the_check_finds_what_differs_between_compiled_and_plain_python(refused, policy_file):
    """The logarithm of 0 raises in Python; compiled it is -inf."""
    path = policy_file("return math.log(request.num_computed_tokens)", head="import math\n\n\n")

    assert "waiting_key" in refused("policies", path, "--check")


def test_an_unknown_name_comes_with_a_suggestion(refused):
    message = refused("policies", "agedsjf")

    assert "there is no policy 'agedsjf'. Did you mean 'aged_sjf'?" in message


BUNDLES = {
    "seats": ({"max_num_seqs": 64, "max_num_batched_tokens": 4096}, 2),
    "threshold": ({"long_prefill_token_threshold": 2048, "max_num_seqs": 512}, 2),
    "blocks": ({"block_size": 32, "watermark": 0.05}, 2),
    "small": ({"long_prefill_token_threshold": 8, "max_num_seqs": 12}, 0),
}


@pytest.mark.parametrize("name", BUNDLES)
def test_a_bundle_of_any_size_keeps_the_contract(run, tmp_path, name):
    settings, num_others = BUNDLES[name]
    key = "def waiting_key(request, engine):\n    return request.arrival_time\n"
    (tmp_path / f"{name}.py").write_text(f"ENGINE = {settings}\n\n\n{key}")

    ran = run("policies", f"./{name}.py", "--check")

    assert ran.code == 0, ran.err
    said = " ".join(ran.out.split())
    others = said.partition("the small engines that were compared do not have its ")[2]
    assert others == ", ".join(list(settings)[:num_others])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("(request.priority, request.arrival_time)", "return 1e10 * (request.priority) + "),
        ("'urgent'", "give each class a number in its place"),
    ],
)
def test_a_key_that_is_no_number_is_refused_with_what_can_be_written(
    refused, tmp_path, value, said
):
    (tmp_path / "mine.py").write_text(f"def waiting_key(request, engine):\n    return {value}\n")

    assert said in refused("policies", "./mine.py", "--check")


def test_explain_shows_a_small_queue_in_order(run):
    ran = run("policies", "sjf", "--explain")

    rows = [line.split() for line in ran.out.splitlines() if " s " in line]
    assert ran.code == 0
    assert [row[3] for row in rows] == ["100", "200", "1,500", "1,500", "6,000", "30,000"]


def test_explain_is_about_one_policy(refused):
    assert "--explain prints the queue of one policy" in refused("policies", "--explain")


@pytest.mark.parametrize("options", [(), ("--json",), ("--check",), ("--explain",)])
def test_no_text_of_a_file_steers_the_terminal(run, tmp_path, options):
    path = tmp_path / "mine.py"
    path.write_text(
        '"""Sum\x1b[2Jmary \u202e\\ud800.\n\nKnows:   a\x1b]0;x\x07b\n"""\n'
        "def waiting_key(request, engine):\n"
        "    return request.arrival_time  # \x1b[2J\n"
    )

    ran = run("policies", str(path), *options)

    assert ran.code == 0
    assert all(each.isprintable() or each == "\n" for each in ran.out + ran.err)


def test_no_error_line_steers_the_terminal(run):
    ran = run("simu\x1b[2J\ud800late")

    assert ran.code == 2
    assert "simu\\x1b[2J\\ud800late" in ran.err
    assert ran.err.count("\n") == 1
