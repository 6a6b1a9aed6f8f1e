"""Runs the native ops in a process of their own, tests/native/host.c: under sanitizers, or for another CPU."""

import os
import subprocess
from pathlib import Path

import numpy as np
from onnx import helper

from qgelu.errors import QGeluError
from qgelu.graph.plan_nodes import plan_node
from qgelu.native.build import SOURCES, source_files

HOST = Path(__file__).parent / "native" / "host.c"
LEFT_OUT, GIVEN, CONSTANT = range(3)


def compile_host(compiler, target, flags):
    """Compile the ops and their host to a program; return the compiler's complaints, empty if there are none."""
    sources = [str(path) for path in source_files() if path.suffix == ".c"]
    command = [*compiler, "-std=c11", f"-I{SOURCES}", *flags, *sources, str(HOST), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode or done.stderr else ""


class Host:
    """The running program."""

    def __init__(self, command, path):
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "QGELU_KERNELS": path},
        )

    def run(self, op, to, inputs, output_type=None):
        """Return the output's bytes, or raise QGeluError with the op's message.

        ``inputs`` are pairs of an array and LEFT_OUT, GIVEN or CONSTANT.
        """
        name = op.encode()
        kind = to if output_type is None else output_type
        parts = [_numbers(len(name)), name, _numbers(to is not None, to or 0, kind or 2, len(inputs))]
        for array, how in inputs:
            parts.append(_numbers(how))
            if how != LEFT_OUT:
                data = np.ascontiguousarray(array).tobytes()
                element = helper.np_dtype_to_tensor_dtype(array.dtype)
                parts += [_numbers(element, array.ndim, *array.shape, len(data)), data]
        try:
            self.process.stdin.write(b"".join(parts))
            self.process.stdin.flush()
            good, size = np.frombuffer(self._read(16), np.int64)
            data = self._read(int(size))
        except (BrokenPipeError, EOFError):
            self.process.wait()
            raise AssertionError(f"the ops stopped their host: {self.process.stderr.read().decode()}") from None
        if not good:
            raise QGeluError(data.decode())
        return data

    def run_plan(self, plan, codes, bias=None, how=CONSTANT):
        """Return the codes of a plan's node."""
        node = plan_node(plan, bias)
        inputs = [(codes, GIVEN), *((np.asarray(array), how) for array in node.parameters.values())]
        found = self.run(node.op_type, node.attributes["to"], inputs)
        return np.frombuffer(found, plan.output.dtype).reshape(codes.shape)

    def close(self):
        """End the program; nothing may have leaked."""
        _, complaints = self.process.communicate()
        assert self.process.returncode == 0, complaints.decode()

    def _read(self, size):
        data = self.process.stdout.read(size)
        if len(data) < size:
            raise EOFError
        return data


def _numbers(*values):
    return np.array(values, np.int64).tobytes()
