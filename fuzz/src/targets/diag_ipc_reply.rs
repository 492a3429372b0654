//! Replies, what follows them, and advertisements.

use diag_ipc::message::{
    Advertise, Environment, EnvironmentHeader, Header, ProcessInfo, ProcessInfoCommand, Reply,
};

pub fn target(data: &[u8]) {
    if let Some((header, payload)) = data.split_first_chunk() {
        if let Ok(header) = Header::decode(header) {
            let len = header.payload_len().min(payload.len());
            if let Ok(reply) = Reply::decode(header, &payload[..len]) {
                let message = reply.encode().unwrap();
                let (head, rest) = message.split_first_chunk().unwrap();
                assert_eq!(Reply::decode(Header::decode(head).unwrap(), rest), Ok(reply));
            }
        }
    }
    for command in ProcessInfoCommand::ALL {
        if let Ok(info) = ProcessInfo::decode(command, data) {
            let again = info.encode(command).unwrap();
            // A later version may have had more fields, which are skipped.
            let decoded = ProcessInfo::decode(command, &again).unwrap();
            assert_eq!((decoded.pid, decoded.cookie), (info.pid, info.cookie));
            assert_eq!(decoded.command_line, info.command_line);
        }
    }
    if let Ok(environment) = Environment::decode(data) {
        assert_eq!(environment.iter().count(), environment.len());
        assert_eq!(Environment::decode(&environment.encode().unwrap()), Ok(environment));
    }
    let _ = EnvironmentHeader::decode(data);
    if let Some(Ok(advertise)) = data.first_chunk().map(Advertise::decode) {
        assert_eq!(Advertise::decode(&advertise.encode()), Ok(advertise));
    }
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = text.parse::<diag_ipc::Guid>();
        if let Ok(provider) = text.parse::<diag_ipc::Provider>() {
            assert_eq!(provider.to_string().parse(), Ok(provider));
        }
    }
}
