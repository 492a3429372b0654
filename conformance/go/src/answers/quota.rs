//! A program whose cgroup has a CPU quota.

use super::go::run_program;
use super::recorder::{Recorder, numbers};
use super::timeline::{
    Timeline, is_on_cpu, is_waiting_for_cpu, ms, require, sum, within, within_steal,
};
use std::fs;
use std::path::{Path, PathBuf};
use task_support::{Result, lane};
use trace_timeline::SpanKind;
use trace_timeline::answers::What;

/// The quota, in microseconds of a period of 100 ms.
const QUOTA: u32 = 10_000;

/// A cgroup with a CPU quota. Dropping it removes it.
#[derive(Debug)]
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes one, in cgroup v2 or v1: whichever has the CPU controller.
    ///
    /// # Errors
    /// No CPU controller is mounted, or this user cannot make a cgroup.
    pub fn make() -> Result<Self> {
        let name = format!("triscope-answers-{}", std::process::id());
        let unified = Path::new("/sys/fs/cgroup");
        let controllers = fs::read_to_string(unified.join("cgroup.controllers"));
        if controllers.is_ok_and(|all| all.split_whitespace().any(|one| one == "cpu")) {
            fs::write(unified.join("cgroup.subtree_control"), "+cpu")?;
            let this = Self(unified.join(name));
            fs::create_dir(&this.0)?;
            fs::write(this.0.join("cpu.max"), format!("{QUOTA} 100000"))?;
            return Ok(this);
        }
        let old = ["cpu", "cpu,cpuacct"].map(|name| unified.join(name));
        let dir = old.into_iter().find(|dir| dir.join("tasks").exists());
        let this = Self(dir.ok_or("no CPU controller of cgroups is mounted")?.join(name));
        fs::create_dir(&this.0)?;
        fs::write(this.0.join("cpu.cfs_period_us"), "100000")?;
        fs::write(this.0.join("cpu.cfs_quota_us"), QUOTA.to_string())?;
        Ok(this)
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Fails only if a program that failed is still in it.
        let _ = fs::remove_dir(&self.0);
    }
}

pub(super) fn check(program: &Path) -> Result<()> {
    let cgroup = match Cgroup::make() {
        Ok(cgroup) => cgroup,
        Err(why) => return lane::skip("throttling by a CPU quota", &why),
    };
    let mut recorder = Recorder::start()?;
    let cpu_stat = cgroup.0.join("cpu.stat");
    let dir = cgroup.0.to_str().ok_or("the path of a cgroup is text")?;
    let printed =
        run_program(&mut recorder, program, &["quota.trace", "quota", dir], Some(cpu_stat))?;
    let recorded = recorder.finish()?;
    let timeline = Timeline::of(recorded, Some(&program.join("quota.trace")), &[])?;
    let (_, measured) = numbers(printed.trim())?;
    let [wall, cpu, throttled, periods] = measured.try_into().map_err(|_| "four numbers")?;
    let path = timeline.path(SpanKind::Task, "quota")?;
    within("quota: wall time", sum(&path, |_| true), wall, 2.0)?;
    let on_cpu = sum(&path, is_on_cpu);
    within_steal("quota: CPU time", on_cpu, 0, timeline.steal, cpu)?;
    // The kernel adds up the times of all CPUs. Other threads of the program can be throttled on another one, and
    // have their share of it.
    let throttled = throttled.min(wall - cpu);
    let found = sum(&path, |what| matches!(what, What::Throttled));
    let is_wait =
        |what: &What| is_waiting_for_cpu(what) || matches!(what, What::WaitsForProc { .. });
    let waits = sum(&path, is_wait);
    eprintln!("quota: {periods} periods; {:.3} ms in the queue of a CPU or P", ms(waits));
    // While the group is throttled, its thread may also be in the queue of a CPU that others use,
    // before it is taken out, and its goroutine in that of a P whose thread is throttled: the kernel's
    // time includes that, ours does not.
    let lacking = (throttled - found).clamp(0, waits);
    within("quota: throttled", found + lacking, throttled, 5.0)?;
    require("quota: most of it is seen", found * 2 > throttled, format!("{:.3} ms", ms(found)))?;
    require("quota: throttled in each period", periods >= 5, format!("{periods} periods"))
}
