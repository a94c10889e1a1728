"""Tests of ``tuner.cli.completion``: as a function, and in bash itself."""

import shutil
import subprocess
import sys

import pytest

from tuner.cli.commands import COMMANDS
from tuner.cli.completion import complete


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("tuner rec", ["recommend "]),
        ("tuner bud", ["budget=", *(f"budget.{each}=" for each in ("time_s", "trials"))]),
        ("tuner budget=", ["default ", "quick ", "thorough "]),
        ("tuner framework=torch7 goal=a", ["accuracy "]),
        ("tuner framework=torch7 see", ["seed="]),
        ("tuner tune experiment=c", ["cross_framework "]),
        ("tuner runtimes ", ["list ", "install ", "check ", "remove ", "framework_path="]),
        ("tuner runtimes install torch_", ["torch_blas "]),
        ("tuner recommend max_m", ["max_memory_mb="]),
        ("tuner help stu", ["studies "]),
        ("tuner completion ", []),
        ("tuner seed=", []),
        ("tuner nonsense ", []),
    ],
)
def test_what_the_last_word_may_become(line, found):
    assert complete(line, COMMANDS)[: len(found)] == found
    assert found or complete(line, COMMANDS) == []


def test_an_empty_line_offers_all_commands():
    assert {f"{name} " for name in COMMANDS} < set(complete("tuner ", COMMANDS))
    assert complete("tuner", COMMANDS) == complete("tuner ", COMMANDS)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_completes():
    tuner = f'{sys.executable} -m tuner "$@"'
    program = (
        f'tuner() {{ {tuner}; }}; eval "$(tuner completion)"; complete -p tuner; '
        'COMP_LINE="tuner framework=mx more"; COMP_POINT=18; _tuner tuner; '
        'printf "<%s>" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "complete -o nospace -F _tuner tuner\n<mxnet >"
