"""Damaged and hostile files through every command: exit 0, or one clear line, and nothing half-written.

Models, data, calibrations, metadata and plans are mutated by a seeded generator: bytes flipped, cut and moved, fields
of messages dropped and set to other values. Each case runs in a process of its own.
"""

import io
import json
import os
import random
import resource
import sys
import time
import traceback

import numpy as np
import onnx
import pytest
import test_control_flow
import test_quantized_around
from onnx import TensorProto, helper
from site_models import SPELLINGS, Builder, ffn_model, model_of

from qgelu import AccumulatorParams, QGeluError, QParams, cli, make_plan, plan_from_json
from qgelu.graph.model_file import load_model, save_model
from qgelu.graph.normal_form import normal_form
from qgelu.graph.sites import find_sites

MEMORY = 8 << 30
"""Address space that a case may ask for; libraries map some of it without using it."""
SECONDS = 30
ACCEPTED = {0, 1, 2}

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="cases run in forked processes")


def flipped(content, rng):
    """Return bytes with some of them changed, cut, put in or copied elsewhere."""
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        place, kind = rng.randrange(len(content)), rng.randrange(5)
        if kind == 0:
            content[place] = rng.randrange(256)
        elif kind == 1:
            content[place] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del content[place : place + rng.randrange(1, 40)]
        elif kind == 3:
            content[place:place] = rng.randbytes(rng.randrange(1, 9))
        else:
            source = rng.randrange(len(content))
            content[place : place + 8] = content[source : source + 8]
        content = content or bytearray(b"x")
    return bytes(content)


def messages(message):
    """Yield a protobuf message and all inside it."""
    yield message
    for _, value in message.ListFields():
        if hasattr(value, "ListFields"):
            yield from messages(value)
        elif not isinstance(value, str | bytes | int | float):
            for entry in value:
                if hasattr(entry, "ListFields"):
                    yield from messages(entry)


NUMBERS = [0, 1, 2, 3, 7, 10, 11, 16, -1, 1 << 31, 1 << 40, (1 << 63) - 1, 999]
REALS = [0.0, float("nan"), float("inf"), -1.0, 1e30, 1e-40]
NAMES = ["", "x", "y", "\u00e9\n", "a" * 500, "If", "Erf", "Gelu", "MatMul"]


def refilled(content, rng):
    """Return a model with fields dropped, doubled, or set to something else."""
    model = onnx.ModelProto.FromString(content)
    for _ in range(rng.choice([1, 1, 2, 3])):
        message = rng.choice(list(messages(model)))
        fields = message.ListFields()
        if not fields:
            continue
        field, value = rng.choice(fields)
        kind = rng.randrange(4)
        try:
            if kind == 0:
                message.ClearField(field.name)
            elif isinstance(value, int):
                setattr(message, field.name, rng.choice(NUMBERS))
            elif isinstance(value, float):
                setattr(message, field.name, rng.choice(REALS))
            elif isinstance(value, str):
                setattr(message, field.name, rng.choice([*NAMES, f"{value}_"]))
            elif isinstance(value, bytes):
                setattr(message, field.name, rng.choice([b"", value[:-1], value + b"0"]))
            elif len(value):
                place = rng.randrange(len(value))
                if kind == 1:
                    del value[place]
                elif hasattr(value[place], "ListFields"):
                    value.add().CopyFrom(value[place])
                elif isinstance(value[place], int):
                    value[place] = rng.choice(NUMBERS)
                elif isinstance(value[place], str):
                    value[place] = rng.choice([*NAMES, value[rng.randrange(len(value))]])
        except (TypeError, ValueError, AttributeError):  # a field that does not take it
            continue
    return model.SerializeToString()


def mutated_model(content, rng):
    return (flipped if rng.random() < 0.35 else refilled)(content, rng)


def mutated_json(text, rng):
    """Return JSON with values dropped or of another kind, or damaged as text."""
    if rng.random() < 0.4:
        return flipped(text, rng)
    content = json.loads(text)
    places = []

    def collect(value):
        keys = list(value) if isinstance(value, dict) else range(min(len(value), 20))
        for key in keys:
            places.append((value, key))
            if isinstance(value[key], dict | list):
                collect(value[key])

    collect(content)
    for _ in range(rng.choice([1, 1, 2])):
        holder, key = rng.choice(places)
        others = [None, 0, -1, 1e308, float("nan"), "x", [], {}, [[1]], True, 1 << 70, "9" * 50, [0] * 5]
        try:
            if rng.randrange(4) == 0:
                del holder[key]
            else:
                holder[key] = rng.choice(others)
        except (KeyError, IndexError):
            continue
    return json.dumps(content).encode()


