import io
import sys
import tracemalloc
import weakref
import zipfile

import numpy as np
import pytest

from calibration import CalibrationError, InputSpec, data, open_data

X = InputSpec("x", np.dtype(np.float32), (None, 3))
IDS = InputSpec("ids", np.dtype(np.int64), (None, None))
MASK = InputSpec("mask", np.dtype(np.int64), (None, None))


def floats(samples, width=3):
    return np.arange(samples * width, dtype=np.float32).reshape(samples, width)


def joined(source, name="x"):
    return np.concatenate([feed[name] for feed in source])


def error_of(source, inputs):
    """Return the message of going through a source that cannot be used."""
    with pytest.raises(CalibrationError) as caught:
        for _ in open_data(source, inputs):
            pass
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) > 10
    return message


def test_npz_is_cut_into_batches(tmp_path):
    np.savez(tmp_path / "d.npz", ids=np.ones((70, 5), dtype=np.int32), mask=np.ones((70, 5)))
    source = open_data(tmp_path / "d.npz", [IDS, MASK])
    assert source.count == 3
    for _ in range(2):  # any number of times
        feeds = list(source)
        assert [len(feed["ids"]) for feed in feeds] == [32, 32, 6]
        assert {array.dtype for feed in feeds for array in feed.values()} == {np.dtype(np.int64)}


def test_npy_and_mapping_and_str_path(tmp_path):
    np.save(tmp_path / "d.npy", floats(40))
    for source in (str(tmp_path / "d.npy"), tmp_path / "d.npy", {"x": floats(40)}, {"x": floats(40).tolist()}):
        np.testing.assert_array_equal(joined(open_data(source, [X])), floats(40))


@pytest.mark.parametrize(("tokens", "size"), [(5, 32), (128, 32), (512, 8), (100_000, 1)])
def test_long_sequences_come_in_smaller_batches(tokens, size):
    source = open_data({"ids": np.zeros((33, tokens), dtype=np.int64)}, [IDS])
    assert len(next(iter(source))["ids"]) == size


def test_a_fixed_batch_dimension_is_kept():
    fixed = InputSpec("x", np.dtype(np.float32), (4, 3))
    feeds = list(open_data({"x": floats(12)}, [fixed]))
    assert [len(feed["x"]) for feed in feeds] == [4, 4, 4]
    assert "has 14 samples, and the model takes exactly 4 at a time" in error_of({"x": floats(14)}, [fixed])
    assert "for example 12" in error_of({"x": floats(14)}, [fixed])
    assert "for example 4" in error_of({"x": floats(3)}, [fixed])


def test_a_folder_is_read_file_by_file(tmp_path, monkeypatch):
    for name, length in (("b2", 7), ("b1", 4), ("b3", 9)):
        np.savez(tmp_path / f"{name}.npz", ids=np.full((2, length), length), mask=np.ones((2, length)))
    (tmp_path / "README").write_text("not data")
    (tmp_path / "._b1.npz").write_bytes(b"not data either")
    loads = []
    read = data.read_arrays
    monkeypatch.setattr(data, "read_arrays", lambda path: loads.append(path.name) or read(path))
    source = open_data(tmp_path, [IDS, MASK])
    assert source.count == 3
    assert loads == []
    lengths = []
    for feed in source:
        lengths.append(feed["ids"].shape[1])
        assert len(loads) == len(lengths)
    assert lengths == [4, 7, 9]


def test_a_folder_of_npy(tmp_path):
    np.save(tmp_path / "a.npy", floats(2))
    np.save(tmp_path / "b.npy", floats(5))
    assert [len(feed["x"]) for feed in open_data(tmp_path, [X])] == [2, 5]


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return a function that writes a module into the current folder and returns its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    names = []

    def write(text):
        names.append(f"calibration_data_{len(names)}_for_tests")
        (tmp_path / f"{names[-1]}.py").write_text(text)
        return names[-1]

    yield write
    for name in names:
        sys.modules.pop(name, None)


def test_a_function_named_by_its_module(module):
    name = module("def feeds():\n    for n in (1, 2, 3):\n        yield {'x': [[1.0, 2.0, n]] * n}\n")
    source = open_data(f"{name}:feeds", [X])
    assert source.count is None
    for _ in range(2):
        assert [len(feed["x"]) for feed in source] == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "function", "message"),
    [
        ("", "feeds", "has no function 'feeds'"),
        ("feeds = 3", "feeds", "has no function 'feeds'"),
        ("import no_such_module_anywhere", "feeds", "cannot be imported (ModuleNotFoundError"),
        ("1 / 0", "feeds", "cannot be imported (ZeroDivisionError"),
        ("def feeds():\n    return 3", "feeds", "gives a int instead of feeds"),
        ("def feeds():\n    return {'x': [1]}", "feeds", "gives a dict instead of feeds"),
        ("def feeds():\n    return [[1.0]]", "feeds", "batch 1: is a list instead of a feed"),
        ("def feeds():\n    return []", "feeds", "has no batches"),
        ("def feeds():\n    raise KeyError('col')", "feeds", "the function failed (KeyError: 'col')"),
        ("def feeds():\n    yield {'x': [[1, 2, 3]]}\n    1 / 0", "feeds", "batch 2: the data failed (ZeroDiv"),
        ("def feeds(a):\n    pass", "feeds", "the function failed (TypeError"),
    ],
)
def test_functions_that_cannot_be_used(module, text, function, message):
    assert message in error_of(f"{module(text)}:{function}", [X])


