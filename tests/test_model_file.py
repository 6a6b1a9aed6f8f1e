"""Reading and writing model files: one clear line on failure, and whole files or none."""

import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from site_models import ffn_model

from calibration import model_digest
from qgelu import calibrate, cli, inspect, quantize
from qgelu.errors import QGeluError
from qgelu.graph import model_file
from qgelu.graph.model_file import load_model, save_model


@pytest.fixture
def model():
    return ffn_model()


def refused(path, *words):
    with pytest.raises(QGeluError) as caught:
        load_model(path)
    text = str(caught.value)
    assert "\n" not in text
    assert path.name in text
    for word in words:
        assert word in text


def test_round_trip(model, tmp_path):
    save_model(model, tmp_path / "m.onnx")
    assert load_model(tmp_path / "m.onnx") == model
    assert load_model(str(tmp_path / "m.onnx")) == model
    assert os.listdir(tmp_path) == ["m.onnx"]


def test_missing_file_and_folder(tmp_path):
    refused(tmp_path / "none.onnx", "does not exist")
    (tmp_path / "folder").mkdir()
    refused(tmp_path / "folder", "is a folder")
    refused(tmp_path / "folder" / "none" / "m.onnx", "does not exist")
    refused(tmp_path / "bad\0name.onnx", "cannot be read")


