"""The model and the data that ship with the demo are what their docstring says."""

import numpy as np
import onnx
import onnxruntime
import pytest

from qgelu import demo

LARGEST_FILE = 500_000


@pytest.fixture(scope="module")
def session():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    return onnxruntime.InferenceSession(demo.model_path(), options, providers=["CPUExecutionProvider"])


def test_files_are_small():
    folder = demo.model_path().parent
    for name in ("digits_vit.onnx", "digits.npz"):
        assert 0 < (folder / name).stat().st_size < LARGEST_FILE


def test_model_is_one_valid_file_without_traces_of_where_it_was_made():
    model = onnx.load(demo.model_path())
    onnx.checker.check_model(model, full_check=True)
    assert not any(node.doc_string or node.metadata_props for node in model.graph.node)
    assert b"site-packages" not in model.SerializeToString()


def test_accuracy_on_onnx_runtime(session):
    feeds, labels = demo.load_test()
    (logits,) = session.run(["logits"], feeds)
    assert np.mean(logits.argmax(axis=1) == labels) >= 0.97


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_batch_is_dynamic(session, batch):
    feeds, _ = demo.load_test()
    (whole,) = session.run(["logits"], feeds)
    (part,) = session.run(["logits"], {"images": feeds["images"][:batch]})
    np.testing.assert_allclose(part, whole[:batch], rtol=0, atol=1e-4)


def test_calibration_images_are_as_the_model_takes_them_and_not_test_images():
    calibration = demo.load_calibration()["images"]
    feeds, labels = demo.load_test()
    test = feeds["images"]
    assert calibration.dtype == test.dtype == np.float32
    assert calibration.shape == (256, 1, 8, 8)
    assert test.shape == (600, 1, 8, 8)
    assert (calibration.min(), calibration.max()) == (test.min(), test.max()) == (0, 1)
    assert np.all(np.bincount(labels, minlength=10) >= 50)
    seen = {image.tobytes() for image in calibration}
    assert not any(image.tobytes() in seen for image in test)


def test_activations_reach_the_dip_and_both_ends():
    model = onnx.load(demo.model_path())
    erf_inputs = [node.input[0] for node in model.graph.node if node.op_type == "Erf"]
    assert len(erf_inputs) == 3
    model.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in erf_inputs
    )
    probe = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for halved in probe.run(erf_inputs, demo.load_test()[0]):
        x = halved * np.sqrt(2)
        assert x.min() < -4
        assert x.max() > 2
        assert np.mean((x > -1.5) & (x < -0.3)) > 0.2
