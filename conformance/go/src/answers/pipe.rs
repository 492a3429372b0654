//! A pipe between a Go and a .NET process.

use super::dotnet::PROVIDERS;
use super::recorder::{Dotnet, Recorder, numbers};
use super::timeline::{Timeline, is_on_cpu, ms, require, sum, within};
use std::path::Path;
use std::process::{Command, Stdio};
use task_support::Result;
use trace_timeline::SpanKind;
use trace_timeline::answers::Piece;

/// A Go program sends requests to a .NET program, and waits for the answers: the path is the
/// computing of the .NET thread.
pub(super) fn check(targets: &Path, runtime: &str, program: &Path) -> Result<()> {
    let mut recorder = Recorder::start()?;
    let (mut server, (to_server, from_server)) = Dotnet::start(targets, runtime, "serve")?;
    server.collect(&mut recorder, &PROVIDERS)?;
    let mut client = Command::new(program.join("program"))
        .args(["requests.trace", "requests"])
        .current_dir(program)
        .stdin(Stdio::from(from_server))
        .stdout(Stdio::from(to_server))
        .stderr(Stdio::piped())
        .spawn()?;
    let status = recorder.until("end of the Go program", || Ok(client.try_wait()?));
    if status.is_err() {
        client.kill()?;
    }
    let output = client.wait_with_output()?;
    let printed = String::from_utf8(output.stderr)?;
    if !status?.success() {
        return Err(format!("the Go program: {printed}").into());
    }
    let (trace, errors) = server.finish(&mut recorder)?;
    let served = errors.iter().find(|line| line.starts_with("served "));
    let (_, served) = numbers(served.ok_or("the server printed no time")?)?;
    let [thread, cpu] = served.try_into().map_err(|_| "two numbers")?;
    let recorded = recorder.finish()?;
    let timeline = Timeline::of(recorded, Some(&program.join("requests.trace")), &[trace])?;
    let (_, measured) = numbers(printed.trim())?;
    let path = timeline.path(SpanKind::Task, "requests")?;
    within("pipe to .NET: wall time", sum(&path, |_| true), measured[0], 2.0)?;
    let pieces = path.pieces.iter().filter(|piece| is_on_cpu(&piece.what));
    let pieces = pieces.filter(|piece| timeline.number(piece.entity) == thread);
    let computed: i64 = pieces.map(Piece::nanos).sum();
    // The server may compute while the client has written and does not wait yet.
    let own: i64 = path.pieces.iter().filter(|piece| piece.depth == 0).map(Piece::nanos).sum();
    let least = cpu - cpu / 50 - own;
    let holds = (least..=cpu + cpu / 50).contains(&computed);
    let text = format!(
        "{:.3} ms, expected {:.3} ms; {:.3} ms of the client",
        ms(computed),
        ms(cpu),
        ms(own)
    );
    require("pipe to .NET: the .NET thread computes", holds, text)
}
