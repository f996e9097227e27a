"""``queuesmith serve`` starts vLLM with the plug-in, or says why it cannot."""

import json
import signal
import sys

import pytest

import queuesmith.deploy.plugin
from queuesmith.deploy.options import PluginOptions
from queuesmith.deploy.serve import Command, build_command, start

PLUGIN = "queuesmith.deploy.plugin.make_scheduler"


@pytest.fixture
def vllm(monkeypatch):
    """Pretend that some version of vLLM is installed; None for none."""

    def vllm(version):
        monkeypatch.setattr(queuesmith.deploy.plugin, "installed_version", lambda: version)

    vllm("0.32.0")
    return vllm


def test_the_command_is_printed(run, vllm):
    ran = run("serve", "some/model", "--policy", "sjf", "--max-num-seqs", 8, "-tp", 2, "--dry-run")

    assert ran.code == 0
    assert ran.err == ""
    assert ran.out.strip() == (
        f"QUEUESMITH_POLICY=sjf {sys.executable} -m vllm.entrypoints.openai.api_server "
        f"--model some/model --scheduler-cls {PLUGIN} --max-num-seqs 8 -tp 2"
    )


def test_options_of_both_may_be_mixed_and_the_json_says_the_same(run, vllm):
    ran = run(
        *("serve", "m", "--max-num-seqs=8", "--policy", "hrrn", "--no-enable-prefix-caching"),
        *("--shadow", "--max-wait", 5, "--kv-transfer-config", '{"a": 1}', "--dry-run", "--json"),
    )
    document = json.loads(ran.out)

    assert document["command"][6:] == [
        *(PLUGIN, "--max-num-seqs=8", "--no-enable-prefix-caching"),
        *("--kv-transfer-config", '{"a": 1}'),
    ]
    assert document["environment"] == {
        "QUEUESMITH_POLICY": "hrrn",
        "QUEUESMITH_SHADOW": "True",
        "QUEUESMITH_MAX_WAIT": "5.0",
    }


def test_a_bundle_brings_its_settings():
    command = build_command("m", PluginOptions("sarathi"), [])

    assert command.arguments[-2:] == ("--max-num-scheduled-tokens", "512")
    unchunked = build_command("m", PluginOptions("vllm_unchunked"), [])
    assert "--no-enable-chunked-prefill" in unchunked.arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--policy", "sfj"], "Did you mean 'sjf'"),
        (["--policy", "srpt_oracle"], "true output length"),
        (["--policy", "sjf", "--scheduling-policy", "priority"], "policy named priority"),
        (["--policy", "sjf", "--scheduler-cls=mine.Scheduler"], "take the plug-in's place"),
        (["--policy", "sarathi", "--max-num-scheduled-tokens", "64"], "is a bundle"),
        (["--policy", "sjf", "--max-wait", "0"], "max_wait must be positive"),
    ],
)
def test_what_does_not_go_together_is_refused(refused, vllm, options, message):
    assert message in refused("serve", "m", *options, "--dry-run")


def test_a_policy_is_needed(refused):
    assert "--policy" in refused("serve", "m")


def test_without_vllm_nothing_starts(refused, vllm):
    vllm(None)

    assert "vLLM is not installed here; install vllm 0.32.0" in refused(
        "serve", "m", "--policy", "sjf"
    )


def test_an_untested_vllm_is_refused_unless_it_is_wanted(refused, run, vllm):
    vllm("0.99.1")

    message = refused("serve", "m", "--policy", "sjf")
    assert "vLLM 0.99.1 is installed and this plug-in was tested with 0.32.0 only" in message
    assert "--allow-untested" in message
    assert run("serve", "m", "--policy", "sjf", "--dry-run").err.startswith("note: vLLM 0.99.1")
    allowed = run("serve", "m", "--policy", "sjf", "--dry-run", "--allow-untested")
    assert (allowed.err, allowed.code) == ("", 0)
    assert "QUEUESMITH_ALLOW_UNTESTED=True" in allowed.out


def test_the_server_gets_its_environment_and_its_exit_status_comes_back(vllm):
    code = (
        "import os, sys; folder = os.environ['PROMETHEUS_MULTIPROC_DIR'];"
        "sys.exit(7 if os.path.isdir(folder) and os.environ['QUEUESMITH_POLICY'] == 'sjf' else 1)"
    )
    command = Command((sys.executable, "-c", code), {"QUEUESMITH_POLICY": "sjf"})

    assert start(command, allow_untested=False) == 7


def test_a_signal_is_passed_on_to_the_server(vllm):
    code = "import os, signal; os.kill(os.getppid(), signal.SIGTERM); signal.pause()"
    before = signal.getsignal(signal.SIGTERM)

    assert start(Command((sys.executable, "-c", code), {}), allow_untested=False) == -signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
