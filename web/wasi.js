'use strict';
// The part of WASI (preview 1) that the program uses: arguments, a clock, random numbers, and one
// directory. Its files are those that were dropped, read on demand, and those that are written.

const SUCCESS = 0, BADF = 8, INVAL = 28, NOENT = 44, NOSYS = 52, NOTDIR = 54, SPIPE = 70;
const FILE_TYPE = { unknown: 0, directory: 3, regular: 4 };
const WHENCE_SET = 0, WHENCE_CURRENT = 1;
const OPEN_CREATE = 1, OPEN_TRUNCATE = 8;
const ROOT = 3, PREOPENED = '/';
const ALL_RIGHTS = 0xffffffffffffffffn;
const READ_SIZE = 1 << 20, WRITE_SIZE = 1 << 22;
/** Characters of messages that are kept, of their beginning and of their end. */
const MAX_TEXT = 1 << 15;
/** The message in place of others. */
const CUT = 'triscope: … messages are missing here';

/** Thrown when the program ends. */
class Exit { constructor(code) { this.code = code; } }

/** A dropped file: a part of it is in memory. */
class Input {
  constructor(file, onRead) {
    Object.assign(this, { file, onRead, at: 0, start: 0, bytes: new Uint8Array(0) });
  }
  get size() { return this.file.size; }
  read(out) {
    let offset = this.at - this.start;
    if (offset < 0 || offset >= this.bytes.length) {
      const part = this.file.slice(this.at, this.at + READ_SIZE);
      this.bytes = new Uint8Array(new FileReaderSync().readAsArrayBuffer(part));
      [this.start, offset] = [this.at, 0];
      this.onRead(this.file, this.at + this.bytes.length);
    }
    const part = this.bytes.subarray(offset, offset + out.length);
    out.set(part);
    this.at += part.length;
    return part.length;
  }
}

/** A file that is written, from its start to its end: what is complete is in a Blob. */
class Output {
  constructor() {
    Object.assign(this, { parts: [], size: 0, rest: new Uint8Array(WRITE_SIZE), filled: 0 });
  }
  write(bytes) {
    this.size += bytes.length;
    for (let rest = bytes; rest.length > 0;) {
      const part = rest.subarray(0, this.rest.length - this.filled);
      this.rest.set(part, this.filled);
      this.filled += part.length;
      rest = rest.subarray(part.length);
      if (this.filled === this.rest.length) this.flush();
    }
  }
  flush() {
    this.parts.push(new Blob([this.rest.subarray(0, this.filled)]));
    this.filled = 0;
  }
  blob() {
    this.flush();
    return new Blob(this.parts);
  }
}

/** Standard output and standard error. */
class Text {
  constructor() { Object.assign(this, { head: '', tail: '', decoder: new TextDecoder(), isCut: false }); }
  get text() { return this.isCut ? `${this.head}\n${CUT}\n${this.tail}` : this.head + this.tail; }
  write(bytes) {
    const text = this.decoder.decode(bytes, { stream: true }), room = MAX_TEXT - this.head.length;
    this.head += text.slice(0, room);
    this.tail += text.slice(room);
    if (this.tail.length > MAX_TEXT) {
      this.tail = this.tail.slice(-MAX_TEXT);
      this.isCut = true;
    }
  }
}

class Wasi {
  /** `files`: the dropped files by name. `onRead` gets a file, and how far it was read. */
  constructor(args, files, onRead) {
    const encoder = new TextEncoder();
    this.args = args.map(arg => encoder.encode(arg + '\0'));
    this.files = new Map(files);
    this.onRead = onRead;
    this.stdout = new Text();
    this.stderr = new Text();
    this.open = new Map([[0, new Input(new Blob(), () => {})], [1, this.stdout], [2, this.stderr]]);
    this.next = ROOT + 1;
  }

  /** Runs the program to its end. Returns its exit status. */
  run(module) {
    // Pointers and lengths from 2 GiB on come as negative numbers.
    const unsigned = value => typeof value === 'number' ? value >>> 0 : value;
    const known = Object.fromEntries(Object.entries(this.imports())
      .map(([name, call]) => [name, (...values) => call(...values.map(unsigned))]));
    const unsupported = new Proxy(known, { get: (all, name) => all[name] ?? (() => NOSYS) });
    const instance = new WebAssembly.Instance(module, { wasi_snapshot_preview1: unsupported });
    this.memory = instance.exports.memory;
    try {
      instance.exports._start();
    } catch (reason) {
      if (!(reason instanceof Exit)) throw reason;
      return reason.code;
    }
    return 0;
  }

  /** The files that were written, by name. */
  outputs() {
    const written = [...this.files].filter(([, file]) => file instanceof Output);
    return written.map(([name, file]) => [name, file.blob()]);
  }

