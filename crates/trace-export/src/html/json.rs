//! The JSON of a page, which is a string of the browser.

pub(super) use crate::json::{number, text};

/// The most bytes: V8 has the lowest limit of browsers.
pub(super) const MAX: usize = (1 << 29) - 24;

/// A list of items with commas between them. It ends where the JSON has more than [`MAX`] bytes, and no page is
/// written then.
pub(super) fn list<T>(
    out: &mut String,
    items: impl IntoIterator<Item = T>,
    each: impl FnMut(&mut String, T),
) {
    list_within(MAX, out, items, each);
}

fn list_within<T>(
    max: usize,
    out: &mut String,
    items: impl IntoIterator<Item = T>,
    mut each: impl FnMut(&mut String, T),
) {
    crate::json::list(out, items, |out, item| {
        if out.len() <= max {
            each(out, item);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_ends_above_the_limit() {
        let mut out = String::new();
        list_within(5, &mut out, [100, 200, 300, 400], number);
        assert_eq!(out, "[100,200,,]");
    }
}
