'use strict';
// Runs a WebAssembly program with the WASI of Node.js. Its arguments, environment and files are those
// of this process.
const fs = require('fs');
const v8 = require('v8');
const { WASI } = require('wasi');

// Node.js 20 allocates in the fast calls of its WASI, where V8 does not permit a garbage collection:
// it would destroy what the program still uses.
v8.setFlagsFromString('--no-turbo-fast-api-calls');

const [program, ...args] = process.argv.slice(2);
const wasi = new WASI({
  version: 'preview1', args: [program, ...args], env: process.env, preopens: { '/': '/' }, returnOnExit: true,
});
const compiled = new WebAssembly.Module(fs.readFileSync(program));
process.exitCode = wasi.start(new WebAssembly.Instance(compiled, wasi.getImportObject()));