  imports() {
    const view = () => new DataView(this.memory.buffer);
    const bytes = (at, length) => new Uint8Array(this.memory.buffer, at, length);
    const path = (at, length) => new TextDecoder().decode(bytes(at, length)).replace(/^(\.?\/)+/, '');
    /** Calls `each` with the parts of a vectored read or write, until one of them is not filled. */
    const vectored = (list, count, sum, each) => {
      let total = 0;
      for (let i = 0; i < count; i++) {
        const length = view().getUint32(list + 8 * i + 4, true);
        const done = each(bytes(view().getUint32(list + 8 * i, true), length));
        total += done;
        if (done < length) break;
      }
      view().setUint32(sum, total, true);
      return SUCCESS;
    };
    const stat = (at, type, size) => {
      bytes(at, 64).fill(0);
      view().setUint8(at + 16, type);
      view().setBigUint64(at + 24, 1n, true);
      view().setBigUint64(at + 32, BigInt(size), true);
      return SUCCESS;
    };
    /** An output that is opened again is read. */
    const opened = (file, flags) => {
      if (!(file instanceof Output)) return new Input(file, this.onRead);
      return flags & OPEN_CREATE ? file : new Input(file.blob(), () => {});
    };
    return {
      args_sizes_get: (count, size) => {
        view().setUint32(count, this.args.length, true);
        view().setUint32(size, this.args.reduce((sum, arg) => sum + arg.length, 0), true);
        return SUCCESS;
      },
      args_get: (list, at) => {
        for (const arg of this.args) {
          view().setUint32(list, at, true);
          bytes(at, arg.length).set(arg);
          [list, at] = [list + 4, at + arg.length];
        }
        return SUCCESS;
      },
      environ_sizes_get: (count, size) => {
        view().setUint32(count, 0, true);
        view().setUint32(size, 0, true);
        return SUCCESS;
      },
      environ_get: () => SUCCESS,
      clock_time_get: (id, precision, at) => {
        view().setBigUint64(at, BigInt(Math.round((performance.timeOrigin + performance.now()) * 1e6)), true);
        return SUCCESS;
      },
      random_get: (at, length) => {
        for (let done = 0; done < length; done += 1 << 16) {
          crypto.getRandomValues(bytes(at + done, Math.min(length - done, 1 << 16)));
        }
        return SUCCESS;
      },
      sched_yield: () => SUCCESS,
      proc_exit: code => { throw new Exit(code); },
      fd_prestat_get: (fd, at) => {
        if (fd !== ROOT) return BADF;
        view().setUint32(at, 0, true);
        view().setUint32(at + 4, PREOPENED.length, true);
        return SUCCESS;
      },
      fd_prestat_dir_name: (fd, at, length) => {
        if (fd !== ROOT || length < PREOPENED.length) return INVAL;
        bytes(at, PREOPENED.length).set(new TextEncoder().encode(PREOPENED));
        return SUCCESS;
      },
      fd_fdstat_get: (fd, at) => {
        if (fd !== ROOT && !this.open.has(fd)) return BADF;
        const type = fd === ROOT ? FILE_TYPE.directory : fd < ROOT ? FILE_TYPE.unknown : FILE_TYPE.regular;
        bytes(at, 24).fill(0);
        view().setUint8(at, type);
        view().setBigUint64(at + 8, ALL_RIGHTS, true);
        view().setBigUint64(at + 16, ALL_RIGHTS, true);
        return SUCCESS;
      },
      fd_filestat_get: (fd, at) => {
        if (fd === ROOT) return stat(at, FILE_TYPE.directory, 0);
        const file = this.open.get(fd);
        if (!file) return BADF;
        return stat(at, fd < ROOT ? FILE_TYPE.unknown : FILE_TYPE.regular, file.size ?? 0);
      },
      path_filestat_get: (fd, flags, at, length, out) => {
        const name = path(at, length);
        if (name === '' || name === '.') return stat(out, FILE_TYPE.directory, 0);
        const file = this.files.get(name);
        return file ? stat(out, FILE_TYPE.regular, file.size) : NOENT;
      },
      path_open: (fd, dirFlags, at, length, openFlags, rights, inheriting, fdFlags, out) => {
        if (fd !== ROOT) return NOTDIR;
        const name = path(at, length);
        if (openFlags & OPEN_CREATE && (openFlags & OPEN_TRUNCATE || !this.files.has(name))) {
          this.files.set(name, new Output());
        }
        const file = this.files.get(name);
        if (!file) return NOENT;
        this.open.set(this.next, opened(file, openFlags));
        view().setUint32(out, this.next++, true);
        return SUCCESS;
      },
      path_rename: (from, at, length, to, toAt, toLength) => {
        const [name, other] = [path(at, length), path(toAt, toLength)];
        const file = this.files.get(name);
        if (!file) return NOENT;
        this.files.delete(name);
        this.files.set(other, file);
        return SUCCESS;
      },
      path_unlink_file: (fd, at, length) => this.files.delete(path(at, length)) ? SUCCESS : NOENT,
      fd_close: fd => this.open.delete(fd) ? SUCCESS : BADF,
      fd_read: (fd, list, count, sum) => {
        const file = this.open.get(fd);
        if (!(file instanceof Input)) return BADF;
        return vectored(list, count, sum, out => file.read(out));
      },
      fd_write: (fd, list, count, sum) => {
        const file = this.open.get(fd);
        if (!file || file instanceof Input) return BADF;
        return vectored(list, count, sum, part => (file.write(part), part.length));
      },
      fd_seek: (fd, offset, whence, out) => {
        const file = this.open.get(fd);
        if (!(file instanceof Input)) return file ? SPIPE : BADF;
        const base = whence === WHENCE_SET ? 0 : whence === WHENCE_CURRENT ? file.at : file.size;
        const at = base + Number(offset);
        if (!(at >= 0)) return INVAL;
        file.at = at;
        view().setBigUint64(out, BigInt(at), true);
        return SUCCESS;
      },
    };
  }
}
