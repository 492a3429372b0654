//! The directory of a recorder: its lock, its sealed segments and its dumps.
//!
//! ```text
//! DIR/lock                         held by the recorder
//! DIR/control.sock                 where it takes commands
//! DIR/boot_id                      the boot whose clock the segments have
//! DIR/events                       a recording without records: the events of the recorder, and their formats
//! DIR/segments/ID-START.partial    the segment in progress
//! DIR/segments/ID-START-END-LOST.perf.data
//! DIR/sources/                     of runtimes: see `sources`
//! DIR/left/                        what an earlier recorder left there
//! DIR/dumps/NAME/                  manifest.json and traces
//! ```
//!
//! All of it is reached by the directory, which is opened once: a recorder without capabilities may not enter those
//! above it.

use super::assemble::{Assembled, Input, Known, assemble, is_within};
use super::control::SOCKET;
use super::kernel::is_full;
use super::sources::{self, Collected};
use crate::failure::{Failure, OneLine, Result};
use crate::io::place::Place;
use crate::io::skeleton::Skeleton;
use crate::io::{private, private_dir};
use crate::run::cleanup;
use crate::sources::manifest::MANIFEST;
use crate::sources::model::{BOOT, DUMPS, RECORDING, SCHEDULER};
use crate::sources::processes::ProcessWriter;
use crate::timeline::{counted, now};
use crossbeam_channel::Receiver;
use perf_data::{Features, FileWriter, Reader, RecordedEvent, TracingData};
use perf_monitor::{ProcessInfo, Record};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use trace_flight::{
    Budget, Cause, ClockChange, Coverage, CpuGap, Manifest, Ring, Segment, Timestamp, Window,
};

/// The directory, of which this process is the only recorder.
pub(super) struct Store {
    dir: Place,
    /// Held until the end.
    _lock: File,
    pub(super) ring: Ring,
    next: u64,
    /// Maximum bytes of all dumps.
    dumps: u64,
    /// Segments of an earlier boot, whose times are of another clock.
    pub(super) earlier: Vec<Segment>,
    /// The boot of this clock, if the directory does not have it yet: segments of an earlier one are kept
    /// apart by it until their dump is complete.
    boot: Option<String>,
    /// Files of segments that could not be removed.
    unremoved: Vec<Place>,
    /// Directories with sources of an earlier recorder, for the next dump.
    left: Vec<Place>,
    /// The dumps of this recorder, oldest first: their names begin with the wall-clock time, which can be set
    /// back.
    made: Vec<PathBuf>,
    /// The last known sizes of dumps: one that was given to another user cannot be read any more.
    sizes: BTreeMap<PathBuf, u64>,
    /// The dumps of which a message says that they cannot be read or removed.
    refused: BTreeSet<PathBuf>,
    /// What this recorder has created, until it is taken.
    skeleton: Option<(Skeleton, cleanup::Guard)>,
}

/// Disk space.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space {
    pub(super) segments: u64,
    pub(super) dumps: u64,
}

/// What a dump is made of. Its segments stay readable while they are evicted.
pub(super) struct Dump {
    pub(super) window: Window,
    pub(super) segments: Vec<Segment>,
    inputs: Vec<Input>,
    target: Place,
    pub(super) tracing: Option<TracingData>,
    /// The file of [`Store::keep_events`].
    events: Option<File>,
    /// The process that is recorded, and its program.
    pub(super) subject: Option<(u32, String)>,
    /// Whether the command lines of processes are kept.
    pub(super) command_lines: bool,
    pub(super) missing: Vec<String>,
    /// The sources beside the kernel.
    pub(super) collected: Option<Receiver<Vec<Collected>>>,
    left: Vec<Place>,
    /// `CLOCK_REALTIME` less `CLOCK_MONOTONIC`. If it is not known, the last segment has it.
    pub(super) wall_clock_offset: Option<i64>,
    pub(super) clock_changes: Vec<ClockChange>,
    pub(super) cpus: Vec<CpuGap>,
}

/// What a dump holds until it is written.
#[derive(Debug)]
pub(super) struct Held {
    segments: Vec<Segment>,
    left: Vec<Place>,
    /// Where the dump is once it is complete.
    target: PathBuf,
}

/// A dump in the directory.
struct Found {
    place: Place,
    bytes: u64,
    /// Why the size is the last known one.
    unread: Option<io::Error>,
}

/// A dump that is complete.
pub(super) struct Dumped {
    pub(super) path: PathBuf,
    pub(super) manifest: Manifest,
    pub(super) bytes: u64,
}

const LOCK: &str = "lock";
const EVENTS: &str = "events";
const SEGMENTS: &str = "segments";
const SOURCES: &str = "sources";
const LEFT: &str = "left";
/// Time limit for the replies of the thread of the sources: a runtime may hang.
const SOURCES_TIMEOUT: Duration = Duration::from_secs(10);
/// The end of the name of a segment in progress, and of a dump in progress.
const PARTIAL: &str = ".partial";
const SEALED: &str = ".perf.data";

/// A segment of an earlier boot is shorter.
pub(super) const LONGEST: Duration = Duration::from_secs(3600);

/// Bytes of the number of a boot.
const MAX_BOOT: u64 = 64;

/// Segments have smaller numbers.
const MAX_ID: u64 = u64::MAX / 2;

impl Store {
    /// Opens the directory, creates it, or adopts what an earlier recorder left there.
    pub(super) fn open(dir: &Path, space: Space, keep: Duration) -> Result<Self> {
        let fail = |error: io::Error| Failure::about(dir.display(), error);
        let (is_empty, is_new) = match fs::read_dir(dir) {
            Ok(mut entries) => (entries.next().is_none(), false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                DirBuilder::new()
                    .recursive(true)
                    .mode(private_dir::MODE)
                    .create(dir)
                    .map_err(fail)?;
                (true, true)
            }
            Err(error) => return Err(fail(error)),
        };
        if !is_empty && fs::symlink_metadata(dir.join(LOCK)).is_err() {
            let why = "is neither empty nor the directory of a flight recorder";
            return Err(Failure::about(dir.display(), why));
        }
        let dir = private_dir::secure(dir)?;
        let lock = lock(&dir)?;
        let created = cleanup::create(|| {
            for name in [SEGMENTS, DUMPS, SOURCES] {
                private_dir::create(dir.join(name))?;
            }
            let skeleton = is_empty.then(|| {
                let files = [BOOT, EVENTS, SOCKET, LOCK];
                Skeleton::new(&dir, is_new, &[SEGMENTS, DUMPS, SOURCES, LEFT], &files)
            });
            let files = skeleton.clone();
            let remove = move || files.clone().into_iter().for_each(Skeleton::remove);
            Ok::<_, Failure>((skeleton, remove))
        });
        let (skeleton, guard) = created?;
        let skeleton = skeleton.zip(Some(guard));
        if fs::symlink_metadata(dir.join(LEFT)).is_ok() {
            private_dir::secure(dir.join(LEFT))?;
        }
        let mut this = Self {
            left: vec![dir.join(LEFT), dir.join(SOURCES)],
            dir,
            _lock: lock,
            ring: Ring::new(Budget { bytes: space.segments, keep }),
            next: 0,
            dumps: space.dumps,
            earlier: Vec::new(),
            boot: None,
            unremoved: Vec::new(),
            made: Vec::new(),
            sizes: BTreeMap::new(),
            refused: BTreeSet::new(),
            skeleton,
        };
        this.adopt()?;
        // While there are the privileges for it.
        this.sizes = sizes(&this.dumps().unwrap_or_default());
        Ok(this)
    }

    /// What to remove if the start fails, and what does so at an exit.
    pub(super) const fn skeleton(&mut self) -> Option<(Skeleton, cleanup::Guard)> {
        self.skeleton.take()
    }

    /// The directory.
    pub(super) const fn dir(&self) -> &Place {
        &self.dir
    }

    pub(super) const fn set_space(&mut self, space: Space, keep: Duration) {
        self.ring.set_budget(Budget { bytes: space.segments, keep });
        self.dumps = space.dumps;
    }