def test_a_module_that_is_not_there():
    assert "module 'no_such_package_here' cannot be imported" in error_of("no_such_package_here:f", [X])


def test_feeds_from_python():
    feeds = [{"x": floats(2)}, {"x": floats(5)}]
    assert open_data(feeds, [X]).count == 2
    for source in (feeds, lambda: iter(feeds)):
        batches = open_data(source, [X])
        assert [len(feed["x"]) for feed in batches] == [2, 5]
        assert [len(feed["x"]) for feed in batches] == [2, 5]
    assert "data of type int cannot be read" in error_of(3, [X])


def test_an_iterator_can_be_used_once():
    source = open_data(iter([{"x": floats(2)}]), [X])
    assert len(list(source)) == 1
    with pytest.raises(CalibrationError, match="used up: give a function"):
        list(source)


def test_a_stream_holds_one_batch():
    made = []

    def batch():
        array = np.zeros((4, 3), dtype=np.float32)
        made.append(weakref.ref(array))
        return {"x": array}

    def batches():
        for _ in range(200):
            assert all(array() is None for array in made)
            yield batch()

    done = 0
    for feed in open_data(batches, [X]):
        done += len(feed["x"])
        del feed
    assert done == 800


@pytest.mark.parametrize(
    ("arrays", "inputs", "message"),
    [
        ({"ids": np.ones((2, 3))}, [IDS, MASK], "has no 'mask': give an array for each input (ids, mask)"),
        ({"x": floats(2), "labels": [1, 2]}, [X], "'labels' is not an input of the model: leave it out (it ta"),
        ({"x": np.ones(3)}, [X], "'x' has 1 axes [3], and the model takes 2: [?, 3]"),
        ({"x": floats(2, 4)}, [X], "'x' has shape [2, 4], and the model takes [?, 3]: make axis 1 3 long"),
        ({"x": [["a", "b", "c"]]}, [X], "'x' is of dtype <U1"),
        ({"x": np.array([[1, None, 2]])}, [X], "'x' is of dtype object"),
        ({"x": np.ones((1, 3)) * 1j}, [X], "'x' is of dtype complex128"),
        ({"x": [[1.0], [1.0, 2.0]]}, [X], "'x' is ragged"),
        ({"x": [[1.0, np.nan, np.inf]]}, [X], "'x' holds 2 values that are NaN or infinite"),
        ({"x": [[1.0, 1e39, 2.0]]}, [X], "'x' holds values that are too large for float32"),
        ({"ids": [[1.0, 2.5]]}, [IDS], "'ids' holds fractions, and the model takes int64"),
        ({"ids": [[1.0, np.nan]]}, [IDS], "'ids' holds 1 values that are NaN"),
        ({"ids": np.zeros((0, 3))}, [IDS], "has no samples"),
        ({"ids": np.zeros((2, 3)), "mask": np.zeros((3, 3))}, [IDS, MASK], "'ids' has 2 samples and 'mask' 3"),
    ],
)
def test_arrays_that_do_not_fit(arrays, inputs, message, tmp_path):
    assert message in error_of(arrays, inputs)
    if "ragged" in message or "object" in message:
        return
    np.savez(tmp_path / "d.npz", **arrays)
    in_file = error_of(tmp_path / "d.npz", inputs)
    assert message in in_file
    assert in_file.startswith(str(tmp_path / "d.npz"))
    if "samples" not in message:
        assert message in error_of([arrays], inputs)  # as a feed
        assert message in error_of(tmp_path, inputs)  # as a batch in a folder


def test_empty_batches_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", floats(0))
    assert "a.npy: 'x' is empty (shape [0, 3])" in error_of(tmp_path, [X])
    assert "batch 2: 'x' is empty" in error_of([{"x": floats(1)}, {"x": floats(0)}], [X])


