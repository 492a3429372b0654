use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;
pub(crate) use testkit::process::{Ran, Running, kill, nobody};
pub(crate) use testkit::skip::can;

pub(crate) fn triscope(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
    command.args(args).stdin(Stdio::null());
    command
}

/// The program with the default effect of signals, also if the tests run under `nohup`.
pub(crate) fn with_default_signals(args: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,INT,TERM", env!("CARGO_BIN_EXE_triscope")]);
    command.args(args).stdin(Stdio::null());
    command
}

/// The program as a script starts it in the background: with SIGINT ignored.
pub(crate) fn in_background(args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let script = "trap '' INT; exec env --default-signal=HUP,TERM \"$@\"";
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_triscope")]);
    command.args(args).stdin(Stdio::null());
    command
}

/// Waits until a file is there.
pub(crate) fn wait_for(path: &Path) {
    testkit::wait::until(&path.display().to_string(), || path.exists());
}

/// Starts a recording of a running process with `--progress`, which goes to this log, and waits until it has begun.
pub(crate) fn begin_recording(command: &mut Command, log: &Path) -> Running {
    let recording = Running::spawn(command.stderr(std::fs::File::create(log).unwrap()));
    testkit::wait::until("the progress", || {
        recording.still_runs();
        std::fs::read_to_string(log).unwrap().contains(" s: ")
    });
    recording
}

/// Waits for the end, and returns the exit code.
pub(crate) fn code(running: &mut Running) -> Option<i32> {
    let child = running.child();
    let mut status = None;
    testkit::wait::until("its end", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap().code()
}

pub(crate) fn run(args: &[&str]) -> Ran {
    triscope(args).output().unwrap().into()
}

/// Runs in a directory, where outputs go.
pub(crate) fn run_in(dir: &Path, args: &[&str]) -> Ran {
    triscope(args).current_dir(dir).output().unwrap().into()
}

fn status_field(name: &str) -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().to_owned()
}

pub(crate) fn is_root() -> bool {
    status_field("Uid").split_whitespace().nth(1) == Some("0")
}

/// Ends the test, loudly, without root and the scheduler's tracepoints. Those that have them take
/// turns, as one's flood of events is another's loss. Tests `beside others` watch few programs of their
/// own, or wait for most of their time: they run beside each other.
#[macro_export]
macro_rules! needs_root {
    () => {
        $crate::needs_root!(by turn);
    };
    (beside others) => {
        $crate::needs_root!(by turn_beside_others);
    };
    (by $turn:ident) => {
        if !$crate::support::can("root, with tracepoints", $crate::support::is_able()) {
            return;
        }
        let _turn = $crate::support::$turn();
    };
}

static TURN: RwLock<()> = RwLock::new(());

pub(crate) fn turn() -> RwLockWriteGuard<'static, ()> {
    TURN.write().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn turn_beside_others() -> RwLockReadGuard<'static, ()> {
    TURN.read().unwrap_or_else(PoisonError::into_inner)
}

/// Root, where root may do what these tests need: not so in most containers.
pub(crate) fn is_able() -> bool {
    static ABLE: OnceLock<bool> = OnceLock::new();
    *ABLE.get_or_init(|| {
        let tries = ["perf", "stat", "-e", "sched:sched_switch", "true"];
        let first = std::fs::read_link("/proc/self/ns/pid");
        let outside = first.is_ok_and(|link| link == Path::new("pid:[4026531836]"));
        is_root() && outside && run(&tries).code == Some(0)
    })
}

pub(crate) fn paranoid() -> i32 {
    let text = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    text.map_or(i32::MAX, |text| text.trim().parse().unwrap())
}

/// Whether unprivileged users may count events of their own processes.
///
/// A filter of system calls refuses it at any level: it is tried.
pub(crate) fn users_may_count() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    *MAY.get_or_init(|| {
        let tries = ["perf", "stat", "-e", "task-clock:u", "true"];
        paranoid() <= 2 && as_nobody(&tries).output().unwrap().status.success()
    })
}

/// The program where any user may run it.
fn program_for_all() -> &'static Path {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| {
        use std::os::unix::fs::PermissionsExt;
        let dir = testkit::directory::of_this_process();
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&dir, open).unwrap();
        let program = dir.join("triscope");
        testkit::program::copy(env!("CARGO_BIN_EXE_triscope"), &program);
        program
    })
}

/// The program as a user without any privilege.
pub(crate) fn as_nobody(args: &[&str]) -> Command {
    if !is_root() {
        return triscope(args);
    }
    let mut command = Command::new(program_for_all());
    command.args(args).stdin(Stdio::null()).uid(nobody()).gid(nobody()).current_dir("/");
    command
}

