//! Messages on standard error.

/// As `eprintln!`, which panics where standard error is full or closed: that ends no recording here.
macro_rules! message {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        // Nobody can be informed of it.
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}
