// Run the cases that bench/runtimes.py wrote on onnxruntime-node or onnxruntime-web (wasm):
//     node bench/run_with_node.mjs onnxruntime-web CASES NODE_MODULES_PARENT
// Writes each output beside its model, or the reason why there is none.
import { readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join, resolve } from 'node:path';

const [name, folder, parent] = process.argv.slice(2);
const ort = createRequire(join(resolve(parent), 'package.json'))(name);
const arrays = {
  float32: Float32Array, int8: Int8Array, uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array, int32: Int32Array,
};
const provider = name === 'onnxruntime-web' ? 'wasm' : 'cpu';
if (ort.env.wasm) ort.env.wasm.numThreads = 1;
const cases = JSON.parse(readFileSync(join(folder, 'cases.json')));
const answers = {};
for (const one of cases) {
  try {
    const options = { executionProviders: [provider], logSeverityLevel: 4 };
    const session = await ort.InferenceSession.create(readFileSync(join(folder, one.model)), options);
    const bytes = readFileSync(join(folder, one.input.file));
    const data = new arrays[one.input.dtype](bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
    const result = await session.run({ [one.input.name]: new ort.Tensor(one.input.dtype, data, one.input.shape) });
    const output = result[one.output];
    writeFileSync(join(folder, `${one.name}.${name}.bin`), Buffer.from(output.data.buffer, output.data.byteOffset, output.data.byteLength));
    answers[one.name] = { dtype: output.type, shape: output.dims };
  } catch (error) {
    answers[one.name] = { failure: String(error.message ?? error) };
  }
}
writeFileSync(join(folder, `${name}.json`), JSON.stringify(answers));
