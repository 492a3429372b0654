//! Processes are found by what they are, wherever they live.

use super::*;
use diag_ipc::Error;
use diag_ipc::discovery::{self, Process};

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn processes_are_found() {
    let targets = Runtime::ALL.map(|runtime| Checked::start(Target::of(runtime)));
    let found = discovery::processes().unwrap();
    for target in &targets {
        let process = found.processes.iter().find(|p| p.pid == target.pid()).expect("it is listed");
        assert_eq!(process.namespace_pid, target.pid());
        assert_eq!(process.address().path(), target.socket());
        assert_eq!(discovery::default_server_address(target.pid()).unwrap(), process.address());
        assert!(!process.command_line().is_empty());
        assert_eq!(process.client().peer().unwrap().pid, Some(target.pid()));
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_relative_tmpdir_is_in_the_working_directory() {
    for runtime in Runtime::ALL {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("tmp")).unwrap();
        let mut target = Target::of(runtime)
            .wrapper(["env", "-C", directory.path().to_str().unwrap()])
            .env("TMPDIR", "./tmp")
            .no_wait()
            .start();
        target.await_workload();
        let process = Process::find(target.pid()).unwrap();
        let path = process.address().path().canonicalize().unwrap();
        let expected = directory.path().join("tmp").canonicalize().unwrap();
        assert_eq!(path.parent(), Some(expected.as_path()), "{runtime:?}");
        assert_eq!(process.client().peer().unwrap().pid, Some(target.pid()));
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_runtime_without_diagnostics() {
    for runtime in [Runtime::Net9, Runtime::Net10] {
        let mut target = Target::of(runtime).env("DOTNET_EnableDiagnostics", "0").no_wait().start();
        target.await_workload();
        let error = Process::find(target.pid()).unwrap_err();
        assert!(matches!(error, Error::NoSocket { .. }), "{error}");
        target.assert_alive();
    }
}

/// A target as in a container: its own process ids, and a directory with other contents.
#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_process_in_other_namespaces() {
    const UNSHARE: [&str; 6] =
        ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"];
    let possible = std::process::Command::new(UNSHARE[0]).args(&UNSHARE[1..]).arg("true").output();
    match possible {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            return skip("a process in other namespaces", &why);
        }
        Err(e) => return skip("a process in other namespaces", &e),
    }
    for runtime in Runtime::ALL {
        // The shell that mounts becomes the target: process 1 of its namespace. It mounts over a
        // directory that holds nothing else: the runtime may be anywhere below /tmp.
        let mounted = tempfile::tempdir().unwrap();
        let script = "mount -t tmpfs none \"$MOUNTED\" && mkdir \"$MOUNTED\"/deep && \
                      ln -s \"$MOUNTED\"/deep \"$MOUNTED\"/link && exec \"$0\"";
        let tmpdir = mounted.path().join("link");
        let mut target = Target::of(runtime)
            .mode("mix")
            .wrapper(UNSHARE.into_iter().chain(["sh", "-c", script]))
            .env("MOUNTED", mounted.path())
            .env("TMPDIR", &tmpdir)
            .no_wait()
            .start();
        let child = |t: &Target| {
            std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", t.pid()))
                .ok()
                .and_then(|children| children.trim().parse::<u32>().ok())
        };
        target.wait_until("listens", |t| {
            child(t).is_some_and(|pid| Process::find(pid).is_ok_and(|p| p.client().peer().is_ok()))
        });
        let pid = child(&target).unwrap();
        let process = Process::find(pid).unwrap();
        assert_eq!((process.pid, process.namespace_pid), (pid, 1));
        assert!(
            process.address().path().starts_with(format!("/proc/{pid}/root{}", tmpdir.display())),
            "{}",
            process.address()
        );
        let client = process.client();
        assert_eq!(client.peer().unwrap().pid, Some(pid));
        match client.process_info() {
            Ok(info) => assert_eq!(info.pid, 1, "the process id in its own namespace"),
            Err(e) => assert!(runtime == Runtime::Core31 && e.is_unknown_command(), "{e}"),
        }
        let config = diag_ipc::TracingConfig::new([diag_ipc::Provider::new("Triscope-Workload")]);
        assert!(client.collect_tracing(&config).unwrap().stop().is_complete());
        assert!(discovery::processes().unwrap().processes.iter().any(|p| p.pid == pid));
        target.assert_alive();
    }
}