    /// The directory for the sources of this recorder. What another one left there is moved, to that of those before. A
    /// file that cannot be moved or removed stays where it is.
    pub(super) fn sources(&mut self) -> Result<Place> {
        let (sources, left) = (self.dir.join(SOURCES), self.dir.join(LEFT));
        private_dir::create(&left)?;
        self.clear_left();
        self.report(sources::put_aside(sources.path(), left.path()));
        // Nor do those that are killed often leave more and more.
        self.report(sources::shrink(left.path(), self.ring.budget().bytes));
        self.left = vec![left];
        Ok(sources)
    }

    /// Removes what an earlier recorder left of its sources and no dump of this one needs: recorders that end soon after their
    /// start would leave more and more.
    pub(super) fn clear_left(&self) {
        // What is there otherwise belongs to a dump that could not be written.
        if self.earlier.is_empty() {
            for name in [LEFT, SOURCES] {
                let dir = self.dir.join(name);
                self.report(sources::clear(dir.path(), self.ring.budget().keep));
            }
        }
    }

    /// Prints why what an earlier recorder left stays.
    fn report(&self, result: io::Result<()>) {
        if let Err(error) = result {
            let why = "what an earlier recorder left of Go and .NET may stay for ever";
            Failure::about(self.dir.join(LEFT).display(), error).and(why).print();
        }
    }

    /// Removes what an earlier recorder left of its sources: its time has passed.
    pub(super) fn forget_left(&mut self) {
        for dir in self.left.drain(..) {
            let _ = sources::clear(dir.path(), Duration::ZERO); // the next recorder tries it again
        }
    }

    /// Takes over the segments that are there.
    fn adopt(&mut self) -> Result {
        let about = |path: &Place, error: io::Error| Failure::about(path.display(), error);
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let path = self.dir.join(BOOT);
        let before = private_dir::open(&path, OpenOptions::new().read(true));
        let before = before.ok().and_then(|file| io::read_to_string(file.take(MAX_BOOT)).ok());
        let is_same_boot = before.is_some_and(|before| before == boot);
        let now = now().map_err(Failure::new)?;
        let latest = |start: Timestamp| if is_same_boot { now } else { start + LONGEST };
        let mut found = Vec::new();
        let segments = self.dir.join(SEGMENTS);
        for entry in fs::read_dir(&segments).map_err(|error| about(&segments, error))? {
            let entry = entry.map_err(|error| about(&segments, error))?;
            let path = segments.join(entry.file_name());
            let fail = |error: io::Error| about(&path, error);
            let metadata = entry.metadata().map_err(fail)?;
            let (bytes, is_file) = (metadata.len(), metadata.is_file());
            let name = entry.file_name().to_string_lossy().into_owned();
            let segment = match parse(&name).filter(|_| is_file) {
                Some(Named::InProgress { id, start }) => {
                    rescue(&path, id, start, latest(start)).map_err(fail)?
                }
                // A name has one form: it is made again when the file is removed.
                Some(Named::Sealed(segment)) => Some(Segment { bytes, ..segment })
                    .filter(|segment| self.path(segment).path() == path.path()),
                None => None,
            };
            match segment {
                Some(segment) => found.push(segment),
                None => {
                    let name = path.display().to_string();
                    message!("triscope: {}: nothing of it can be read", OneLine(&name));
                    if is_file && name.ends_with(PARTIAL) {
                        fs::remove_file(&path).map_err(fail)?;
                    }
                }
            }
        }
        let dumps = self.dir.join(DUMPS);
        for entry in fs::read_dir(&dumps).map_err(|error| about(&dumps, error))? {
            let entry = entry.map_err(|error| about(&dumps, error))?;
            let path = dumps.join(entry.file_name());
            // Its segments are still there. What is no directory is no dump.
            if entry.file_name().to_string_lossy().ends_with(PARTIAL)
                && entry.file_type().map_err(|error| about(&path, error))?.is_dir()
            {
                fs::remove_dir_all(&path).map_err(|error| {
                    about(&path, error).and("it is a part of a dump: remove it, or move it away")
                })?;
            }
        }
        found.sort_by_key(|segment| segment.id);
        self.next = found.last().map_or(0, |segment| segment.id + 1);
        if is_same_boot {
            for segment in found {
                // Nothing could follow a segment of the future.
                let is_future = segment.end > now;
                let sealed = if is_future {
                    Err(format!("segment {} ends after now", segment.id))
                } else {
                    self.ring.seal(segment).map_err(|error| error.to_string())
                };
                if let Err(error) = sealed {
                    message!("triscope: {error}: it is removed");
                    let path = self.path(&segment);
                    fs::remove_file(&path).map_err(|error| about(&path, error))?;
                }
            }
        } else {
            self.earlier = found;
            self.boot = Some(boot);
            if self.earlier.is_empty() {
                self.begin_boot()?;
            }
        }
        Ok(())
    }

