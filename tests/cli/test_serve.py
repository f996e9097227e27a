"""``queuesmith serve`` starts vLLM with the plug-in, or says why it cannot."""

import json
import signal
import sys

import pytest

import queuesmith.deploy.plugin
from queuesmith.deploy.options import PluginOptions
from queuesmith.deploy.serve import Command, build_command, start
from queuesmith.documents import hide_secrets

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
        (["--policy", "sjf", "--scheduler-cl", "mine.Scheduler"], "take the plug-in's place"),
        (["--policy", "sjf", "--scheduler_cls=mine.Scheduler"], "take the plug-in's place"),
        (["--policy", "sjf", "--scheduling-po=priority"], "policy named priority"),
        (["--policy", "sjf", "--scheduler-cls=a", f"--scheduler-cls={PLUGIN}"], "plug-in's place"),
        (["--policy", "sjf", "--additional-config", '{"queuesmith": {}}'], "which would win"),
        (["--policy", "sjf", "--config", "nowhere.yaml"], "--config nowhere.yaml cannot be read"),
        (["--policy", "sarathi", "--max-num-scheduled-tokens", "64"], "is a bundle"),
        (["--policy", "sjf", "--max-wait", "0"], "max_wait must be positive"),
    ],
)
def test_what_does_not_go_together_is_refused(refused, vllm, options, message):
    assert message in refused("serve", "m", *options, "--dry-run")


@pytest.mark.parametrize(
    "text",
    [
        "scheduler-cls: mine.Scheduler\n",
        "model: m\n'scheduler_cls' :\n  mine.Scheduler\n",
        "{port: 80, scheduler-cls: mine.Scheduler}",
        "port: 80 # scheduler-cls\nscheduling-policy: priority # orders\n",
    ],
)
def test_a_config_file_that_names_another_scheduler_is_refused(refused, vllm, tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)

    message = refused("serve", "m", "--policy", "sjf", f"--config={path}", "--dry-run")
    assert "take the plug-in's place" in message or "orders requests as well" in message


def test_a_config_file_of_other_settings_is_passed_on(run, vllm, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("# scheduler-cls: mine\nport: 81\nmax-num-seqs: 8\nhost: 10.0.0.7\n")
    ran = run("serve", "m", "--policy", "sjf", "--config", path, "--dry-run", "--json")

    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["address"] == "10.0.0.7:81"


@pytest.mark.parametrize(
    ("options", "address"),
    [
        ([], "0.0.0.0:8000"),
        (["--host", "127.0.0.1", "--port=9000"], "127.0.0.1:9000"),
        (["--uds", "/run/vllm"], "/run/vllm"),
    ],
)
def test_it_says_where_vllm_will_listen(options, address):
    assert build_command("m", PluginOptions("sjf"), options).address == address


def test_keys_are_masked_wherever_they_are_shown(run, vllm):
    secret = ["--api-key", "one", "two", "--hf-token=three", "--port", "80"]
    secret += [
        "--kv-transfer-config",
        '{"api_key": "four", "n": 1}',
        "--served-model-name",
        "sk-12345678",
    ]
    for more in ([], ["--json"]):
        ran = run("serve", "m", "--policy", "sjf", *secret, "--dry-run", *more)
        assert ran.code == 0, ran.err
        for word in ("one", "two", "three", "four", "sk-1"):
            assert word not in ran.out.replace("--no-one", "")
        assert "80" in ran.out
    command = build_command("m", PluginOptions("sjf"), secret)
    assert "three" in " ".join(command.arguments)  # vLLM itself is given them


def test_keys_within_the_options_of_another_program_are_masked():
    (shown,) = hide_secrets(["--api-key sk --port 80 --hf-token=x"])
    assert "sk" not in shown
    assert "x" not in shown.replace("--hf-token", "")
    assert "--port 80" in shown
    assert hide_secrets(["--long-prefill-token-threshold", "512"])[1] == "512"


def test_a_policy_is_needed(refused):
    assert "--policy" in refused("serve", "m")


def test_without_vllm_nothing_starts(refused, vllm):
    vllm(None)

    assert "vLLM is not installed here; install vllm 0.33" in refused(
        "serve", "m", "--policy", "sjf"
    )


def test_an_untested_vllm_is_refused_unless_it_is_wanted(refused, run, vllm):
    vllm("0.99.1")

    message = refused("serve", "m", "--policy", "sjf")
    assert "vLLM 0.99.1 is installed and this plug-in was tested with 0.29, 0.30, 0.31, " in message
    assert "--allow-untested" in message
    assert run("serve", "m", "--policy", "sjf", "--dry-run").err.startswith("note: vLLM 0.99.1")
    allowed = run("serve", "m", "--policy", "sjf", "--dry-run", "--allow-untested")
    assert (allowed.err, allowed.code) == ("", 0)
    assert "QUEUESMITH_ALLOW_UNTESTED=True" in allowed.out


def test_the_server_gets_its_environment_and_its_exit_status_comes_back(vllm, capsys):
    code = (
        "import os, sys; folder = os.environ['PROMETHEUS_MULTIPROC_DIR'];"
        "sys.exit(7 if os.path.isdir(folder) and os.environ['QUEUESMITH_POLICY'] == 'sjf' else 1)"
    )
    environment = {"QUEUESMITH_POLICY": "sjf"}
    command = Command((sys.executable, "-c", code), environment, "0.0.0.0:8000")

    assert start(command, allow_untested=False) == 7
    assert "listen on 0.0.0.0:8000, on every network" in capsys.readouterr().err


def test_a_signal_is_passed_on_to_the_server(vllm):
    code = "import os, signal; os.kill(os.getppid(), signal.SIGTERM); signal.pause()"
    before = signal.getsignal(signal.SIGTERM)

    assert start(Command((sys.executable, "-c", code), {}), allow_untested=False) == -signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
