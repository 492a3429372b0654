//! stub
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Provider { Runtime }
impl Provider { pub fn by_name(_: &str) -> Option<Self> { None } }
pub(crate) fn complete(_: &mut crate::Metadata) {}