def inputs():
    """Return models by name, each with a feed."""
    x = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    functions = "a = local.Mlp(x, w1, b1, w2, b2) y = local.Mlp(a, w1, b1, w2, b2)"
    signature, imports = "(float[n,4] x) => (float[n,4] y)", '"" : 17, "local" : 1'
    return {
        "plain": (ffn_model(x_shape=("n", 4)), {"x": x}),
        "if": (test_control_flow.MODELS["If"][0], {"x": x, "c": np.array(True)}),
        "loop": (test_control_flow.MODELS["Loop"][0], {"x": x, "trips": np.array(2)}),
        "function": (
            test_control_flow.model_of(signature, functions, test_control_flow.FUNCTIONS, imports),
            {"x": x},
        ),
        "quantized": (test_quantized_around.around(), {"x": np.hstack([x, x[:, :2]])}),
    }


def plans():
    return [
        make_plan(QParams(0.02, 100), QParams(0.02, 9)).to_json().encode(),
        make_plan(AccumulatorParams(3e-5), QParams(0.02, 9)).to_json().encode(),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with models, their calibrations and quantized forms; kernels are compiled by then."""
    path = tmp_path_factory.mktemp("hostile")
    here = os.getcwd()
    os.chdir(path)
    try:
        for name, (model, feed) in inputs().items():
            onnx.save(model, f"{name}.onnx")
            os.mkdir(f"{name}.data")
            np.savez(f"{name}.data/0.npz", **feed)
            for command in (
                f"calibrate {name}.onnx --data {name}.data -o {name}.json",
                f"quantize {name}.onnx --calibration {name}.json -o {name}.int8.onnx",
                f"verify {name}.onnx {name}.int8.onnx --data {name}.data",
            ):
                assert cli.run(command.split()) == 0, command
        x = inputs()["plain"][1]["x"]
        np.save("plain.npy", x)
        np.savez("plain.npz", x=x)
        np.savez_compressed("packed.npz", x=x)
        for number, plan in enumerate(plans()):
            (path / f"plan_{number}.json").write_bytes(plan)
    finally:
        os.chdir(here)
    return path


def case(kind, rng):
    """Write a mutated file and return the command that reads it."""

    def read(name):
        with open(name, "rb") as file:
            return file.read()

    def write(name, content):
        with open(name, "wb") as file:
            file.write(content)
        return name

    name = rng.choice(list(inputs()))
    if kind == "model":
        write("m.onnx", mutated_model(read(f"{name}.onnx"), rng))
        data = f"m.onnx --data {name}.data"
        scope, target = rng.choice(["ffn", "activation"]), rng.choice(["portable", "qdq"])
        quantizing = f"quantize {data} -o out.onnx --scope {scope} --target {target}"
        return rng.choice(["inspect m.onnx", f"calibrate {data} -o out.json", quantizing])
    if kind == "data":
        source = rng.choice(["plain.npy", "plain.npz", "packed.npz"])
        return f"calibrate plain.onnx --data {write('d' + source[-4:], flipped(read(source), rng))} -o out.json"
    if kind == "calibration":
        write("c.json", mutated_json(read(f"{name}.json"), rng))
        return f"quantize {name}.onnx --calibration c.json -o out.onnx"
    if kind == "quantized":
        content = read(f"{name}.int8.onnx")
        if rng.random() < 0.5:
            model = onnx.ModelProto.FromString(content)
            (entry,) = (each for each in model.metadata_props if each.key == "qgelu.sites")
            entry.value = mutated_json(entry.value.encode(), rng).decode("utf-8", "replace")
            content = model.SerializeToString()
        else:
            content = mutated_model(content, rng)
        write("q.onnx", content)
        return rng.choice([f"verify {name}.onnx q.onnx --data {name}.data", "inspect q.onnx"])
    write("p.json", mutated_json(read(rng.choice(["plan_0.json", "plan_1.json"])), rng))
    return "PLAN p.json"


def run_plan(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    try:
        plan_from_json(text)
    except QGeluError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def run_alone(command):
    """Run a command in a process of its own; return its exit code (negative: a signal) and what it wrote."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            log = os.open("log", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            os.dup2(log, 1)
            os.dup2(log, 2)
            sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False))
            sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", closefd=False), write_through=True)
            words = command.split()
            code = run_plan(words[1]) if words[0] == "PLAN" else cli.run(words)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            with open("log", encoding="utf-8", errors="replace") as file:
                return os.waitstatus_to_exitcode(status), file.read()
        time.sleep(0.002)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return None, "hang"


