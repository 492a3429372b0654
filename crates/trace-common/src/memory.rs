//! Names of mappings.

/// Whether the memory of a mapping with this name is that of no file that others can open: just-in-time
/// compilers have their code there. The name is that of `/proc/PID/maps` or of a record of `mmap(2)`.
///
/// Files in memory alone (`memfd_create(2)`) count: compilers map them twice, writable and executable.
pub fn is_memory_of_no_file(name: &str) -> bool {
    let names = ["//anon", "/dev/zero", "/anon_hugepage", "/memfd:", "[anon"];
    names.into_iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_other_names() {
        assert!(
            ["//anon", "/memfd:doublemapper (deleted)", "/memfd:jit", "[anon:code]"]
                .into_iter()
                .all(is_memory_of_no_file)
        );
        assert!(
            !["", "[heap]", "/memfd/file", "/usr/lib/libc.so.6"]
                .into_iter()
                .any(is_memory_of_no_file)
        );
    }
}
