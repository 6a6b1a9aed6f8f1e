"""Kernels in pieces on Numba's threads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from bench.kernel_inputs import bind, make_job
from qgelu import AccumulatorParams, QParams, make_plan
from qgelu.kernels import parallel
from qgelu.kernels.cpu import target
from qgelu.kernels.registry import IMPLEMENTATIONS

ROOT = Path(__file__).parents[1]
OFFERED = [
    item for item in IMPLEMENTATIONS if item.features <= target()[2] and item.kernel not in ("pack_4", "unpack_4")
]
PLAN = make_plan(AccumulatorParams(3e-5), QParams(0.02, 9))
SOURCE = np.random.default_rng(4).integers(-(2**18), 2**18, (400, 1000)).astype(np.int32)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", OFFERED, ids=lambda item: f"{item.kernel}-{item.path}")
def test_pieces_make_the_whole(implementation):
    job = make_job(implementation.kernel, (7, 136))
    kernel = bind(job, implementation)
    for count in (1, 2, 3, 7):
        out = np.zeros_like(job.expected)
        assert kernel.run_in_pieces(job.bias, job.source.reshape(-1), out.reshape(-1), 136, count)
        assert np.array_equal(out, job.expected)


def test_signed_codes_in_pieces():
    plan = make_plan(QParams(0.05, 0, 8, signed=True), QParams(0.03, 0, 8, signed=True))
    codes = np.random.default_rng(1).integers(-128, 128, (1200, 1000)).astype(np.int8)
    assert np.array_equal(plan(codes, threads=2), plan(codes))


def test_fewer_threads_for_one_call_only():
    before = numba.get_num_threads()
    seen = []
    function = lambda *_: seen.append(numba.get_num_threads())  # noqa: E731
    assert parallel._TEAM.run(function, SOURCE, SOURCE, 1, 1, ()) is True
    assert seen == [1]
    assert numba.get_num_threads() == before


def test_a_busy_team_does_nothing():
    out = np.zeros(SOURCE.shape, np.uint8)
    with parallel._TEAM.lock:
        assert not PLAN.kernel(1).run_in_pieces(None, SOURCE.reshape(-1), out.reshape(-1), 1, 2)
        assert not out.any()
        assert np.array_equal(PLAN(SOURCE, threads=2), PLAN(SOURCE))


def test_an_error_leaves_the_team_free():
    def fail(*_):
        raise KeyError

    with pytest.raises(KeyError):
        parallel._TEAM.run(fail, SOURCE, SOURCE, 1, 2, ())
    assert not parallel._TEAM.lock.locked()


def test_a_layer_for_one_caller_is_used_no_more(monkeypatch):
    monkeypatch.setattr(parallel, "THREAD_SAFE_LAYERS", frozenset())
    monkeypatch.setattr(parallel, "_TEAM", parallel._Team())
    kernel = PLAN.kernel(1)
    out = np.zeros(SOURCE.shape, np.uint8)
    arguments = (None, SOURCE.reshape(-1), out.reshape(-1), 1, 2)
    assert kernel.run_in_pieces(*arguments)
    assert not kernel.run_in_pieces(*arguments)
    assert np.array_equal(out, PLAN(SOURCE))


def run_python(code, *arguments, **variables):
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_threads_in_a_fork():
    """GNU OpenMP ends a forked process that enters it after its parent did."""
    done = run_python(
        "import os, sys\n"
        "import numpy as np\n"
        "import qgelu\n"
        "plan = qgelu.make_plan(qgelu.AccumulatorParams(3e-5), qgelu.QParams(0.02, 9))\n"
        "source = np.arange(-200_000, 200_000, dtype=np.int32)\n"
        "expected = plan(source, threads=2)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(7 if np.array_equal(plan(source, threads=2), expected) else 8)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert done.returncode == 7, done.stderr


@pytest.mark.slow
def test_what_was_compiled_is_found_again(tmp_path):
    code = (
        "import json\n"
        "import numpy as np\n"
        "import qgelu\n"
        "from qgelu.kernels import parallel\n"
        "plan = qgelu.make_plan(qgelu.AccumulatorParams(3e-5), qgelu.QParams(0.02, 9))\n"
        "plan(np.zeros(400_000, np.int32), threads=2)\n"
        "number = parallel.IMPLEMENTATIONS.index(plan.kernel(1)._implementation)\n"
        "stats = parallel._make(number, parallel.VERSION).stats\n"
        "print(json.dumps([sum(stats.cache_hits.values()), sum(stats.cache_misses.values())]))\n"
    )
    runs = [run_python(code, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2)]
    assert [json.loads(run.stdout) for run in runs] == [[0, 1], [1, 0]], runs[1].stderr


@pytest.mark.slow
def test_functions_cached_by_different_processes_stay_apart(tmp_path):
    """Numba numbers functions within a process: those of two processes may have the same number."""
    paths = [item.path for item in OFFERED if item.kernel == "narrow"]
    code = (
        "import sys\n"
        "import numpy as np\n"
        "from bench.kernel_inputs import bind, make_job\n"
        "from qgelu.kernels.registry import IMPLEMENTATIONS\n"
        "job = make_job('narrow', (4, 136))\n"
        "for path in sys.argv[1:]:\n"
        "    implementation = next(i for i in IMPLEMENTATIONS if (i.kernel, i.path) == ('narrow', path))\n"
        "    kernel, out = bind(job, implementation), np.zeros_like(job.expected)\n"
        "    kernel.run_in_pieces(job.bias, job.source.reshape(-1), out.reshape(-1), 136, 2)\n"
        "    assert np.array_equal(out, job.expected), path\n"
    )
    if len(paths) == 1:
        pytest.skip("CPU with one path")
    for chosen in ([paths[0]], [paths[-1]], paths):
        done = run_python(code, *chosen, NUMBA_CACHE_DIR=str(tmp_path))
        assert done.returncode == 0, done.stderr
