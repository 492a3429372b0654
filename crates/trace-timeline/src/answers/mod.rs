//! Answers: what a timeline says about programs, without drawing it.

mod critical_path;
mod histogram;
mod history;
mod report;
mod requests;

pub use critical_path::{CriticalPath, Piece, What, critical_path};
pub use histogram::Histogram;
pub use history::{History, Span};
pub use report::{CpuTimes, Group, Losses, Preempter, Report, ThreadReport, Waits, Waker};
pub use requests::{Request, RequestFilter, Requests};
