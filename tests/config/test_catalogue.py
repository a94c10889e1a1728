"""Frameworks, data sets and setting files are found by name, or refused with those there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import SYNTHETIC
from tuner.config.catalogue import (
    find_setting_file,
    framework_folder,
    framework_roots,
    list_datasets,
    list_frameworks,
    load_dataset_config,
    load_framework,
    project_folder,
    tuner_home,
    worker_script,
)
from tuner.config.schema import FrameworkConfig
from tuner.values.errors import ConfigError


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    for name in ("TUNER_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tuner_home() == tmp_path / ".cache" / "tuner"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert tuner_home() == tmp_path / "xdg" / "tuner"
    monkeypatch.setenv("TUNER_HOME", "~/cache")
    assert tuner_home() == tmp_path / "cache"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUNER_HOME", "here")
    assert tuner_home() == tmp_path / "here"
    monkeypatch.setenv("TUNER_HOME", "")
    assert tuner_home() == tmp_path / "xdg" / "tuner"


def test_a_tree_of_the_users_own_comes_first(monkeypatch):
    monkeypatch.chdir(SYNTHETIC.parent)
    assert framework_roots()[:-1] == []
    assert framework_roots("synthetic")[0] == SYNTHETIC
    assert framework_roots("synthetic")[1:] == framework_roots()
    assert list_frameworks("synthetic") == sorted([*list_frameworks(), "synthetic"])
    assert "synthetic" not in list_frameworks()
    folder = framework_folder("synthetic", str(SYNTHETIC))
    assert folder == SYNTHETIC / "frameworks" / "synthetic"


def test_a_framework_may_have_the_worker_of_another():
    assert worker_script(load_framework("torch_blas")) == worker_script(load_framework("torch"))
    own = worker_script(load_framework("synthetic", str(SYNTHETIC)), str(SYNTHETIC))
    assert own == SYNTHETIC / "frameworks" / "synthetic" / "worker.py"


def test_a_user_may_replace_a_framework_of_the_project(tmp_path):
    (tmp_path / "frameworks" / "caffe").mkdir(parents=True)
    (tmp_path / "conf" / "framework").mkdir(parents=True)
    own = tmp_path / "conf" / "framework" / "caffe.yaml"
    own.write_text("name: caffe\ntitle: My Caffe\n")
    assert framework_folder("caffe", str(tmp_path)) == tmp_path / "frameworks" / "caffe"
    assert find_setting_file("conf/framework", "caffe", str(tmp_path)) == own
    assert load_framework("caffe", str(tmp_path)).title == "My Caffe"
    assert load_framework("caffe").title != "My Caffe"
    # what the tree lacks is still the project's
    assert find_setting_file("search_spaces", "caffe", str(tmp_path)).is_file()


def test_an_unknown_framework_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match=r"unknown framework 'cafe'; choose from: .*synthetic"):
        framework_folder("cafe", str(SYNTHETIC))
    with pytest.raises(ConfigError, match="choose from: "):
        load_framework("cafe")


@pytest.mark.parametrize(
    ("group", "kind", "known"),
    [
        ("conf/framework", "framework", "caffe"),
        ("conf/dataset", "dataset", "mnist"),
        ("search_spaces", "search space", "caffe"),
    ],
)
def test_a_missing_setting_file_is_named_with_those_there_are(group, kind, known):
    with pytest.raises(ConfigError) as refused:
        find_setting_file(group, "nothing")
    message = str(refused.value)
    assert message.startswith(f"unknown {kind} 'nothing'; choose from: ")
    assert known in message
    assert "synthetic" not in message
    if group != "conf/dataset":
        with pytest.raises(ConfigError, match=f"{known}.*synthetic"):
            find_setting_file(group, "nothing", str(SYNTHETIC))


@pytest.mark.parametrize(
    "text", ["titel: Caffe", "stall_limit_s: soon", "blas: [mkl]", "a: [", "just words"]
)
def test_a_framework_file_with_a_fault_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "frameworks" / "mine").mkdir(parents=True)
    (tmp_path / "conf" / "framework").mkdir(parents=True)
    path = tmp_path / "conf" / "framework" / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_framework("mine", str(tmp_path))
    assert str(refused.value).startswith(f"{path} cannot be read: ")
    assert "\n" not in str(refused.value)


def test_datasets_are_listed_and_load():
    names = list_datasets()
    assert {"mnist", "mnist_5k", "digits"} <= set(names)
    assert [load_dataset_config(name).name for name in names] == names
    with pytest.raises(ConfigError, match=r"choose from: .*digits"):
        load_dataset_config("imagenet")


def test_frameworks_load_as_plain_values():
    framework = load_framework("synthetic", str(SYNTHETIC))
    assert type(framework) is FrameworkConfig
    assert framework.runtime.kind == "system"
    assert type(framework.blas) is dict


def test_the_projects_own_folders_are_found():
    for name in ("conf", "search_spaces"):
        assert project_folder(name).is_dir()
        assert isinstance(project_folder(name), Path)


@pytest.mark.parametrize("name", ["../caffe", "/etc/passwd", "x" * 300, "", "a/../caffe"])
def test_a_framework_is_never_a_path(name):
    with pytest.raises(ConfigError, match="unknown framework"):
        load_framework(name)
