"""The doctor says what is there, what lacks, and what helps."""

from __future__ import annotations

import pytest

from tuner.cli.doctor import MACHINE, Finding, diagnose, format_findings, is_well
from tuner.config.catalogue import load_framework
from tuner.config.schema import FrameworkConfig, RuntimeConfig
from tuner.runtimes import find_runtime, venv

# what runs here is not only Python of ours: slower where neighbours take the CPU
pytestmark = pytest.mark.timeout(20)


def framework(kind: str, **settings) -> FrameworkConfig:
    return FrameworkConfig(name="example", runtime=RuntimeConfig(kind=kind, **settings))


def of(findings: list[Finding], subject: str) -> list[Finding]:
    return [each for each in findings if each.subject == subject]


def test_the_machine_is_described_and_each_lack_has_a_remedy(tmp_path):
    findings = of(diagnose([], tmp_path), MACHINE)
    for word in ("Python", "cores", "memory", "free", "taskset", "bwrap", "mmdebstrap", "/proc"):
        assert [each for each in findings if word in each.fact], word
    assert all(each.ok != bool(each.remedy) for each in findings)


def test_nothing_is_made_by_looking(tmp_path):
    diagnose([load_framework("caffe"), framework("system")], tmp_path / "home")
    assert not (tmp_path / "home").exists()


def test_missing_programs_are_named_with_their_packages(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    text = format_findings(diagnose([load_framework("caffe")], tmp_path / "home"))
    for line in text.splitlines():
        if "mmdebstrap is not" in line or "bwrap is not" in line:
            assert line.startswith("lacks")
            assert "apt-get install -y" in line
    assert "caffe    debian: mmdebstrap is not on PATH" in text
    assert "taskset" in text


def test_an_installed_runtime_is_found(tmp_path):
    config = framework("system", interpreter="{python}")
    assert "system: ok" in of(diagnose([config], tmp_path), "example")[0].fact
    find_runtime(config, tmp_path).install()
    (finding,) = of(diagnose([config], tmp_path), "example")
    assert finding.ok
    assert "installed in" in finding.fact


@pytest.mark.parametrize(
    ("config", "fact", "remedy"),
    [
        (framework("system", interpreter="no-such"), "no-such was not found", "PATH"),
        (framework("venv", interpreter="1.4"), "no working Python 1.4", "pyenv install 1.4"),
        (framework("other"), "got 'other'", ""),
        (framework("system", interpreter="{python}", size_mb=10**9), "MB of disk", "TUNER_HOME"),
        (framework("venv", interpreter="3", install="never"), "install=never", "runtimes install"),
    ],
)
def test_what_a_framework_lacks_is_said(monkeypatch, config, fact, remedy, tmp_path):
    monkeypatch.setattr(venv, "find_uv", lambda: "")
    finding = of(diagnose([config], tmp_path), "example")[0]
    assert not finding.ok
    assert fact in finding.fact
    assert remedy in finding.remedy


def test_lines_are_aligned_and_carry_the_remedy():
    text = format_findings(
        [Finding("machine", True, "2 cores"), Finding("caffe", False, "no bwrap", "get it")]
    )
    assert text == "ok      machine  2 cores\nlacks   caffe    no bwrap: get it"
    assert format_findings([]) == ""


def test_what_only_the_user_can_have_is_absent_and_the_machine_still_well(tmp_path):
    check = "import no_such_module"
    config = framework("system", interpreter="{python}", check=check)
    findings = of(diagnose([config], tmp_path), "example")
    assert "no_such_module" in findings[0].fact
    assert format_findings(findings).startswith("absent  example")
    assert is_well(findings)
    assert not is_well([Finding("caffe", False, "no bwrap", "get it")])