def check(command):
    """Run a command and hold what it did to the rules."""
    for name in ("out.json", "out.onnx"):
        if os.path.exists(name):
            os.unlink(name)
    code, log = run_alone(command)
    assert code in ACCEPTED, (command, code, log)
    assert "Traceback" not in log, (command, log)
    assert "internal:" not in log, (command, log)
    errors = [line for line in log.splitlines() if line.startswith("error: ")]
    assert len(errors) == (code == 2), (command, code, log)
    if code == 2:
        assert log.splitlines()[-1] == errors[0], (command, log)
        assert not os.path.exists("out.json"), command
        assert not os.path.exists("out.onnx"), command
    assert not [name for name in os.listdir() if name.endswith(".tmp")], command
    return code


@pytest.mark.parametrize(
    ("kind", "count"), [("model", 120), ("data", 60), ("calibration", 60), ("quantized", 80), ("plan", 60)]
)
def test_mutated_files(folder, monkeypatch, kind, count):
    """QGELU_FUZZ_SEED starts elsewhere, QGELU_FUZZ_CASES goes on for longer."""
    monkeypatch.chdir(folder)
    seed = int(os.environ.get("QGELU_FUZZ_SEED", "6"))
    numbers = range(int(os.environ.get("QGELU_FUZZ_CASES", count)))
    codes = {check(case(kind, random.Random(f"{seed} {kind} {number}"))) for number in numbers}
    assert 2 in codes


def test_external_data_that_lie(folder, monkeypatch):
    """Lengths and offsets of 1 GB and more are held against the file before anything is read."""
    monkeypatch.chdir(folder)
    model = ffn_model()
    onnx.save(model, "lie.onnx", save_as_external_data=True, location="lie.data", size_threshold=0)
    lean = onnx.load("lie.onnx", load_external_data=False)
    for key, value in (("length", 1 << 30), ("offset", 1 << 40), ("length", -1), ("offset", -5), ("length", "many")):
        damaged = onnx.ModelProto.FromString(lean.SerializeToString())
        for entry in damaged.graph.initializer[0].external_data:
            if entry.key == key:
                entry.value = str(value)
        (folder / "m.onnx").write_bytes(damaged.SerializeToString())
        assert check("inspect m.onnx") == 2, (key, value)
    for dims in ([1 << 40], [1 << 20, 1 << 20], [-1], [0]):
        damaged = onnx.ModelProto.FromString(lean.SerializeToString())
        damaged.graph.initializer[0].dims[:] = dims
        (folder / "m.onnx").write_bytes(damaged.SerializeToString())
        check("inspect m.onnx")


def test_weights_that_claim_terabytes(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for dims in ([1 << 40, 6], [4, 1 << 60], [-4, 6], [(1 << 62) + 1, 4, 4]):
        model = ffn_model()
        model.graph.initializer[0].dims[:] = dims
        onnx.save(model, "m.onnx")
        assert check("inspect m.onnx") in {0, 2}
        assert check("calibrate m.onnx --data plain.data -o out.json") == 2


def test_models_that_are_no_files(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert check("inspect /dev/zero") == 2
    with open("huge.onnx", "wb") as file:
        file.truncate(3 << 30)  # sparse
    assert check("inspect huge.onnx") == 2
    os.unlink("huge.onnx")


def test_nested_messages(folder, monkeypatch):
    """Subgraphs in subgraphs, nearly as deep as a parser recurses."""
    monkeypatch.chdir(folder)
    inner = helper.make_graph([helper.make_node("Neg", ["x"], ["y0"])], "g", [], [onnx.ValueInfoProto(name="y0")])
    for depth in range(1, 20):
        graphs = {"then_branch": inner} | ({"else_branch": inner} if depth < 3 else {})
        node = helper.make_node("If", ["c"], [f"y{depth}"], **graphs)
        inner = helper.make_graph([node], "g", [], [onnx.ValueInfoProto(name=f"y{depth}")])
    model = helper.make_model(inner, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"]))
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    assert check("inspect m.onnx") == 0


def test_unnamed_and_doubly_named_nodes_and_no_sizes(tmp_path):
    """Nodes without names, nodes of one name, no value_info, symbolic and zero sizes: sites stay apart."""
    b = Builder()
    y = SPELLINGS["gelu"]["half x first"](b, SPELLINGS["silu"]["sigmoid"](b, SPELLINGS["gelu_tanh"]["Pow"](b, "x")))
    for names in (lambda index: "", lambda index: "same"):
        model = model_of(b, {"x": ("batch", None, 0)}, [y])
        for index, node in enumerate(model.graph.node):
            node.name = names(index)
        save_model(model, tmp_path / "m.onnx")
        sites = find_sites(normal_form(load_model(tmp_path / "m.onnx"))).sites
        assert [site.activation for site in sites] == ["gelu_tanh", "silu", "gelu"]
        assert len({site.name for site in sites}) == 3
