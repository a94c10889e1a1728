"""GPUs are told by their files in /dev, and by the files that programs map."""

from __future__ import annotations

import pytest

from tuner.measure import gpu_files, gpu_names, gpus, loads_gpu_library, opened_gpu

CUDA = "/venv/nvidia/cu13/lib/libcudart.so.13"
DRIVER = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04"
HIP = "/opt/rocm/lib/libamdhip64.so.6"


@pytest.fixture
def dev(tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "_DEV", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("present", "shown"),
    [
        ([], []),
        (["dri", "fuse"], []),
        (["nvidiactl", "nvidia-uvm"], []),
        (
            ["nvidia0", "nvidiactl", "nvidia-uvm", "dri"],
            ["nvidia-uvm", "nvidia0", "nvidiactl"],
        ),
        (["kfd", "dri"], ["dri", "kfd"]),
    ],
    ids=["nothing", "a display", "a driver alone", "NVIDIA", "AMD"],
)
def test_a_gpu_is_there_if_its_own_file_is(dev, present, shown):
    for each in present:
        (dev / each).touch()
    assert [each.name for each in gpu_files()] == shown
    assert gpu_names() == ("of unknown kind" if shown else "")


def test_libraries_count_for_the_gpus_of_this_machine(dev):
    assert not loads_gpu_library([CUDA, DRIVER, HIP])
    (dev / "nvidia0").touch()
    assert loads_gpu_library([CUDA])
    assert loads_gpu_library([DRIVER])
    assert not loads_gpu_library([HIP, "/venv/libcudart_static_not.a", "/venv/torch/libtorch.so"])
    (dev / "kfd").touch()
    assert loads_gpu_library([HIP])


def test_a_program_that_has_a_gpu_open_is_known_by_what_it_maps():
    assert opened_gpu([CUDA, "/dev/nvidia0"])
    assert not opened_gpu([CUDA, DRIVER, "/dev/zero"])


def test_the_names_are_those_that_the_driver_tells(dev):
    (dev / "nvidia0").touch()
    tool = dev / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H100, 580.1'\necho 'NVIDIA H100, 580.1'\n")
    tool.chmod(0o755)
    assert gpu_names() == "NVIDIA H100, 580.1; NVIDIA H100, 580.1"
    tool.write_text("#!/bin/sh\necho 'no devices were found'\nexit 6\n")
    assert gpu_names() == "of unknown kind"
