//! The fuzz targets: a function in a module of [`targets`], and a program that calls it in `src/bin`.
//!
//! What the targets share is compiled and instrumented once, here. Each program is linked with the code of
//! its target alone: the fuzzer looks at all code of a program after every input.

#[path = "../../crates/nettrace/tests/common/exercise.rs"]
mod exercise;
#[path = "../../crates/go-flight/tests/common/mod.rs"]
mod go_program;
mod go_trace;
pub mod targets;