/// The program in mounts of its own, which `script` changes before, as a user of its own with
/// these capabilities of root. Needs root.
pub(crate) fn as_nobody_with(script: &str, capabilities: &str, args: &[&str]) -> Ran {
    let nobody = nobody();
    let script = format!(
        "{script}\nexec setpriv --reuid {nobody} --regid {nobody} --clear-groups \
        --inh-caps={capabilities} --ambient-caps={capabilities} \"$@\""
    );
    let args = args.iter().map(OsStr::new);
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", &script, "sh"]).arg(program_for_all()).args(args);
    command.stdin(Stdio::null()).current_dir("/").output().unwrap().into()
}

/// Takes every tracefs away.
pub(crate) const WITHOUT_TRACEFS: &str = "for m in $(awk '$3 == \"tracefs\" || $3 == \"debugfs\" {print $2}' /proc/mounts); do \
     umount -l \"$m\"; done";

/// Mounts one where none is, which is root's alone.
pub(crate) const WITH_TRACEFS: &str =
    "mountpoint -q /sys/kernel/tracing || mount -t tracefs nodev /sys/kernel/tracing";

/// The newest Go toolchain of the tests, else the installed one.
pub(crate) fn go() -> Option<Command> {
    let newest = testkit::go::toolchains().pop();
    can("a Go toolchain", newest.is_some());
    let mut command = Command::new(newest?);
    command.env("GOTOOLCHAIN", "local").env("GOWORK", "off").env("GOFLAGS", "");
    Some(command)
}

/// The names in a directory.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A process that has ended, and was waited for.
pub(crate) fn dead_pid() -> u32 {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

/// A program that does something known, to be watched: its arguments.
pub(crate) fn child(role: &str) -> Vec<String> {
    let program = std::env::current_exe().unwrap();
    let role = format!("PERF_TEST_CHILD={role}");
    let program = program.to_str().unwrap();
    ["env", &role, program, "--exact", "child", "--test-threads=1"].map(str::to_owned).to_vec()
}

pub(crate) fn child_main(role: &str) -> ! {
    let (role, number) = role.split_once(' ').unwrap_or((role, "0"));
    let number: usize = number.parse().unwrap();
    match role {
        "threads" => {
            // They sleep so that each is switched away from.
            let start = |n| {
                let thread = std::thread::Builder::new().name(format!("worker-{n}"));
                thread.spawn(|| std::thread::sleep(Duration::from_millis(5))).unwrap()
            };
            for thread in (0..number).map(start).collect::<Vec<_>>() {
                thread.join().unwrap();
            }
        }
        // A thread that begins each millisecond, and lasts for ten switches, until it is killed.
        "breed" => loop {
            std::thread::spawn(|| {
                (0..10).for_each(|_| std::thread::sleep(Duration::from_millis(20)));
            });
            std::thread::sleep(Duration::from_millis(1));
        },
        // Not the main thread executes a program.
        "executes" => {
            let execute = || Command::new("/bin/true").exec();
            panic!("{}", std::thread::spawn(execute).join().unwrap());
        }
        // Two threads that never sleep, until they are killed.
        "spin" => {
            let spin = || -> () {
                loop {
                    std::hint::spin_loop();
                }
            };
            std::thread::spawn(spin);
            spin();
        }
        "probed" => (0..number).for_each(|x| {
            // A compiler that knows an argument does not pass it.
            crate::probe::probed(x as u64, std::hint::black_box(1000));
        }),
        // Two threads that wake each other in turn.
        "ping-pong" => {
            use std::io::Read;
            let (mut here, mut there) = std::os::unix::net::UnixStream::pair().unwrap();
            let pong = std::thread::Builder::new().name("pong".into()).spawn(move || {
                let mut byte = [0];
                for _ in 0..number {
                    there.read_exact(&mut byte).unwrap();
                    there.write_all(&byte).unwrap();
                }
            });
            let mut byte = [0];
            for _ in 0..number {
                here.write_all(&byte).unwrap();
                here.read_exact(&mut byte).unwrap();
            }
            pong.unwrap().join().unwrap();
        }
        other => panic!("no role {other}"),
    }
    std::process::exit(0);
}

/// A cgroup without tasks in the hierarchy with perf events, removed at the end.
pub(crate) struct Cgroup {
    pub(crate) name: String,
    dir: PathBuf,
}

/// Makes an empty cgroup; `None` if no hierarchy with perf events is mounted or writable.
pub(crate) fn empty_cgroup() -> Option<Cgroup> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let fields = || mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let first = fields().find(|f| f[2] == "cgroup" && f[3].split(',').any(|o| o == "perf_event"));
    let root = first.or_else(|| fields().find(|f| f[2] == "cgroup2"))?[1].to_owned();
    let name = format!("triscope-test-{}", std::process::id());
    let dir = Path::new(&root).join(&name);
    std::fs::create_dir(&dir).ok()?;
    Some(Cgroup { name, dir })
}

impl Cgroup {
    /// Whether it is of version 2.
    pub(crate) fn is_unified(&self) -> bool {
        self.dir.join("cgroup.controllers").exists()
    }

    /// The file that moves a process into it.
    pub(crate) fn procs(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.dir); // the test has failed otherwise
    }
}