    /// From now on, the segments of the directory are of this boot.
    fn begin_boot(&mut self) -> Result {
        let Some(boot) = &self.boot else { return Ok(()) };
        let path = self.dir.join(BOOT);
        let fail = |error: io::Error| Failure::about(path.display(), error);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
            _ => private::write_new(path.path(), boot.as_bytes()).map_err(fail)?,
        }
        self.boot = None;
        Ok(())
    }

    /// Keeps the events of this recorder with their formats: segments that it cannot seal lack them.
    pub(super) fn keep_events(&self, events: Vec<RecordedEvent>, features: &Features) -> Result {
        let path = self.dir.join(EVENTS);
        let new = path.with_ending(PARTIAL);
        let write = || -> io::Result<()> {
            let file = private::create_new(new.path())?;
            let writer = FileWriter::new(file, events).map_err(io::Error::other)?;
            // Not synchronised, as the segment in progress: the rings are not read meanwhile.
            writer.finish(features).map_err(io::Error::other)?;
            fs::rename(&new, &path)
        };
        let _ = fs::remove_file(&new); // of a recorder that was killed
        write().map_err(|error| {
            // The first error says why. That of another recorder may have been there.
            let _ = fs::remove_file(&new).and(fs::remove_file(&path));
            Failure::about(path.display(), error)
        })
    }

    /// Removes the segments of an earlier boot, whose dump is complete.
    pub(super) fn forget_earlier(&mut self) -> Result {
        let earlier = std::mem::take(&mut self.earlier);
        self.remove(&earlier);
        self.begin_boot()
    }

    /// Removes the oldest segment of an earlier boot: the disk is full.
    pub(super) fn remove_earliest(&mut self) {
        if !self.earlier.is_empty() {
            let oldest = self.earlier.remove(0);
            let path = self.path(&oldest).display().to_string();
            message!("triscope: {}: removed, as the disk is full", OneLine(&path));
            self.remove(&[oldest]);
        }
    }

    /// Moves the segments of an earlier boot, of which no dump can be made, to a directory of their own among the dumps:
    /// they count in the space of these. Each segment is a recording.
    pub(super) fn put_earlier_aside(&mut self) -> Result<Place> {
        let target = self.target("segments");
        private_dir::create(&target)?;
        self.made.push(target.path().to_owned());
        while let Some(segment) = self.earlier.first() {
            match fs::rename(self.path(segment), target.join(name(segment))) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Failure::about(target.display(), error));
                }
                _ => self.earlier.remove(0),
            };
        }
        Ok(target)
    }

    pub(super) fn path(&self, segment: &Segment) -> Place {
        self.dir.join(SEGMENTS).join(name(segment))
    }

    /// Creates the file of the next segment, which starts then. Returns its number.
    pub(super) fn create(&mut self, start: Timestamp) -> io::Result<(u64, Place, File)> {
        let id = self.next;
        let name = format!("{id:010}-{}{PARTIAL}", start.nanos());
        let path = self.dir.join(SEGMENTS).join(name);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(private::FILE)
            .open(&path)?;
        self.next += 1;
        Ok((id, path, file))
    }

    /// Seals the file of a segment.
    pub(super) fn seal(&mut self, partial: &Place, mut segment: Segment) -> io::Result<()> {
        let sealed = fs::metadata(partial).and_then(|metadata| {
            segment.bytes = metadata.len();
            fs::rename(partial, self.path(&segment))
        });
        if let Err(error) = sealed {
            // The budget does not count it.
            self.unremoved.push(partial.to_owned());
            return Err(error);
        }
        self.ring.seal(segment).map_err(io::Error::other)
    }

    /// Removes what the budget does not permit.
    pub(super) fn evict(&mut self, now: Timestamp, current: u64) {
        let evicted = self.ring.evict(now, current);
        if !evicted.is_empty() || !self.unremoved.is_empty() {
            self.remove(&evicted);
        }
    }

    /// Removes the oldest segment: the disk is full.
    pub(super) fn evict_oldest(&mut self) {
        if let Some(oldest) = self.ring.evict_oldest() {
            self.remove(&[oldest]);
        }
    }

    /// Prepares a dump of the segments that overlap a window.
    /// `more` bytes are those of other sources.
    pub(super) fn dump(&mut self, window: Window, slug: &str, more: u64) -> Result<Dump> {
        let segments: Vec<Segment> = self.ring.overlapping(&window).copied().collect();
        if segments.is_empty() {
            let why = "no segment of the window is left: it needs more --disk, or more space on the file system";
            return Err(Failure::about(self.dir.display(), why));
        }
        self.dump_of(window, segments, slug, more)
    }

    /// Prepares a dump of the segments of an earlier boot, of the last `back` at most. `None` if there are
    /// none.
    pub(super) fn dump_earlier(&mut self, back: Duration, cause: Cause) -> Option<Result<Dump>> {
        let segments = self.earlier.clone();
        self.dump_last(segments, back, cause, "recovered")
    }

    /// Prepares a dump of what a recorder left, of the last `back` at most. `None` if that is nothing.
    pub(super) fn dump_left(&mut self, back: Duration, cause: Cause) -> Option<Result<Dump>> {
        self.dump_earlier(back, cause.clone()).or_else(|| {
            let segments = self.ring.segments().copied().collect();
            self.dump_last(segments, back, cause, "command")
        })
    }

    /// Prepares a dump of the last `back` of segments, at most. One can have no length: a recorder was killed in its
    /// first moments.
    fn dump_last(
        &mut self,
        mut segments: Vec<Segment>,
        back: Duration,
        cause: Cause,
        slug: &str,
    ) -> Option<Result<Dump>> {
        let until = segments.iter().map(|segment| segment.end).max()?;
        let from = segments.iter().map(|segment| segment.start.min(segment.end)).min()?;
        let window = Window::new(from.max(until - back), until, cause);
        segments.retain(|segment| segment.end >= window.start);
        Some(self.dump_of(window, segments, slug, 0))
    }

    fn dump_of(
        &mut self,
        window: Window,
        segments: Vec<Segment>,
        slug: &str,
        more: u64,
    ) -> Result<Dump> {
        let (mut inputs, mut missing) = (Vec::new(), Vec::new());
        for segment in segments {
            let path = self.path(&segment);
            match File::open(&path) {
                Ok(file) => inputs.push(Input { segment, file }),
                Err(error) => missing.push(format!("segment {}: {error}", path.display())),
            }
        }
        if let Some(why) = missing.first().filter(|_| inputs.is_empty()) {
            return Err(Failure::about(self.dir.display(), why));
        }
        let segments: Vec<Segment> = inputs.iter().map(|input| input.segment).collect();
        let need: u64 = segments.iter().map(|segment| segment.bytes).sum();
        self.make_room(need.saturating_add(more))?;
        let target = self.target(slug);
        self.made.push(target.path().to_owned());
        self.ring.hold(&segments);
        Ok(Dump {
            window,
            segments,
            inputs,
            target,
            tracing: None,
            events: self.events(),
            subject: None,
            command_lines: false,
            missing,
            collected: None,
            left: std::mem::take(&mut self.left),
            wall_clock_offset: None,
            clock_changes: Vec::new(),
            cpus: Vec::new(),
        })
    }

    /// Where a dump is to be that is made now.
    fn target(&self, slug: &str) -> Place {
        let time = jiff::Zoned::now().with_time_zone(jiff::tz::TimeZone::UTC);
        let stem = format!("{}-{slug}", time.strftime("%Y%m%dT%H%M%S.%3fZ"));
        let names = (1..).map(|n| if n == 1 { stem.clone() } else { format!("{stem}-{n}") });
        let is_free = |name: &String| !self.dir.join(DUMPS).join(name).path().exists();
        let name = names.take(1000).find(is_free).unwrap_or(stem);
        self.dir.join(DUMPS).join(name)
    }

    /// What [`keep_events`](Self::keep_events) has kept.
    fn events(&self) -> Option<File> {
        private_dir::open(self.dir.join(EVENTS), OpenOptions::new().read(true)).ok()
    }

    /// Ends what a dump holds. If it was not written, the next one has the sources.
    pub(super) fn release(&mut self, held: Held, is_written: bool) {
        self.ring.release(&held.segments);
        if !is_written {
            self.left.extend(held.left);
        } else if let Ok(bytes) = bytes_of(&held.target) {
            self.sizes.insert(held.target, bytes);
        }
    }

    /// Removes the files of segments that are no part of the ring. Those that cannot be removed now are tried
    /// again.
    pub(super) fn remove(&mut self, segments: &[Segment]) {
        let mut paths = std::mem::take(&mut self.unremoved);
        let is_reported = !paths.is_empty();
        paths.extend(segments.iter().map(|segment| self.path(segment)));
        for path in paths {
            let Err(error) = fs::remove_file(&path) else { continue };
            let name = OneLine(&path.display().to_string()).to_string();
            if error.kind() == io::ErrorKind::NotFound {
                message!("triscope: {name}: was removed by another program");
                continue;
            }
            if !is_reported && self.unremoved.is_empty() {
                message!("triscope: {name}: cannot be removed: {error}");
            }
            self.unremoved.push(path);
        }
    }

    /// The dumps, oldest first.
    fn dumps(&self) -> io::Result<Vec<Found>> {
        let (all, mut dumps) = (self.dir.join(DUMPS), Vec::new());
        for entry in fs::read_dir(&all)? {
            let place = all.join(entry?.file_name());
            let (bytes, unread) = match bytes_of(place.path()) {
                Ok(bytes) => (bytes, None),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    let known = self.sizes.get(place.path()).copied();
                    (known.unwrap_or_default(), Some(error))
                }
                // It can be removed meanwhile, and others can put files here.
                Err(_) => continue,
            };
            dumps.push(Found { place, bytes, unread });
        }
        let made = |path: &Path| self.made.iter().position(|made| made == path);
        let order = |place: &Place| (made(place.path()), place.path().to_owned());
        dumps.sort_by_cached_key(|found| order(&found.place));
        Ok(dumps)
    }

    /// Bytes of all dumps.
    pub(super) fn dumped_bytes(&self) -> u64 {
        self.dumps().map_or(0, |dumps| dumps.iter().map(|found| found.bytes).sum())
    }

    /// Prints once for each dump why it stays.
    fn refuse(&mut self, dump: &Place, why: impl std::fmt::Display) {
        if self.refused.insert(dump.path().to_owned()) {
            message!("triscope: {}: {why}", OneLine(&dump.display().to_string()));
        }
    }

    /// Removes the oldest dumps until another one fits. One that cannot be removed stays, and the next one is removed.
    fn make_room(&mut self, need: u64) -> Result {
        let fail = |error: io::Error| Failure::about(self.dir.display(), error);
        let dumps = self.dumps().map_err(fail)?;
        let is_there =
            |made: &PathBuf| dumps.iter().any(|found| *made == without_ending(found.place.path()));
        self.made.retain(is_there);
        self.sizes = sizes(&dumps);
        self.refused.retain(|path| self.sizes.contains_key(path));
        for Found { place, bytes, unread } in &dumps {
            if let Some(error) = unread {
                let known = counted(*bytes, "byte");
                self.refuse(place, format_args!("cannot be read: {error}: {known} are counted"));
            }
        }
        let mut used: u64 = dumps.iter().map(|found| found.bytes).sum();
        for Found { place: path, bytes, .. } in dumps {
            if used.saturating_add(need) <= self.dumps {
                break;
            }
            // It is being written.
            let written = without_ending(path.path());
            if written != path.path() && self.made.contains(&written) {
                continue;
            }
            match fs::remove_dir_all(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    self.refuse(&path, format_args!("cannot be removed: {error}"));
                    // Some of its files may be gone.
                    used -= bytes.saturating_sub(bytes_of(path.path()).unwrap_or(bytes));
                }
                removed => {
                    if removed.is_ok() {
                        let name = path.display().to_string();
                        let name = OneLine(&name);
                        message!("triscope: {name}: removed, as the disk budget is used up");
                    }
                    used -= bytes;
                }
            }
        }
        Ok(())
    }
}

