//! Goroutines as frames of stacks.

use trace_timeline::{Frame, StackId, Tables, TextId};

/// A stack with its goroutine as the outermost frame.
pub(crate) fn on_goroutine(
    stack: Option<StackId>,
    number: i64,
    entry: TextId,
    tables: &mut Tables,
) -> Option<StackId> {
    let mut frames = stack.map_or(&[][..], |stack| tables.frames(stack)).to_vec();
    let name = format!("goroutine {number} {}", tables.str(entry));
    let function = tables.text(name.trim_end().as_bytes());
    frames.push(Frame { function, ..Frame::default() });
    tables.stack(&frames)
}
