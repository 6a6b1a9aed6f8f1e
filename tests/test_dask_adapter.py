"""The observers as tasks on a local Dask cluster: the same result as one run, and what goes wrong in one line."""

import importlib.util
import json
import os
import signal
import sys
import warnings

import numpy as np
import pytest

from calibration import Calibration, CalibrationError, TensorRequest, capture, open_data
from calibration.dask_adapter import calibrate_with_dask
from calibration.inputs import input_specs
from qgelu import cli
from qgelu.demo import load_calibration, model_path
from qgelu.graph.model_file import load_model
from qgelu.pipeline import calibrate

if importlib.util.find_spec("distributed") is None or importlib.util.find_spec("dask") is None:
    pytest.skip("Dask is not installed: install qgelu[dask]", allow_module_level=True)

# Dask's own warnings, of the event loop's end among them, are none of ours.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def client():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from distributed import Client, LocalCluster

        with (
            LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
            Client(cluster, set_as_default=False) as client,
        ):
            yield client


@pytest.fixture
def model():
    return load_model(model_path())


@pytest.fixture
def folder(tmp_path):
    """Eleven batches of different sizes and ranges."""
    images = load_calibration()["images"]
    path = tmp_path / "batches"
    path.mkdir()
    ends = [0, 1, 4, 9, 16, 25, 36, 49, 64, 81, 100, 121]
    for number, (first, last) in enumerate(zip(ends, ends[1:], strict=False)):
        np.savez(path / f"{number:02}.npz", images=images[first:last] * np.float32(1.5**number))
    return path


def assert_same(found, expected):
    """All but the two sums to the last bit, these to rounding."""
    assert (found.model_digest, found.samples, found.mask) == (
        expected.model_digest,
        expected.samples,
        expected.mask,
    )
    assert list(found.tensors) == list(expected.tensors)
    for name, one in expected.tensors.items():
        ours, theirs = found.tensors[name].to_dict(), one.to_dict()
        for key in ("sum", "sum_of_squares"):
            assert ours.pop(key) == pytest.approx(theirs.pop(key), rel=1e-12, abs=1e-9)
        assert ours == theirs


def test_the_result_is_that_of_one_run(client, model, folder):
    steps = []
    found = calibrate(model, str(folder), dask=client, progress=lambda *step: steps.append(step))
    expected = calibrate(model, str(folder), threads=1)
    assert_same(found, expected)
    assert found.samples == 121
    assert steps == [("calibrate", done, 8) for done in range(1, 9)]
    # The same to the last bit again, sums too: the order of merges is that of the data.
    assert calibrate(model, str(folder), dask=client) == found


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7])
def test_any_number_of_parts(client, model, folder, count):
    files = sorted(folder.iterdir())[:count]
    parts = [dict(np.load(file)) for file in files]
    found = calibrate(model, parts, dask=client)
    assert_same(found, calibrate(model, parts, threads=1))


def test_address_and_command(client, folder, tmp_path, capfd):
    out = tmp_path / "c.json"
    arguments = ["calibrate", str(model_path()), "--data", str(folder), "-o", str(out)]
    address = client.scheduler_info()["address"]
    # A scheduler in this very process: its address works as any other does.
    assert cli.run([*arguments, "--dask", address, "--json"]) == 0, capfd.readouterr().err
    assert json.loads(capfd.readouterr().out)["samples"] == 121
    assert_same(Calibration.load(out), calibrate(str(model_path()), str(folder), threads=1))


def test_no_scheduler_is_one_line(folder, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("calibration.dask_adapter._CONNECT_SECONDS", 1.0)
    out = tmp_path / "c.json"
    arguments = ["calibrate", str(model_path()), "--data", str(folder), "-o", str(out), "--dask"]
    for address in ("tcp://127.0.0.1:9", "nowhere"):
        assert cli.run([*arguments, address]) == 2
        lines = capfd.readouterr().err.splitlines()
        assert [line for line in lines if line.startswith("error: no Dask scheduler answers at " + address)]
    assert not out.exists()


def test_without_dask_the_line_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(CalibrationError, match=r"Dask is not installed: install qgelu\[dask\]"):
        calibrate(str(model_path()), str(folder), dask="tcp://127.0.0.1:9")


def test_one_bad_part_is_named(client, model, folder):
    bad = folder / "05.npz"
    good = bad.read_bytes()
    bad.write_bytes(good[:100])
    with pytest.raises(CalibrationError, match=r"05\.npz: cannot be read as \.npz") as caught:
        calibrate(model, str(folder), dask=client)
    assert "\n" not in str(caught.value)
    np.savez(bad, images=np.full((2, 1, 8, 8), 3.4e38, np.float32))
    with pytest.raises(CalibrationError, match=r"05\.npz: tensor '.*' holds .* NaN"):
        calibrate(model, str(folder), dask=client)
    # Without Dask it is named too.
    with pytest.raises(CalibrationError, match=r"05\.npz: tensor '.*' holds .* NaN"):
        calibrate(model, str(folder))
    parts = [{"images": np.zeros((2, 1, 8, 8), np.float32)}, {"pictures": np.zeros((2, 1, 8, 8), np.float32)}]
    with pytest.raises(CalibrationError, match="part 2: data"):
        calibrate(model, parts, dask=client)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [("none", "none: cannot be read"), ([], "sequence of parts"), ({"images": 1}, "sequence of parts")],
)
def test_what_is_no_parts(client, model, parts, reason):
    with pytest.raises(CalibrationError, match=reason):
        calibrate(model, parts, dask=client)


def feeds_of_a_worker_that_dies_once(marker):
    """Kill the process the first time that a worker comes here."""

    def feeds():
        if not os.path.exists(marker):
            with open(marker, "w"):
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        return [{"images": load_calibration()["images"][:8]}]

    return feeds


def feeds_that_kill():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_workers_that_die(model, tmp_path):
    """A part whose worker died is run again; one that kills every worker is named."""
    import dask
    from distributed import Client, LocalCluster

    images = load_calibration()["images"]
    parts = [{"images": images[8 * number : 8 * number + 8]} for number in range(6)]
    one_death = [*parts, feeds_of_a_worker_that_dies_once(str(tmp_path / "marker"))]
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        found = calibrate(model, one_death, dask=client)
        expected = calibrate(model, [*parts, {"images": images[:8]}], threads=1)
        assert (tmp_path / "marker").exists()
        assert_same(found, expected)
        with pytest.raises(CalibrationError, match="part 3: workers died while they ran it") as caught:
            calibrate(model, [*parts[:2], feeds_that_kill, *parts[2:]], dask=client)
        assert "\n" not in str(caught.value)


def test_any_tensors(client, model, folder):
    requests = [TensorRequest("nothing")]
    with pytest.raises(CalibrationError, match="tensor 'nothing' is not computed in the model"):
        calibrate_with_dask(model, requests, str(folder), client)
    request = [TensorRequest("gelu", per_channel=True)]
    found = calibrate_with_dask(model, request, str(folder), client, mask=None, threads=1)
    assert_same(found, capture(model, request, open_data(str(folder), input_specs(model)), threads=1))
