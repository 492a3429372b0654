'use strict';
// Runs one command of the program. It is ended by ending the worker.

/** Milliseconds between two messages of progress. */
const INTERVAL = 50;

onmessage = ({ data: { module, args, files } }) => {
  let last = 0;
  const wasi = new Wasi(args, files, (file, at) => {
    const now = performance.now();
    if (now - last < INTERVAL && at < file.size) return;
    last = now;
    postMessage({ progress: { name: file.name, at, size: file.size } });
  });
  const start = performance.now();
  let status, failure;
  try {
    status = wasi.run(module);
  } catch (reason) {
    failure = `${reason}`;
  }
  postMessage({
    done: {
      status, failure, messages: wasi.stderr.text, text: wasi.stdout.text, outputs: failure ? [] : wasi.outputs(),
      milliseconds: performance.now() - start, memory: wasi.memory ? wasi.memory.buffer.byteLength : 0,
    },
  });
};