/// The files of a dump.
struct Written {
    manifest: Manifest,
    bytes: u64,
    /// What was copied, and is not needed any more when the dump is there.
    copied: Vec<PathBuf>,
}

/// Bytes of the files of a dump.
fn bytes_of(dump: &Path) -> io::Result<u64> {
    let files = fs::read_dir(dump)?.filter_map(|file| file.ok()?.metadata().ok());
    Ok(files.map(|metadata| metadata.size()).sum())
}

fn sizes(dumps: &[Found]) -> BTreeMap<PathBuf, u64> {
    dumps.iter().map(|found| (found.place.path().to_owned(), found.bytes)).collect()
}

/// Where a dump is once it is complete.
fn without_ending(path: &Path) -> PathBuf {
    let name = path.to_string_lossy();
    name.strip_suffix(PARTIAL).map_or_else(|| path.to_owned(), PathBuf::from)
}

impl Dump {
    /// The files that [`Store::release`] releases.
    pub(super) fn held(&self) -> Held {
        let target = self.target.path().to_owned();
        Held { segments: self.segments.clone(), left: self.left.clone(), target }
    }

    /// Writes the dump. It appears when it is complete and on the disk.
    pub(super) fn write(self) -> Result<Dumped> {
        let target = self.target.clone();
        self.try_write().map_err(|error| Failure::about(target.display(), error))
    }

    /// As [`write`](Self::write), with the error of the system.
    pub(super) fn try_write(self) -> io::Result<Dumped> {
        let partial = self.target.with_ending(PARTIAL);
        let target = self.target.clone();
        let written = self.write_to(partial.path()).and_then(|written| {
            fs::rename(&partial, &target)?;
            File::open(target.path().parent().unwrap_or(target.path()))?.sync_all()?;
            Ok(written)
        });
        match written {
            Ok(Written { manifest, bytes, copied }) => {
                for path in copied {
                    let _ = fs::remove_file(path); // what stays is in the next dump, too
                }
                Ok(Dumped { path: target.shown().to_owned(), manifest, bytes })
            }
            Err(error) => {
                let _ = fs::remove_dir_all(&partial); // what is there is no dump
                Err(error)
            }
        }
    }

    fn write_to(self, dir: &Path) -> io::Result<Written> {
        DirBuilder::new().mode(private_dir::MODE).create(dir)?;
        let Self { window, segments, inputs, subject, missing, collected, left, .. } = self;
        let mut manifest = Manifest::new(window, Coverage::of(&segments));
        manifest.missing = missing;
        manifest.add_changes(&self.clock_changes, &self.cpus);
        if manifest.coverage.start.is_none_or(|from| from > manifest.window.start) {
            manifest.missing.push(
                "the time before: the recorder had not begun, or its budget did not suffice".into(),
            );
        }
        let file = private::create_new(&dir.join(SCHEDULER))?;
        let known = Known { tracing: self.tracing, events: self.events };
        let Assembled {
            torn,
            truncated,
            misplaced,
            gaps,
            lacks_formats,
            release,
            wall_clock_offset,
        } = assemble(inputs, known, self.command_lines, &file)?;
        manifest.wall_clock_offset_nanos = self.wall_clock_offset.or(wall_clock_offset);
        file.sync_all()?;
        manifest.switch_gaps = gaps;
        if torn > 0 {
            let what = counted(torn, "segment");
            let bytes = counted(truncated, "byte");
            manifest.missing.push(format!("the end of {what}: {bytes} cannot be read"));
        }
        if misplaced > 0 {
            let what = counted(misplaced, "record");
            let why = "their segments are damaged";
            manifest.missing.push(format!("{what} with a time outside of their segment: {why}"));
        }
        if lacks_formats {
            let why = "no segment is complete, and DIR/events cannot be read";
            manifest.missing.push(format!(
                "the formats of tracepoints, so that switches cannot be read: {why}"
            ));
        }
        let mut copied = Vec::new();
        for from in left {
            match sources::left(from.path(), dir, self.command_lines) {
                Ok(left) => {
                    manifest.sources.extend(left.sources);
                    copied.extend(left.copied);
                }
                Err(error) if is_full(&error) => return Err(error),
                Err(error) => manifest
                    .missing
                    .push(format!("Go and .NET of a recorder that was killed: {error}")),
            }
        }
        if let Some(collected) = collected {
            write_sources(&collected, &mut manifest, dir);
        }
        if let Some((pid, program)) = subject {
            let text = format!("{:#}\n", serde_json::json!({ "pid": pid, "command": program }));
            private::write_new(&dir.join(RECORDING), text.as_bytes())?;
        }
        if self.command_lines {
            write_processes(dir)?;
        }
        manifest.versions = vec![("triscope".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
        manifest.versions.extend(release.map(|release| ("kernel".to_owned(), release)));
        let mut bytes = 0;
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let size = entry.metadata()?.len();
            bytes += size;
            manifest.files.push((entry.file_name().to_string_lossy().into_owned(), size));
        }
        manifest.files.sort();
        let text = manifest.to_json() + "\n";
        private::write_new(&dir.join(MANIFEST), text.as_bytes())?;
        File::open(dir)?.sync_all()?;
        Ok(Written { manifest, bytes: bytes + text.len() as u64, copied })
    }
}

/// Writes the processes that run, and synchronises the file.
fn write_processes(dir: &Path) -> io::Result<()> {
    let mut processes = ProcessWriter::create_private(dir)?;
    for process in perf_monitor::processes().into_iter().filter_map(ProcessInfo::read) {
        processes.write(None, &process)?;
    }
    processes.flush()?;
    File::open(processes.path())?.sync_all()
}

/// Writes what the thread of the sources replies, as it comes. What does not come in time is missing.
fn write_sources(collected: &Receiver<Vec<Collected>>, manifest: &mut Manifest, dir: &Path) {
    let (until, mut begun) = (Instant::now() + SOURCES_TIMEOUT, None);
    for what in sources::REPLIES {
        let Ok(all) = collected.recv_deadline(until) else {
            let why = "the thread that records them does not reply";
            manifest.missing.push(format!("{what}: {why}"));
            return;
        };
        let begun = *begun.get_or_insert_with(Instant::now);
        let window = &manifest.window;
        manifest.sources.extend(all.into_iter().map(|one| one.write(window, dir, begun)));
    }
}

/// Takes the lock of the directory.
fn lock(dir: &Place) -> Result<File> {
    let path = dir.join(LOCK);
    let fail = |error: io::Error| Failure::about(path.display(), error);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(private::FILE);
    let file = private_dir::open(&path, &mut options)?;
    let until = Instant::now() + LOOK;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) if Instant::now() < until => thread::sleep(LOOK / 50),
            Err(Errno::WOULDBLOCK) => {
                let why = "another recorder uses this directory";
                return Err(Failure::about(dir.display(), why));
            }
            Err(errno) => return Err(fail(errno.into())),
        }
    }
}

/// [`is_locked`] has the lock for a moment.
const LOOK: Duration = Duration::from_millis(500);

