import subprocess
import sys

import pytest

import calibration


def test_every_public_name_is_there():
    for name in calibration.__all__:
        assert getattr(calibration, name).__name__ == name
    assert set(calibration.__all__) <= set(dir(calibration))
    assert sorted(calibration._HOMES) == calibration.__all__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = calibration.nothing


def test_the_import_is_light():
    """No numpy until a name is used, no runtime until a model is run, and of qgelu only the two modules."""
    script = (
        "import sys, calibration\n"
        "assert not {'numpy', 'onnx', 'onnxruntime', 'numba'} & set(sys.modules)\n"
        "for name in calibration.__all__: getattr(calibration, name)\n"
        "assert not {'onnx', 'onnxruntime', 'numba'} & set(sys.modules), sorted(sys.modules)\n"
        "ours = {name for name in sys.modules if name.startswith('qgelu.')}\n"
        "assert ours == {'qgelu.activations', 'qgelu.qparams', 'qgelu.errors'}, ours\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