@pytest.mark.parametrize(
    ("dtype", "given", "taken"),
    [
        (np.int64, np.array([[3, -4]], dtype=np.int32), True),
        (np.int64, np.array([[3, 4]], dtype=np.uint8), True),
        (np.int64, np.array([[3.0, -4.0]]), True),
        (np.int64, np.array([[True, False]]), True),
        (np.int32, np.array([[1 << 31, 0]]), False),
        (np.int32, np.array([[(1 << 31) - 1, -(1 << 31)]]), True),
        (np.uint8, np.array([[-1, 0]]), False),
        (np.bool_, np.array([[1, 0]]), True),
        (np.bool_, np.array([[1.0, 0.0]]), True),
        (np.bool_, np.array([[2, 0]]), False),
        (np.float32, np.array([[0.1, 2.0]]), True),
        (np.float32, np.array([[3, 4]], dtype=np.uint8), True),
        (np.float16, np.array([[1e6, 0.0]]), False),
    ],
)
def test_casts(dtype, given, taken):
    spec = InputSpec("x", np.dtype(dtype), (None, 2))
    if not taken:
        assert "'x' holds values" in error_of({"x": given}, [spec])
        return
    (feed,) = open_data({"x": given}, [spec])
    assert feed["x"].dtype == dtype
    np.testing.assert_allclose(feed["x"].astype(np.float64), given.astype(np.float64), rtol=1e-7)


def test_files_that_cannot_be_read(tmp_path):
    assert "does not exist" in error_of(tmp_path / "none.npz", [X])
    assert "does not exist" in error_of("none.npz", [X])
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "has no .npz or .npy files" in error_of(empty, [X])

    path = tmp_path / "d.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).normal(size=(500, 3)))
    content = path.read_bytes()
    for damaged in (content[:-30], content[:50], b"", b"text", content[:200] + b"\x00" * 900 + content[1100:]):
        path.write_bytes(damaged)
        assert error_of(path, [X]).startswith(f"{path}: cannot be read as .npz")

    np.savez(path, x=np.array([{"a": 1}], dtype=object))
    assert "holds pickled objects" in error_of(path, [X])
    np.save(tmp_path / "o.npy", np.array([None]))
    assert "holds pickled objects" in error_of(tmp_path / "o.npy", [X])

    np.save(tmp_path / "two.npy", floats(2))
    assert "holds one array, and the model takes ids, mask" in error_of(tmp_path / "two.npy", [IDS, MASK])
    (tmp_path / "two.npy").rename(tmp_path / "two.npz")
    assert "cannot be read as .npz (BadZipFile: File is not a zip file)" in error_of(tmp_path / "two.npz", [X])
    (tmp_path / "d.csv").write_text("1,2")
    assert "neither .npz nor .npy" in error_of(tmp_path / "d.csv", [X])


def lying_header(shape, dtype="<f4"):
    """Return a .npy file whose header claims more than follows."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + bytes(64)


@pytest.mark.parametrize("suffix", ["npy", "npz"])
@pytest.mark.parametrize("shape", [(1 << 28,), (1 << 40, 3), (-1, 3), (1 << 62, 1 << 62)])
def test_headers_that_lie(tmp_path, suffix, shape):
    """A header that claims 1 GB or more is refused before memory is asked for."""
    path = tmp_path / f"d.{suffix}"
    if suffix == "npy":
        path.write_bytes(lying_header(shape))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", lying_header(shape))
    tracemalloc.start()
    message = error_of(path, [X])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert message.startswith(f"{path}: cannot be read as .{suffix} (ValueError:")
    assert peak < 1 << 20


def test_an_archive_that_lies_about_its_size(tmp_path):
    path = tmp_path / "d.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", lying_header((1 << 28,)))
    content = path.read_bytes()
    size = len(lying_header((1 << 28,))).to_bytes(4, "little")
    place = content.rindex(size)
    path.write_bytes(content[:place] + (1 << 30).to_bytes(4, "little") + content[place + 4 :])
    assert "'x.npy' cannot be of 1073741824 bytes" in error_of(path, [X])


@pytest.mark.parametrize("header", [b"{'descr': (", b"[" * 3000, b"{'descr': '<f4', 'shape': (1,", b"\xff"])
def test_headers_that_are_no_python(tmp_path, header):
    path = tmp_path / "d.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    assert "cannot be read as .npy" in error_of(path, [X])


def test_models_that_samples_cannot_be_told_for():
    scalar = InputSpec("s", np.dtype(np.float32), ())
    assert "'s' is a scalar" in error_of({"s": 1.0}, [scalar])
    mixed = [InputSpec("a", np.dtype(np.float32), (1, 2)), InputSpec("b", np.dtype(np.float32), (4, 2))]
    assert "differ in their first axis" in error_of({"a": np.ones((4, 2)), "b": np.ones((4, 2))}, mixed)
    assert "has no inputs" in error_of({}, [])
    (feed,) = open_data([{"s": 2}], [scalar])
    assert feed["s"].shape == ()


def test_a_rank_that_is_not_declared_takes_any():
    unknown = InputSpec("x", np.dtype(np.float32), None)
    assert [feed["x"].shape for feed in open_data({"x": np.ones((2, 3, 4))}, [unknown])] == [(2, 3, 4)]