/// Whether a recorder uses the directory. One that is no directory of a recorder is an error, and so is one that
/// others control: what is in it can be anything.
pub(super) fn is_locked(dir: &Path) -> Result<bool> {
    let path = dir.join(LOCK);
    let found = fs::symlink_metadata(&path);
    if found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return Err(Failure::about(dir.display(), "is no directory of a flight recorder"));
    }
    private_dir::open_dir(dir)?;
    let file = private_dir::open(&path, OpenOptions::new().read(true))?;
    // Several can look at the same time.
    let locked = flock(&file, FlockOperation::NonBlockingLockShared);
    Ok(locked == Err(Errno::WOULDBLOCK))
}

/// The segment that the name of a file describes.
enum Named {
    Sealed(Segment),
    InProgress { id: u64, start: Timestamp },
}

/// The name of the file of a sealed segment.
fn name(segment: &Segment) -> String {
    let Segment { id, start, end, lost, .. } = segment;
    format!("{id:010}-{}-{}-{lost}{SEALED}", start.nanos(), end.nanos())
}

/// Parses the name of the file of a segment: its numbers, and whether it is sealed.
fn parse(name: &str) -> Option<Named> {
    let sealed = name.strip_suffix(SEALED);
    let numbers = sealed.or_else(|| name.strip_suffix(PARTIAL))?;
    let mut numbers = numbers.split('-');
    let mut next = || numbers.next()?.parse::<u64>().ok();
    let time = |nanos: u64| i64::try_from(nanos).ok().map(Timestamp::from_nanos);
    let (id, start) = (next().filter(|id| *id < MAX_ID)?, time(next()?)?);
    let named = match sealed {
        Some(_) => {
            Named::Sealed(Segment { id, start, end: time(next()?)?, bytes: 0, lost: next()? })
        }
        None => Named::InProgress { id, start },
    };
    numbers.next().is_none().then_some(named)
}

