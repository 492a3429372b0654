//! Requests: what is decoded can be encoded and decoded to the same again.

use diag_ipc::message::{Command, Header, MAGIC, Request};

pub fn target(data: &[u8]) {
    let _ = Request::decode(data);
    // No time is lost with headers: the first byte chooses a command, the rest is its payload.
    let Some((first, payload)) = data.split_first() else { return };
    let Ok(size) = u16::try_from(Header::LEN + payload.len()) else { return };
    let command = Command::ALL[usize::from(*first) % Command::ALL.len()];
    let mut message = Vec::from(MAGIC);
    message.extend(size.to_le_bytes());
    message.extend([command.set() as u8, command.id(), 0, 0]);
    message.extend(payload);
    if let Ok(request) = Request::decode(&message) {
        assert_eq!(request.command(), command);
        // What would harm a runtime is not encoded.
        if let Ok(again) = request.encode() {
            assert_eq!(Request::decode(&again), Ok(request));
        }
    }
}
