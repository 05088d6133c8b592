//! Digests of the kernel families' text as this binary has it: what tells a stale plan and a quarantine that is over.

use super::HOSTILE_FAMILY;
use crate::domain::{DeviceKind, Digest};
use crate::engine::cpu;
use crate::engine::cuda::source;
use crate::ops::KERNEL_HEADERS;
use std::collections::BTreeMap;

/// Headers of the hostile family.
const HOSTILE_HEADERS: &[&str] = &["hostile/hostile.cuh"];

/// By family, for a device of this kind. A header that is missing from the binary leaves its family out.
pub fn digests(kind: DeviceKind, allow_hostile: bool) -> BTreeMap<String, Digest> {
    let hostile = allow_hostile.then_some((HOSTILE_FAMILY, HOSTILE_HEADERS));
    let families = KERNEL_HEADERS.iter().copied().chain(hostile);
    families
        .filter_map(|(family, headers)| {
            let digest = match kind {
                DeviceKind::Cuda => source::family_digest(headers).ok()?,
                DeviceKind::Cpu => cpu::kernel_digest(),
            };
            Some((family.to_owned(), digest))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_text_and_each_its_own() {
        let all = digests(DeviceKind::Cuda, true);
        assert_eq!(all.len(), KERNEL_HEADERS.len() + 1);
        assert_ne!(all["row_panel"], all["row_split"]);
        assert!(!digests(DeviceKind::Cuda, false).contains_key(HOSTILE_FAMILY));
    }
}
