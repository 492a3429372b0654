//! Every message decodes to what was encoded, and no input makes the decoder panic or allocate
//! more than there is.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "these are tests")]

use diag_ipc::message::{
    Advertise, BufferingMode, Command, DumpCommand, DumpFlags, DumpType, Environment,
    EnvironmentHeader, EventFilter, Format, Header, Level, PerfMapType, ProcessInfo,
    ProcessInfoCommand, Provider, Reply, Request, Rundown, TracepointSet, Tracepoints,
    TracingCommand, TracingConfig, UserEventsCommand, UserEventsConfig, UserEventsProvider,
};
use diag_ipc::{Guid, HResult};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

/// Any text without NUL, which the protocol cannot express.
fn text() -> impl Strategy<Value = String> {
    "[^\0]{0,12}"
}

fn name() -> impl Strategy<Value = String> {
    "[^\0]{1,12}"
}

fn guid() -> impl Strategy<Value = Guid> {
    any::<u128>().prop_map(Guid::from_u128)
}

fn provider(filter: bool) -> impl Strategy<Value = Provider> {
    let filters = (any::<bool>(), vec(any::<u32>(), 1..4))
        .prop_map(|(enable, ids)| EventFilter::new(enable, ids));
    let filters = if filter { option::of(filters).boxed() } else { Just(None).boxed() };
    (name(), any::<u64>(), 0u32..=5, text(), filters).prop_map(
        |(name, keywords, level, arguments, filter)| {
            let level = Level::from_number(level).unwrap();
            let mut provider =
                Provider::new(name).keywords(keywords).level(level).arguments(arguments);
            provider.filter = filter;
            provider
        },
    )
}

fn rundown(version: u8) -> BoxedStrategy<Rundown> {
    match version {
        1 => Just(Rundown::Default).boxed(),
        2 | 3 => prop_oneof![Just(Rundown::Default), Just(Rundown::None)].boxed(),
        _ => prop_oneof![
            Just(Rundown::Default),
            Just(Rundown::None),
            (1u64..0x8000_0000).prop_map(Rundown::Keywords),
        ]
        .boxed(),
    }
}

/// Configurations that this version of the command can express.
fn config(version: u8) -> impl Strategy<Value = TracingConfig> {
    (
        vec(provider(version >= 5), 1..5),
        1u32..,
        any::<bool>(),
        rundown(version),
        if version >= 3 { any::<bool>().boxed() } else { Just(true).boxed() },
        if version >= 6 { any::<bool>().boxed() } else { Just(false).boxed() },
    )
        .prop_map(|(providers, buffer, netperf, rundown, stacks, block)| {
            TracingConfig::new(providers)
                .buffer_mb(buffer)
                .format(if netperf { Format::NetPerf } else { Format::NetTrace })
                .rundown(rundown)
                .stacks(stacks)
                .buffering(if block { BufferingMode::Block } else { BufferingMode::Drop })
        })
}

fn user_events() -> impl Strategy<Value = UserEventsConfig> {
    let sets = vec(
        (name(), vec(any::<u32>(), 0..4)).prop_map(|(name, ids)| TracepointSet::new(name, ids)),
        0..3,
    );
    let providers = (provider(true), name(), sets).prop_map(|(provider, default, sets)| {
        let mut tracepoints = Tracepoints::new(default);
        tracepoints.sets = sets;
        UserEventsProvider::new(provider, tracepoints)
    });
    (rundown(5), vec(providers, 1..4))
        .prop_map(|(rundown, providers)| UserEventsConfig::new(providers).rundown(rundown))
}

fn tracing(command: TracingCommand) -> impl Strategy<Value = Request> {
    let version = command.command().id() - 1;
    config(version).prop_map(move |config| Request::CollectTracing { command, config })
}

fn user_events_request(command: UserEventsCommand) -> impl Strategy<Value = Request> {
    user_events().prop_map(move |config| Request::CollectUserEvents { command, config })
}

/// A request of every kind, in every version.
fn request() -> impl Strategy<Value = Request> {
    let dump_types = [DumpType::Normal, DumpType::WithHeap, DumpType::Triage, DumpType::Full];
    let perf_maps = [PerfMapType::All, PerfMapType::JitDump, PerfMapType::PerfMap];
    prop_oneof![
        (select(DumpCommand::ALL.to_vec()), name(), select(dump_types.to_vec()), any::<u32>())
            .prop_map(|(command, path, dump_type, flags)| Request::CreateCoreDump {
                command,
                path,
                dump_type,
                flags: DumpFlags::from_bits_retain(flags),
            }),
        any::<u64>().prop_map(|session| Request::StopTracing { session }),
        select(TracingCommand::ALL.to_vec()).prop_flat_map(tracing),
        select(UserEventsCommand::ALL.to_vec()).prop_flat_map(user_events_request),
        (any::<u32>(), guid(), name(), any::<Vec<u8>>()).prop_map(
            |(timeout_ms, clsid, path, client_data)| Request::AttachProfiler {
                timeout_ms,
                clsid,
                path,
                client_data,
            }
        ),
        (guid(), name()).prop_map(|(clsid, path)| Request::StartupProfiler { clsid, path }),
        select(ProcessInfoCommand::ALL.to_vec())
            .prop_map(|command| Request::ProcessInfo { command }),
        Just(Request::ResumeRuntime),
        Just(Request::ProcessEnvironment),
        (name(), text()).prop_map(|(name, value)| Request::SetEnvironmentVariable { name, value }),
        select(perf_maps.to_vec())
            .prop_map(|perf_map_type| Request::EnablePerfMap { perf_map_type }),
        Just(Request::DisablePerfMap),
        name().prop_map(|path| Request::ApplyStartupHook { path }),
    ]
}