/// Seals a segment that its recorder did not: it was killed, or the machine lost power. `None` if
/// nothing of it can be read.
///
/// It starts where its recorder says, which is before the first record if nothing happened first. It ends
/// before `latest`: later times are damaged. Its losses are those that the kernel has written: which the buffers had at
/// the end is not known.
fn rescue(
    path: &Place,
    id: u64,
    start: Timestamp,
    latest: Timestamp,
) -> io::Result<Option<Segment>> {
    let file = File::open(path)?;
    let bytes = file.metadata()?.len();
    let Ok(mut reader) = Reader::new(file) else { return Ok(None) };
    let (mut end, mut is_torn, mut lost) = (None, false, 0_u64);
    loop {
        match reader.next_record() {
            Ok(Some(entry)) => {
                let is_possible = |time: &Timestamp| is_within(start, latest, *time);
                end = end.max(entry.time().filter(is_possible));
                if let Some(Ok(Record::Lost(losses))) = entry.decode() {
                    lost = lost.saturating_add(losses.lost);
                }
            }
            Ok(None) => break,
            Err(_) => {
                is_torn = true;
                break;
            }
        }
    }
    let Some(end) = end else { return Ok(None) };
    let end = end.clamp(start, latest.max(start));
    let segment = Segment { id, start, end, bytes, lost };
    fs::rename(path, path.path().with_file_name(name(&segment)))?;
    let torn = if is_torn { ", its end cannot be read" } else { "" };
    message!(
        "triscope: {}: adopted, {} bytes of a recorder that was killed{torn}",
        OneLine(&path.display().to_string()),
        bytes
    );
    Ok(Some(segment))
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_data::RecordWriter as _;
    use proptest::prelude::*;
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    use std::os::unix::fs::PermissionsExt;
    use std::time::SystemTime;

    use crate::commands::flight::assemble::tests::{SAMPLE, samples};
    use crate::commands::flight::recorder::recover;
    use crate::io::test_data;

    const SPACE: Space = Space { segments: 1 << 20, dumps: 1 << 20 };

    fn open(dir: &Path) -> Store {
        Store::open(dir, SPACE, Duration::from_secs(3600)).unwrap()
    }

    /// The directory of a recorder of this boot with these files as segments.
    fn with_segments(files: &[(String, Vec<u8>)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path()));
        for (name, bytes) in files {
            fs::write(dir.path().join(SEGMENTS).join(name), bytes).unwrap();
        }
        dir
    }

    /// Opens it, adds a segment, and makes a dump of all. Returns the manifest.
    fn continues(dir: &Path) -> Manifest {
        let mut store = open(dir);
        let at = now().unwrap();
        let (id, path, file) = store.create(at).unwrap();
        drop(file);
        store.seal(&path, Segment { id, start: at, end: at, bytes: 0, lost: 0 }).unwrap();
        let window =
            Window::new(Timestamp::from_nanos(-1), Timestamp::MAX, Cause::new("signal", "SIGUSR1"));
        store.dump(window, "signal", 0).unwrap().write().unwrap().manifest
    }

    #[test]
    fn segments_that_cannot_be_are_no_obstacle() {
        let max = u64::MAX;
        let names = [
            format!("{max}-1-2-0.perf.data"),
            format!("{max}-1.partial"),
            format!("0000000011-{max}.partial"),
            "0000000012.partial".to_owned(),
            format!("0000000007-1-{}-0.perf.data", i64::MAX),
            format!("0000000008-5-4-{max}.perf.data"),
            format!("0000000009-6-7-{max}.perf.data"),
            "0000000009-6-7-0.perf.data".to_owned(),
            "9-6-7-0.perf.data".to_owned(),
            format!("0000000010-{max}-{max}-0.perf.data"),
            "-.perf.data".to_owned(),
            ".partial".to_owned(),
        ];
        let files: Vec<_> = names.into_iter().map(|name| (name, b"PERFILE2".to_vec())).collect();
        let dir = with_segments(&files);
        let manifest = continues(dir.path());
        assert!(!manifest.is_complete());
        assert!(
            manifest.missing.iter().any(|what| what.contains("cannot be read")),
            "{manifest:?}"
        );
    }

    #[test]
    fn a_directory_whose_lock_cannot_be_opened_is_an_error_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let why = || is_locked(dir.path()).unwrap_err().message().to_owned();
        assert!(why().contains("is no directory of a flight recorder"), "{}", why());
        // Root may enter any directory.
        std::os::unix::fs::symlink(LOCK, dir.path().join(LOCK)).unwrap();
        assert!(why().contains("lock: Too many levels of symbolic links"), "{}", why());
        fs::remove_file(dir.path().join(LOCK)).unwrap();
        // It has no writer, and none is waited for.
        let mode = rustix::fs::Mode::from(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, dir.path().join(LOCK), mode).unwrap();
        assert!(why().contains("lock: is no file"), "{}", why());
        fs::remove_file(dir.path().join(LOCK)).unwrap();
        let store = open(dir.path());
        assert!(is_locked(dir.path()).unwrap());
        drop(store);
        assert!(!is_locked(dir.path()).unwrap());
        // Another one looks.
        let other = File::open(dir.path().join(LOCK)).unwrap();
        flock(&other, FlockOperation::NonBlockingLockShared).unwrap();
        assert!(!is_locked(dir.path()).unwrap());
    }

    /// Links that another user has made, before or after the recorder.
    #[test]
    fn links_in_the_directory_are_refused() {
        for name in [SEGMENTS, DUMPS, SOURCES, LEFT, LOCK] {
            let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            drop(open(dir.path()));
            let path = dir.path().join(name);
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)); // `left` is not there
            let target = match name {
                LOCK => elsewhere.path().join("lock"),
                _ => elsewhere.path().to_owned(),
            };
            std::os::unix::fs::symlink(target, path).unwrap();
            let Err(failure) = Store::open(dir.path(), SPACE, Duration::ZERO) else {
                panic!("{name} is accepted")
            };
            assert!(failure.message().contains("symbolic link"), "{}", failure.message());
            assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn files_among_the_dumps_are_no_obstacle() {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path()));
        let dumps = dir.path().join(DUMPS);
        let paths = ["file", "link", "dump"].map(|name| dumps.join(format!("{name}{PARTIAL}")));
        let [file, link, dump] = &paths;
        fs::write(file, "").unwrap();
        std::os::unix::fs::symlink(dir.path(), link).unwrap();
        fs::create_dir(dump).unwrap();
        fs::write(dump.join(MANIFEST), "").unwrap();
        drop(open(dir.path()));
        assert_eq!(paths.map(|path| fs::symlink_metadata(path).is_ok()), [true, true, false]);
    }

    #[test]
    fn a_start_that_failed_leaves_nothing() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("flight");
        let mut store = open(&dir);
        let (skeleton, _) = store.skeleton().unwrap();
        drop(store);
        skeleton.remove();
        assert!(!dir.exists());
        // With a segment, or in a directory that was there, all stays.
        let mut store = open(&dir);
        let (skeleton, _) = store.skeleton().unwrap();
        let (id, path, _) = store.create(now().unwrap()).unwrap();
        let at = now().unwrap();
        store.seal(&path, Segment { id, start: at, end: at, bytes: 0, lost: 0 }).unwrap();
        drop(store);
        skeleton.remove();
        assert!(dir.join(LOCK).exists());
        assert!(open(&dir).skeleton().is_none());
    }

    /// The recorder before may have kept command lines.
    #[test]
    fn a_dump_has_no_command_line_and_is_private() {
        const TRACE: &[u8] = include_bytes!("sources/masked/whole.nettrace");
        const LINE: &str = "--password=s3cr3t";
        let line: Vec<u8> = LINE.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let has_line = |bytes: &[u8]| bytes.windows(line.len()).any(|window| window == line);
        assert!(has_line(TRACE));
        for keeps in [false, true] {
            let dir = with_segments(&[("0000000001-1-2-0.perf.data".to_owned(), Vec::new())]);
            let left = dir.path().join(SOURCES).join("dotnet-7-5.nettrace");
            fs::write(&left, TRACE).unwrap();
            let mut store = open(dir.path());
            let window = Window::new(
                Timestamp::from_nanos(0),
                Timestamp::MAX,
                Cause::new("signal", "SIGUSR1"),
            );
            let mut dump = store.dump(window, "signal", 0).unwrap();
            dump.command_lines = keeps;
            dump.subject = Some((1, "init".to_owned()));
            let Dumped { path, manifest, .. } = dump.write().unwrap();
            assert!(!left.exists());
            assert_eq!(
                manifest.sources[0].missing.as_deref(),
                Some("its end: the recorder was killed")
            );
            let trace = fs::read(path.join("dotnet-7-5.nettrace")).unwrap();
            assert_eq!((trace.len(), has_line(&trace)), (TRACE.len(), keeps));
            for entry in fs::read_dir(path).unwrap() {
                let mode = entry.unwrap().metadata().unwrap().permissions().mode();
                assert_eq!(mode & 0o777, 0o600);
            }
        }
    }

    fn everything() -> Window {
        Window::new(Timestamp::MIN, Timestamp::MAX, Cause::new("signal", "SIGUSR1"))
    }

    /// The disk is full, or the machine is started once more, before the dump is complete.
    #[test]
    fn segments_of_an_earlier_boot_stay_until_their_dump_is_complete() {
        let names = ["0000000001-100-200-0.perf.data", "0000000002-200-300-0.perf.data"];
        let dir = with_segments(&names.map(|name| (name.to_owned(), b"PERFILE2".to_vec())));
        let this_boot = fs::read(dir.path().join(BOOT)).unwrap();
        fs::write(dir.path().join(BOOT), "another one").unwrap();
        for _ in 0..2 {
            let mut store = open(dir.path());
            assert_eq!((store.earlier.len(), store.ring.segments().len()), (2, 0));
            let cause = Cause::new("recovered", "the machine was started again");
            let dump = store.dump_earlier(Duration::from_nanos(50), cause.clone());
            let ids: Vec<u64> = dump.unwrap().unwrap().segments.iter().map(|s| s.id).collect();
            assert_eq!(ids, [2], "those of the last 50 ns");
            let dump = store.dump_earlier(Duration::MAX, cause).unwrap().unwrap();
            assert_eq!(dump.segments.len(), 2);
        }
        let mut store = open(dir.path());
        store.forget_earlier().unwrap();
        drop(store);
        assert_eq!(fs::read_dir(dir.path().join(SEGMENTS)).unwrap().count(), 0);
        assert_eq!(fs::read(dir.path().join(BOOT)).unwrap(), this_boot);
        assert!(open(dir.path()).earlier.is_empty());
    }

    /// The disk has an error: the start continues.
    #[test]
    fn segments_of_an_earlier_boot_stay_where_no_dump_can_be_made() {
        let names = ["0000000001-100-200-0.perf.data", "0000000002-200-300-0.perf.data"];
        let dir = with_segments(&names.map(|name| (name.to_owned(), b"PERFILE2".to_vec())));
        let this_boot = fs::read(dir.path().join(BOOT)).unwrap();
        fs::write(dir.path().join(BOOT), "another one").unwrap();
        private_dir::create(&dir.path().join(LEFT)).unwrap();
        fs::create_dir(dir.path().join(LEFT).join("dotnet-7-5.nettrace")).unwrap();
        let mut store = open(dir.path());
        assert_eq!(store.earlier.len(), 2);
        recover(&mut store, |_| Err(Errno::IO.into())).unwrap();
        assert_eq!((store.earlier.len(), store.ring.segments().len()), (0, 0));
        assert_eq!(fs::read_dir(dir.path().join(SEGMENTS)).unwrap().count(), 0);
        let [Found { place: aside, bytes, .. }] = &store.dumps().unwrap()[..] else {
            panic!("one directory")
        };
        assert!(aside.display().to_string().ends_with("Z-segments"));
        assert_eq!(*bytes, 16);
        for name in names {
            assert_eq!(fs::read(aside.path().join(name)).unwrap(), b"PERFILE2");
        }
        // Nor is what cannot be removed an obstacle, if it is too old to be kept.
        store.set_space(SPACE, Duration::ZERO);
        store.sources().unwrap();
        drop(store);
        assert_eq!(fs::read(dir.path().join(BOOT)).unwrap(), this_boot);
        assert!(open(dir.path()).earlier.is_empty());
    }

    #[test]
    fn segments_of_an_earlier_boot_make_room_on_a_full_disk() {
        let names = [1, 2, 3].map(|n| format!("000000000{n}-{n}00-{n}99-0.perf.data"));
        for fits in [2, 0] {
            let files = names.clone().map(|name| (name, b"PERFILE2".to_vec()));
            let dir = with_segments(&files);
            fs::write(dir.path().join(BOOT), "another one").unwrap();
            let (mut store, mut tried) = (open(dir.path()), Vec::new());
            let write = |dump: Dump| {
                tried.push(dump.segments.len());
                match dump.segments.len() <= fits {
                    true => dump.try_write(),
                    false => Err(Errno::NOSPC.into()),
                }
            };
            recover(&mut store, write).unwrap();
            let expected: &[usize] = if fits == 2 { &[3, 2] } else { &[3, 2, 1] };
            assert_eq!(tried, expected);
            assert_eq!(store.dumps().unwrap().len(), usize::from(fits == 2));
            assert_eq!(fs::read_dir(dir.path().join(SEGMENTS)).unwrap().count(), 0);
            drop(store);
            assert!(open(dir.path()).earlier.is_empty());
        }
    }

    /// The sources of a recorder that was killed are in the next dump that can be written.
    #[test]
    fn sources_stay_until_a_dump_has_them() {
        let dir = with_segments(&[("0000000001-1-2-0.perf.data".to_owned(), Vec::new())]);
        let trace = include_bytes!("sources/masked/whole.nettrace");
        let left = dir.path().join(SOURCES).join("dotnet-7-5.nettrace");
        fs::write(&left, trace).unwrap();
        let mut store = open(dir.path());
        let dump = store.dump(everything(), "signal", 0).unwrap();
        let held = dump.held();
        // The dump is written, and cannot have its name.
        let target = held.target.clone();
        fs::write(&target, "").unwrap();
        assert!(dump.write().is_err());
        assert!(left.exists());
        store.release(held, false);
        fs::remove_file(target).unwrap();
        let dumped = store.dump(everything(), "signal", 0).unwrap().write().unwrap();
        assert!(dumped.path.join("dotnet-7-5.nettrace").exists());
        assert!(!left.exists());
    }

    #[test]
    fn a_source_that_cannot_be_read_does_not_keep_the_others() {
        let dir = with_segments(&[("0000000001-1-2-0.perf.data".to_owned(), Vec::new())]);
        let trace = include_bytes!("sources/masked/whole.nettrace");
        let path = |name: &str| dir.path().join(SOURCES).join(name);
        let bad = ["dotnet-6-5.nettrace", "go-8-5-1-2.trace"].map(path);
        bad.iter().for_each(|path| fs::create_dir(path).unwrap());
        fs::write(path("dotnet-7-5.nettrace"), trace).unwrap();
        let mut store = open(dir.path());
        let Dumped { path: dump, manifest, .. } =
            store.dump(everything(), "signal", 0).unwrap().write().unwrap();
        let found = manifest.sources.iter().map(|source| (source.pid, source.file.as_deref()));
        let file = "dotnet-7-5.nettrace";
        assert!(found.eq([(Some(6), None), (Some(7), Some(file)), (Some(8), None)]));
        for source in manifest.sources.iter().filter(|source| source.file.is_none()) {
            let why = source.missing.as_deref().unwrap();
            assert!(why.starts_with("all: ") && why.contains("Is a directory"), "{why}");
        }
        let is_of_source = |name: &String| name.starts_with("dotnet") || name.starts_with("go");
        let names = fs::read_dir(dump).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert_eq!(names.filter(is_of_source).collect::<Vec<_>>(), [file]);
        assert!(!path(file).exists() && bad.iter().all(|path| path.exists()));
        // Nor does a directory that cannot be read.
        let left = dir.path().join("file");
        fs::write(&left, "").unwrap();
        store.left = vec![left.as_path().into()];
        let dumped = store.dump(everything(), "signal", 0).unwrap().write().unwrap();
        let missing = &dumped.manifest.missing;
        let what = "Go and .NET of a recorder that was killed: Not a directory";
        assert!(missing.iter().any(|why| why.starts_with(what)), "{missing:?}");
    }

    /// The thread of the sources is busy with the memory of a program, or has failed there.
    #[test]
    fn a_dump_has_what_was_collected_before_the_rest() {
        let dir = with_segments(&[("0000000001-1-2-0.perf.data".to_owned(), Vec::new())]);
        let mut store = open(dir.path());
        for replies in 0..=sources::REPLIES.len() {
            let (reply, collected) = crossbeam_channel::bounded(sources::REPLIES.len());
            for pid in (1..).take(replies) {
                let source = trace_flight::Source::new("dotnet", pid, "x");
                reply.send(vec![Collected::missing(source, "why")]).unwrap();
            }
            drop(reply);
            let mut dump = store.dump(everything(), "signal", 0).unwrap();
            dump.collected = Some(collected);
            let Manifest { sources, missing, .. } = dump.write().unwrap().manifest;
            assert_eq!(sources.len(), replies);
            let is_missing = |what: &&str| missing.iter().any(|why| why.starts_with(*what));
            let late: Vec<&str> = sources::REPLIES.into_iter().filter(is_missing).collect();
            assert!(late.iter().eq(sources::REPLIES.iter().skip(replies).take(1)), "{missing:?}");
        }
    }

    /// Each session has its own numbers of goroutines: both in one trace would contradict each other.
    #[test]
    fn each_session_of_a_go_program_that_is_left_is_a_trace() {
        let Some(trace) = test_data::of_repository(test_data::SHOP) else { return };
        let dir = with_segments(&[("0000000001-1-2-0.perf.data".to_owned(), Vec::new())]);
        for session in [5, 9] {
            let name = format!("go-7-{session}-1-2.trace");
            fs::write(dir.path().join(SOURCES).join(name), &trace).unwrap();
        }
        let mut store = open(dir.path());
        let dumped = store.dump(everything(), "signal", 0).unwrap().write().unwrap();
        let sources = dumped.manifest.sources.iter().map(|source| source.file.as_deref());
        assert!(sources.eq([Some("go-7-5.trace"), Some("go-7-9.trace")]), "{:?}", dumped.manifest);
        for session in [5, 9] {
            let copied = fs::read(dumped.path.join(format!("go-7-{session}.trace"))).unwrap();
            assert!(copied == trace);
        }
    }

    /// A dump that could not be written has a claim to all sources of its boot, and the next one to those of all recorders
    /// that were killed in this one.
    #[test]
    fn sources_of_recorders_before_are_kept() {
        let dir = with_segments(&[("0000000001-1-2-0.perf.data".to_owned(), Vec::new())]);
        let name = |n: u32| format!("dotnet-{n}-5.nettrace");
        let left = || -> Vec<String> {
            let entries = fs::read_dir(dir.path().join(LEFT)).unwrap();
            let mut names: Vec<_> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        for (boot, kept) in [("another one", 2), ("another one", 3), ("this", 4)] {
            match boot {
                "this" => open(dir.path()).forget_earlier().unwrap(),
                other => fs::write(dir.path().join(BOOT), other).unwrap(),
            }
            fs::write(dir.path().join(SOURCES).join(name(kept)), "").unwrap();
            if kept == 2 {
                open(dir.path()).sources().unwrap();
                fs::write(dir.path().join(SOURCES).join(name(9)), "").unwrap();
            }
            let sources = open(dir.path()).sources().unwrap();
            assert_eq!(fs::read_dir(sources).unwrap().count(), 0);
            assert_eq!(left().len(), kept as usize);
        }
        // The look-back of no dump has it.
        let old = File::options().write(true).open(dir.path().join(LEFT).join(name(9))).unwrap();
        old.set_modified(SystemTime::now() - Duration::from_secs(3601)).unwrap();
        open(dir.path()).sources().unwrap();
        assert_eq!(left(), [2, 3, 4].map(name));
    }

    /// A recorder was killed in its first moments: its only segment has records, and no length.
    #[test]
    fn a_segment_without_length_is_in_a_dump_of_what_is_left() {
        let dir = with_segments(&[("0000000001-5-5-0.perf.data".to_owned(), b"x".to_vec())]);
        let cause = || Cause::new("command", "why?");
        let mut store = open(dir.path());
        let dump = store.dump_left(Duration::from_secs(3600), cause()).unwrap().unwrap();
        assert_eq!(dump.segments.iter().map(|segment| segment.id).collect::<Vec<_>>(), [1]);
        store.evict_oldest();
        assert!(store.dump_left(Duration::MAX, cause()).is_none());
    }

    /// The losses that the kernel has written are known also of a segment that was not sealed.
    #[test]
    fn losses_of_a_segment_that_was_not_sealed_are_counted() {
        const PERF_RECORD_LOST: u64 = 2;
        let dir = with_segments(&[]);
        let path = dir.path().join(SEGMENTS).join("0000000003-100.partial");
        let mut writer = samples(&path, &[500, 700]);
        for lost in [40, 2] {
            let bytes = [PERF_RECORD_LOST | 24 << 48, 1, lost].map(u64::to_ne_bytes).concat();
            writer.record(perf_monitor::RawRecord::split_first(&bytes, 0).unwrap().0).unwrap();
        }
        writer.flush().unwrap();
        let store = open(dir.path());
        let lost: Vec<u64> = store.ring.segments().map(|segment| segment.lost).collect();
        assert_eq!(lost, [42]);
        let name = "0000000003-100-700-42.perf.data";
        assert!(dir.path().join(SEGMENTS).join(name).exists());
    }

    /// Any prefix of the newest segment is adopted up to its end.
    #[test]
    fn a_segment_that_is_cut_anywhere_is_read_up_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let (whole, path) = (dir.path().join("whole"), dir.path().join("0000000003-100.partial"));
        let times: Vec<u64> = (1..20).map(|n| 100 + n * 10).collect();
        samples(&whole, &times).flush().unwrap();
        let bytes = fs::read(whole).unwrap();
        let data = bytes.len() - times.len() * SAMPLE;
        for length in 0..=bytes.len() {
            fs::write(&path, &bytes[..length]).unwrap();
            let found =
                rescue(&(&path).into(), 3, Timestamp::from_nanos(100), Timestamp::MAX).unwrap();
            let whole = length.saturating_sub(data) / SAMPLE;
            let last = whole.checked_sub(1).map(|last| times[last] as i64);
            assert_eq!(found.map(|segment| segment.end.nanos()), last, "{length}");
            assert!(found.is_none_or(|segment| segment.start.nanos() == 100));
        }
    }

    /// A time that is damaged is not that of the segment.
    #[test]
    fn a_segment_does_not_end_in_the_future() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0000000003-100.partial");
        samples(&path, &[500, 1 << 50, 700]).flush().unwrap();
        let (start, now) = (Timestamp::from_nanos(100), Timestamp::from_nanos(1000));
        let segment = rescue(&(&path).into(), 3, start, now).unwrap().unwrap();
        assert_eq!(segment.end.nanos(), 700);
    }

    #[test]
    fn a_segment_that_was_removed_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = open(dir.path());
        let begin = now().unwrap();
        let at = |second: u64| begin + Duration::from_secs(second);
        for n in 0..3 {
            let (id, path, _) = store.create(at(n)).unwrap();
            let mut writer = samples(path.path(), &[at(n).nanos() as u64 + 1]);
            writer.flush().unwrap();
            let (start, end) = (at(n), at(n + 1));
            store.seal(&path, Segment { id, start, end, bytes: 0, lost: 0 }).unwrap();
        }
        let segments: Vec<Segment> = store.ring.segments().copied().collect();
        fs::remove_file(store.path(&segments[1])).unwrap();
        let window = || Window::new(at(0), at(3), Cause::new("signal", "SIGUSR1"));
        let dump = store.dump(window(), "signal", 0).unwrap();
        assert_eq!(dump.segments, [segments[0], segments[2]]);
        let manifest = dump.write().unwrap().manifest;
        assert!(!manifest.is_complete());
        assert_eq!(manifest.coverage.gaps, [(at(1), at(2))]);
        let [missing] = &manifest.missing[..] else { panic!("{manifest:?}") };
        assert!(missing.contains("segment ") && missing.contains("No such file"), "{missing}");
        // All of them: there is nothing to dump.
        for segment in [segments[0], segments[2]] {
            fs::remove_file(store.path(&segment)).unwrap();
        }
        assert!(store.dump(window(), "signal", 0).is_err());
        store.evict(Timestamp::MAX, 0);
        assert_eq!((store.ring.segments().len(), store.unremoved.len()), (0, 0));
    }

    /// A segment in progress starts where its recorder said, not with its first record.
    #[test]
    fn the_time_before_the_first_record_is_covered() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0000000003-100.partial");
        let mut writer = samples(&path, &[500, 700]);
        writer.flush().unwrap();
        let Some(Named::InProgress { id, start }) = parse("0000000003-100.partial") else {
            panic!("a segment in progress")
        };
        let segment = rescue(&(&path).into(), id, start, Timestamp::MAX).unwrap().unwrap();
        let times = [segment.start, segment.end].map(Timestamp::nanos);
        assert_eq!((segment.id, times), (3, [100, 700]));
        assert!(dir.path().join("0000000003-100-700-0.perf.data").exists());
    }

    #[test]
    fn dumps_are_removed_in_the_order_in_which_they_were_made() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = open(dir.path());
        // The wall clock was set back after the first one.
        for name in ["20261123T110000.000Z-a", "20261123T100000.000Z-b", "20261123T103000.000Z-c"] {
            let path = store.dir.join(DUMPS).join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("file"), [0; 100]).unwrap();
            store.made.push(path.path().to_owned());
        }
        // That of a recorder before.
        fs::create_dir(dir.path().join(DUMPS).join("20261123T120000.000Z-old")).unwrap();
        let names = |store: &Store| -> Vec<String> {
            let dumps = store.dumps().unwrap().into_iter();
            dumps
                .map(|dump| dump.place.display().to_string().rsplit_once('-').unwrap().1.into())
                .collect()
        };
        assert_eq!(names(&store), ["old", "a", "b", "c"]);
        store.dumps = 250;
        store.make_room(50).unwrap();
        assert_eq!(names(&store), ["b", "c"]);
        // One that is being written stays, and keeps its place.
        let [b, c] = [0, 1].map(|n| store.dumps().unwrap()[n].place.clone());
        fs::rename(&c, c.with_ending(PARTIAL)).unwrap();
        store.dumps = 150;
        store.make_room(50).unwrap();
        assert_eq!(names(&store), ["c.partial"]);
        fs::rename(c.with_ending(PARTIAL), &c).unwrap();
        fs::create_dir(&b).unwrap();
        assert_eq!(names(&store), ["b", "c"], "b is of a recorder before");
    }

    /// Runs this as a recorder that has dropped its capabilities: files of others are closed to it, also as root.
    fn without_capabilities(body: impl FnOnce() + Send) {
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        thread::scope(|scope| {
            let run = || {
                set_capabilities(None, sets).unwrap();
                body();
            };
            scope.spawn(run).join().unwrap();
        });
    }

    /// Another program has made one read-only, and has taken one away.
    #[test]
    fn a_dump_that_cannot_be_removed_does_not_keep_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let dump = |name: &str| dir.path().join(DUMPS).join(name);
        let permit = |name, mode| {
            fs::set_permissions(dump(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        let run = || {
            let mut store = open(dir.path());
            for name in ["a", "b", "c", "d"] {
                fs::create_dir(dump(name)).unwrap();
                fs::write(dump(name).join("file"), [0; 100]).unwrap();
                store.made.push(store.dir.join(DUMPS).join(name).path().to_owned());
            }
            store.make_room(0).unwrap();
            permit("a", 0o500);
            permit("b", 0);
            assert_eq!(store.dumped_bytes(), 400, "b has its last known size");
            store.dumps = 350;
            for _ in 0..2 {
                store.make_room(50).unwrap();
                let left = ["a", "b", "c", "d"].map(|name| dump(name).exists());
                assert_eq!(left, [true, true, false, true]);
            }
            assert_eq!((store.dumped_bytes(), store.refused.len()), (300, 2));
            permit("a", 0o700);
            permit("b", 0o700);
            store.dumps = 150;
            store.make_room(50).unwrap();
            assert_eq!((store.dumped_bytes(), store.refused.len()), (100, 2));
            store.make_room(0).unwrap();
            assert!(store.refused.is_empty(), "they are gone");
        };
        without_capabilities(run);
    }

    /// Its size is known from its end on.
    #[test]
    fn a_dump_that_is_given_away_is_in_the_budget() {
        let dir = with_segments(&[("0000000001-1-2-0.perf.data".to_owned(), Vec::new())]);
        without_capabilities(|| {
            let mut store = open(dir.path());
            let dump = store.dump(everything(), "signal", 0).unwrap();
            let held = dump.held();
            let path = dump.write().unwrap().path;
            store.release(held, true);
            let bytes = store.dumped_bytes();
            assert!(bytes > 0);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o0)).unwrap();
            assert_eq!(store.dumped_bytes(), bytes);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Files of any name and content: the recorder continues.
        #[test]
        fn any_segments_are_no_obstacle(
            files in prop::collection::vec(
                (
                    "(0{0,9}[0-9]{1,20}-[0-9]{1,20}-[0-9]{1,20}-[0-9]{1,20}\\.perf\\.data|[0-9]{1,20}-[0-9]{1,20}\\.partial|[a-z0-9.-]{1,20})",
                    prop::collection::vec(any::<u8>(), 0..300),
                    any::<bool>(),
                ),
                0..8,
            ),
        ) {
            let files: Vec<(String, Vec<u8>)> = files
                .into_iter()
                .filter(|(name, ..)| name != "." && name != "..")
                .map(|(name, bytes, is_like)| {
                    let magic: &[u8] = if is_like { b"PERFILE2" } else { b"" };
                    (name, [magic, &bytes].concat())
                })
                .collect();
            let dir = with_segments(&files);
            continues(dir.path());
        }
    }
}