@pytest.mark.parametrize(
    "content",
    [
        b"This is text, and no model.\n" * 10,
        b'{"irVersion": "8", "graph": {}}',
        b"\x00",
        b"\x00" * 4096,
        b"\x08\x08",
        b"PK\x03\x04" + bytes(100),
        *[np.random.default_rng(seed).bytes(3000) for seed in range(20)],
    ],
)
def test_other_content(content, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    refused(path, "is not an ONNX model")


def test_empty_file(tmp_path):
    (tmp_path / "m.onnx").touch()
    refused(tmp_path / "m.onnx", "is empty")


def test_truncated_files(model, tmp_path):
    content = model.SerializeToString()
    path = tmp_path / "m.onnx"
    for size in range(1, len(content), 7):
        path.write_bytes(content[:size])
        refused(path, "incomplete")


def test_models_without_contents(model, tmp_path):
    path = tmp_path / "m.onnx"
    for field, word in (("node", "without nodes"), ("input", "without inputs"), ("output", "without outputs")):
        lean = onnx.ModelProto()
        lean.CopyFrom(model)
        lean.graph.ClearField(field)
        path.write_bytes(lean.SerializeToString())
        refused(path, word)
    for field in ("graph", "opset_import", "ir_version"):
        lean.CopyFrom(model)
        lean.ClearField(field)
        path.write_bytes(lean.SerializeToString())
        refused(path, "damaged or incomplete")


def test_external_data(model, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="m.bin", size_threshold=0)
    loaded = load_model(path)
    original = ffn_model()  # saving with external data has emptied the other one
    assert [tensor.raw_data for tensor in loaded.graph.initializer] == [
        tensor.raw_data for tensor in original.graph.initializer
    ]
    assert model_digest(loaded) == model_digest(original)
    data = (tmp_path / "m.bin").read_bytes()
    (tmp_path / "m.bin").write_bytes(data[: len(data) // 2])
    refused(path, "m.bin", "incomplete")
    (tmp_path / "m.bin").unlink()
    refused(path, "m.bin", "missing")


@pytest.mark.parametrize("location", ["../secret.bin", "{absolute}", ""])
def test_external_data_stay_in_the_folder(model, tmp_path, location):
    (tmp_path / "secret.bin").write_bytes(bytes(4096))
    (tmp_path / "inner").mkdir()
    path = tmp_path / "inner" / "m.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="m.bin", size_threshold=0)
    lean = onnx.load_model(path, load_external_data=False)
    for tensor in lean.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location.format(absolute=tmp_path / "secret.bin")
    path.write_bytes(lean.SerializeToString())
    refused(path)


def test_damaged_external_data_entry(model, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="m.bin", size_threshold=0)
    lean = onnx.load_model(path, load_external_data=False)
    for key, value in (("offset", "many"), ("length", "-4"), ("offset", str(1 << 70))):
        broken = onnx.ModelProto()
        broken.CopyFrom(lean)
        for entry in broken.graph.initializer[0].external_data:
            if entry.key == key:
                entry.value = value
        path.write_bytes(broken.SerializeToString())
        refused(path)


def unwritable(model, path, word):
    with pytest.raises(QGeluError) as caught:
        save_model(model, path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert word in str(caught.value)


def test_where_nothing_can_be_written(model, tmp_path):
    unwritable(model, tmp_path / "none" / "m.onnx", "does not exist")
    (tmp_path / "file").write_text("a file")
    unwritable(model, tmp_path / "file" / "m.onnx", "does not exist")
    unwritable(model, tmp_path, "is a folder")
    os.mkfifo(tmp_path / "pipe")
    unwritable(model, tmp_path / "pipe", "not a regular file")
    unwritable(model, tmp_path / ("long" * 100), "cannot be written")


@pytest.mark.parametrize("step", ["replace", "fsync"])
def test_a_failed_write_leaves_everything_as_it_was(model, tmp_path, monkeypatch, step):
    path = tmp_path / "m.onnx"
    path.write_text("older")

    def fail(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(model_file.os, step, fail)
    unwritable(model, path, "Permission denied")
    assert os.listdir(tmp_path) == ["m.onnx"]
    assert path.read_text() == "older"


def test_an_interrupted_write_leaves_everything_as_it_was(model, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(model_file.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_model(model, tmp_path / "m.onnx")
    assert os.listdir(tmp_path) == []


def test_written_files_have_the_usual_permissions(model, tmp_path):
    save_model(model, tmp_path / "m.onnx")
    (tmp_path / "other").touch()
    assert (tmp_path / "m.onnx").stat().st_mode == (tmp_path / "other").stat().st_mode


def _large_model():
    model = ffn_model()
    model.doc_string = "notes"
    model.graph.doc_string = "more notes"
    model.metadata_props.add(key="author", value="someone")
    large = np.random.default_rng(0).normal(size=(4, 600)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(large, "large"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(large + 1, "larger"))
    model.graph.node.append(onnx.helper.make_node("MatMul", ["x", "large"], ["z"]))
    model.graph.output.append(onnx.ValueInfoProto(name="z"))
    model.graph.output[-1].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return model


def test_large_models_keep_their_weights_beside_them(tmp_path, monkeypatch):
    model = _large_model()
    before = model.SerializeToString()
    monkeypatch.setattr(model_file, "_LARGEST_WEIGHTS_INSIDE", 5000)
    path = tmp_path / "m.onnx"
    save_model(model, path)
    assert model.SerializeToString() == before
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.data"]
    loaded = load_model(path)
    assert model_digest(loaded) == model_digest(model)
    assert (loaded.doc_string, loaded.graph.doc_string) == ("notes", "more notes")
    assert loaded.metadata_props == model.metadata_props
    feeds = {"x": np.ones((1, 2, 4), np.float32)}
    answers = [
        onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"]).run(None, feeds)
        for source in (str(path), before)
    ]
    for found, expected in zip(*answers, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_failed_write_of_a_large_model(tmp_path, monkeypatch):
    monkeypatch.setattr(model_file, "_LARGEST_WEIGHTS_INSIDE", 5000)

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_file.os, "fsync", fail)
    unwritable(_large_model(), tmp_path / "m.onnx", "No space left")
    assert os.listdir(tmp_path) == []


def test_the_digest_sees_weights_nodes_and_opsets(model):
    reference = model_digest(model)
    assert len(reference) == 64
    assert model_digest(ffn_model()) == reference
    model.producer_name = "someone else"
    assert model_digest(model) == reference

    def changed(change):
        other = ffn_model()
        change(other)
        return model_digest(other) != reference

    def weight_bit(other):
        tensor = other.graph.initializer[0]
        tensor.raw_data = bytes([tensor.raw_data[0] ^ 1]) + tensor.raw_data[1:]

    def node(other):
        other.graph.node[0].op_type = "Sub"

    def opset(other):
        other.opset_import[0].version = 19

    assert changed(weight_bit)
    assert changed(node)
    assert changed(opset)


def test_the_whole_job_on_a_model_beyond_the_limit(tmp_path, monkeypatch):
    """All limits lowered: weights go through files from end to end, and not through protobuf's own copies."""
    monkeypatch.chdir(tmp_path)
    model = _large_model()
    del model.graph.input[0].type.tensor_type.shape.dim[1]
    onnx.save(model, "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    content = [Path(name).read_bytes() for name in ("m.onnx", "m.data")]
    np.savez("d.npz", x=np.random.default_rng(2).normal(size=(40, 4)).astype(np.float32))
    monkeypatch.setattr(model_file, "_LARGEST_WEIGHTS_INSIDE", 1000)
    monkeypatch.setattr("calibration.probe._LARGE", 0)
    monkeypatch.setattr("qgelu.sessions._SERIALIZED_LIMIT", 1000)
    monkeypatch.setattr("qgelu.graph.normal_form._LARGE", 1)
    monkeypatch.setattr("calibration.model_size.PROTOBUF_LIMIT", 1000)
    monkeypatch.setattr("calibration.model_size._ROOM", 0)
    monkeypatch.setattr("qgelu.pipeline._CHECKED_BYTES", 1000)
    assert cli.run(["quantize", "m.onnx", "--data", "d.npz", "-o", "q.onnx"]) == 0
    assert cli.run(["verify", "m.onnx", "q.onnx", "--data", "d.npz"]) == 0
    assert cli.run(["report", "m.onnx", "--data", "d.npz", "--bits", "8", "-o", "r.json"]) == 0
    assert "q.onnx.data" in os.listdir()
    assert len(load_model("q.onnx").graph.initializer) > 5
    assert [Path(name).read_bytes() for name in ("m.onnx", "m.data")] == content


def test_models_without_their_data_are_named(tmp_path):
    onnx.save(ffn_model(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    lean = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    feeds = [{"x": np.ones((1, 2, 4), np.float32)}]
    for job in (lambda: inspect(lean), lambda: calibrate(lean, feeds), lambda: quantize(lean, feeds)):
        with pytest.raises(QGeluError, match=r"tensor 'tensor_\d+' is stored outside the model and was not loaded"):
            job()
