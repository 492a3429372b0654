//! Answers: what a timeline says about programs, without drawing it.

mod critical_path;
mod history;
mod question;
mod report;
mod requests;
mod sweep;
mod table;
mod throttles;

pub use critical_path::{CriticalPath, Piece, What, critical_path};
pub use history::{History, Span};
pub use question::{Finder, Found, Paths, PathsError, Question, Subject};
pub use report::{
    CpuTimes, Delay, Group, LossTotal, OffCpu, OffCpuTimes, Preempter, Report, ThreadReport,
    Throttled, Waits, Waker,
};
pub use requests::{Request, RequestFilter, Requests};
pub use table::Table;
pub use trace_common::Histogram;