fn header(message: &[u8]) -> Header {
    Header::decode(message.first_chunk().unwrap()).unwrap()
}

proptest! {
    #[test]
    fn requests(request in request()) {
        let message = request.encode().unwrap();
        prop_assert_eq!(usize::from(header(&message).size), message.len());
        prop_assert_eq!(Request::decode(&message), Ok(request));
    }

    #[test]
    fn requests_cut_short(request in request(), cut in 0usize..2000) {
        let message = request.encode().unwrap();
        if cut < message.len() {
            prop_assert!(Request::decode(&message[..cut]).is_err());
        }
    }

    #[test]
    fn requests_with_errors(request in request(), at in any::<prop::sample::Index>(), byte: u8) {
        let mut message = request.encode().unwrap();
        let at = at.index(message.len());
        message[at] = byte;
        // What is still a message says what was changed, or was not changed.
        if let Ok(changed) = Request::decode(&message) {
            if let Ok(again) = changed.encode() {
                prop_assert_eq!(Request::decode(&again), Ok(changed));
            }
        }
    }

    #[test]
    fn replies(payload in vec(any::<u8>(), 0..100), code: u32, text in option::of(name())) {
        for reply in [
            Reply::Ok(&payload),
            Reply::Error { code: HResult::from(code), message: text.map(Into::into) },
        ] {
            let message = reply.encode().unwrap();
            prop_assert_eq!(Reply::decode(header(&message), &message[Header::LEN..]), Ok(reply));
        }
    }

    #[test]
    fn process_information(
        pid: u64,
        cookie in guid(),
        fields in vec(text(), 6),
        version in 0usize..3,
    ) {
        let command = ProcessInfoCommand::ALL[version];
        // There is no other way to make one from outside.
        let oldest = ProcessInfoCommand::ProcessInfo;
        let mut info = ProcessInfo::decode(oldest, &[0; 36]).unwrap();
        info.pid = pid;
        info.cookie = cookie;
        info.command_line.clone_from(&fields[0]);
        info.os.clone_from(&fields[1]);
        info.arch.clone_from(&fields[2]);
        if version >= 1 {
            info.entry_assembly = Some(fields[3].clone());
            info.clr_version = Some(fields[4].clone());
        }
        if version >= 2 {
            info.portable_rid = Some(fields[5].clone());
        }
        let payload = info.encode(command).unwrap();
        prop_assert_eq!(ProcessInfo::decode(command, &payload), Ok(info));
        for cut in 0..payload.len() {
            prop_assert!(ProcessInfo::decode(command, &payload[..cut]).is_err());
        }
    }

    #[test]
    fn environments(entries in vec(text(), 0..8)) {
        let environment: Environment = entries.iter().cloned().collect();
        let bytes = environment.encode().unwrap();
        prop_assert_eq!(Environment::decode(&bytes), Ok(environment));
        let header = EnvironmentHeader { size: bytes.len() as u32 };
        prop_assert_eq!(EnvironmentHeader::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn advertisements(cookie in guid(), pid: u64) {
        let advertise = Advertise { cookie, pid };
        prop_assert_eq!(Advertise::decode(&advertise.encode()), Ok(advertise));
    }

    #[test]
    fn noise(bytes in vec(any::<u8>(), 0..300)) {
        let _ = Request::decode(&bytes);
        let _ = Environment::decode(&bytes);
        let _ = EnvironmentHeader::decode(&bytes);
        for command in ProcessInfoCommand::ALL {
            let _ = ProcessInfo::decode(command, &bytes);
        }
        for command in Command::ALL {
            // Behind a header that fits.
            let mut message = Vec::from(diag_ipc::message::MAGIC);
            message.extend((Header::LEN as u16 + bytes.len() as u16).to_le_bytes());
            message.extend([command.set() as u8, command.id(), 0, 0]);
            message.extend(&bytes);
            let _ = Request::decode(&message);
        }
    }

    #[test]
    fn guids_as_text(guid in guid()) {
        prop_assert_eq!(guid.to_string().parse(), Ok(guid));
    }
}
