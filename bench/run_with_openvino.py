"""Run the cases that bench/runtimes.py wrote on OpenVINO's CPU plugin; needs openvino and numpy only.

python bench/run_with_openvino.py CASES
"""

import json
import sys
from pathlib import Path

import numpy as np
import openvino


def run(core, folder, case):
    model = core.read_model(folder / case["model"])
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    source = case["input"]
    data = np.fromfile(folder / source["file"], source["dtype"]).reshape(source["shape"])
    result = np.asarray(compiled({source["name"]: data})[case["output"]])
    result.tofile(folder / f"{case['name']}.openvino.bin")
    return {"dtype": result.dtype.name, "shape": list(result.shape)}


def main():
    folder, core, answers = Path(sys.argv[1]), openvino.Core(), {}
    for case in json.loads((folder / "cases.json").read_text()):
        try:
            answers[case["name"]] = run(core, folder, case)
        except Exception as error:  # whatever the runtime raises is its answer
            answers[case["name"]] = {"failure": str(error)}
    (folder / "openvino.json").write_text(json.dumps({"version": openvino.__version__.split("-")[0], **answers}))


if __name__ == "__main__":
    main()
