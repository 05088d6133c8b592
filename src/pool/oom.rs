//! How often the kernel killed a process of this one's control group for want of memory. Children are in the same group, so a
//! count that grew while a child was asked tells who killed it.

use std::path::{Path, PathBuf};

/// Where control groups are mounted.
const MOUNT: &str = "/sys/fs/cgroup";

/// The count in the file, or in that of this process's group; `None` where the kernel does not tell it.
pub(super) fn kills(file: Option<&Path>) -> Option<u64> {
    if let Some(file) = file {
        return count(&std::fs::read_to_string(file).ok()?);
    }
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    files(&groups).iter().find_map(|file| count(&std::fs::read_to_string(file).ok()?))
}

/// Whether the kernel has killed for want of memory between the two counts.
pub(super) fn grew(before: Option<u64>, after: Option<u64>) -> bool {
    before.zip(after).is_some_and(|(before, after)| after > before)
}

/// What the two counts say of a death between them; `None` if they are not known.
pub(super) fn since(before: Option<u64>, after: Option<u64>) -> Option<String> {
    let (before, after) = (before?, after?);
    Some(match before == after {
        true => format!("the control group counts no kill for want of memory (oom_kill {after})"),
        false => format!(
            "the kernel killed for want of memory in this control group (oom_kill {before} -> {after})"
        ),
    })
}

/// The files that may have the count, in order: of version 2, of version 1, and of either where the group's path is that of
/// another namespace, as in a container.
fn files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let path = path.trim_start_matches('/');
        if controllers.is_empty() {
            files.push(Path::new(MOUNT).join(path).join("memory.events"));
            files.push(Path::new(MOUNT).join("unified").join(path).join("memory.events"));
        } else if controllers.split(',').any(|name| name == "memory") {
            files.push(Path::new(MOUNT).join("memory").join(path).join("memory.oom_control"));
        }
    }
    files.push(Path::new(MOUNT).join("memory.events"));
    files.push(Path::new(MOUNT).join("memory/memory.oom_control"));
    files
}

fn count(events: &str) -> Option<u64> {
    events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_name_their_file_and_their_count() {
        let two = files("0::/system.slice/sparsetune.service\n");
        assert!(two[0].ends_with("system.slice/sparsetune.service/memory.events"), "{two:?}");
        let one = files("11:cpu:/a\n9:memory:/docker/x\n0::/\n");
        assert!(one[0].ends_with("memory/docker/x/memory.oom_control"), "{one:?}");
        assert_eq!(files("garbage\n").len(), 2);
        assert_eq!(count("low 0\noom 3\noom_kill 2\noom_group_kill 0\n"), Some(2));
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\n"), None);
    }

    #[test]
    fn a_grown_count_is_told_apart() {
        assert_eq!(since(None, Some(1)), None);
        assert!(since(Some(1), Some(1)).unwrap().contains("no kill"));
        assert!(since(Some(1), Some(2)).unwrap().contains("1 -> 2"));
    }
}
