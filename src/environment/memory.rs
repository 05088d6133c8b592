//! The memory that this process may use: the machine's, or less where a control group limits it.

use std::path::{Path, PathBuf};

/// Bytes of memory for this process and its children; `None` if the system does not tell.
pub fn limit() -> Option<u64> {
    limit_under(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
}

/// [`limit`] of a machine whose files are in these folders.
fn limit_under(proc: &Path, groups: &Path) -> Option<u64> {
    let machine = std::fs::read_to_string(proc.join("meminfo")).ok().and_then(|text| total(&text));
    let memberships = std::fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
    let group = memberships.lines().filter_map(|line| limit_of(line, groups)).min();
    machine.into_iter().chain(group).min()
}

/// The total of `/proc/meminfo`, whose kB are KiB.
fn total(meminfo: &str) -> Option<u64> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The least limit of the group that a line of `/proc/self/cgroup` names and of all groups that contain it. In a container
/// the group's folder may be mounted in place of the root; what does not exist is passed over.
fn limit_of(line: &str, groups: &Path) -> Option<u64> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    // Version 2 has one hierarchy, whose controllers are not listed; beside version 1 it may be mounted in a folder of its own.
    let (roots, files): ([PathBuf; 2], &[&str]) = if controllers.is_empty() {
        ([groups.to_owned(), groups.join("unified")], &["memory.max", "memory.high"])
    } else if controllers.split(',').any(|controller| controller == "memory") {
        ([groups.join("memory"), groups.join(controllers)], &["memory.limit_in_bytes"])
    } else {
        return None;
    };
    let path = Path::new(path.trim_start_matches('/'));
    let folders = roots.iter().flat_map(|root| path.ancestors().map(|part| root.join(part)));
    let files = folders.flat_map(|folder| files.iter().map(move |file| folder.join(file)));
    files.filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of 16 GiB whose process is in the groups, with the limits of some.
    fn machine(memberships: &str, limits: &[(&str, &str)]) -> Option<u64> {
        let folder = tempfile::tempdir().unwrap();
        let (proc, groups) = (folder.path().join("proc"), folder.path().join("cgroup"));
        std::fs::create_dir_all(proc.join("self")).unwrap();
        std::fs::write(proc.join("meminfo"), "MemTotal: 16777216 kB\nMemFree: 1 kB\n").unwrap();
        std::fs::write(proc.join("self/cgroup"), memberships).unwrap();
        for (file, limit) in limits {
            let file = groups.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, limit).unwrap();
        }
        limit_under(&proc, &groups)
    }

    #[test]
    fn a_group_may_have_less_than_its_machine() {
        let all = Some(16 << 30);
        assert_eq!(machine("", &[]), all);
        assert_eq!(machine("0::/", &[("memory.max", "max\n")]), all);
        // Version 2: this group, or one around it, or what is only throttled.
        let own = ("a/b/memory.max", "2147483648\n");
        assert_eq!(machine("0::/a/b\n", &[own]), Some(2 << 30));
        assert_eq!(machine("0::/a/b\n", &[own, ("a/memory.max", "1073741824")]), Some(1 << 30));
        assert_eq!(machine("0::/a/b\n", &[own, ("a/b/memory.high", "5")]), Some(5));
        assert_eq!(machine("0::/a/c\n", &[own]), all);
        // Version 1, alone and beside version 2, and in a container that does not see its own path.
        let v1 = "9:cpu,cpuacct:/x\n4:memory:/a/b\n0::/\n";
        let unlimited = ("memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(machine(v1, &[unlimited]), all);
        assert_eq!(machine(v1, &[("memory/a/memory.limit_in_bytes", "7")]), Some(7));
        assert_eq!(machine(v1, &[("memory/memory.limit_in_bytes", "8")]), Some(8));
        assert_eq!(machine(v1, &[("cpu,cpuacct/x/memory.limit_in_bytes", "9")]), all);
    }

    #[test]
    fn totals() {
        assert_eq!(total("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        for text in ["", "MemFree: 1 kB\n", "MemTotal: many kB\n", "MemTotal: 16384\n"] {
            assert_eq!(total(text), None, "{text:?}");
        }
    }
}
