//! The number of files and sockets that this process may have open.

use std::mem::MaybeUninit;

/// Raises the limit as far as the system permits without privileges, and returns it; `None` if the system does not tell.
pub fn raise() -> Option<u64> {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: there is room for the answer.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, limit.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call succeeded, so it has written all of it.
    let limit = unsafe { limit.assume_init() };
    if limit.rlim_cur >= limit.rlim_max {
        return Some(limit.rlim_cur);
    }
    let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
    // SAFETY: a whole limit is passed, and only read.
    let failed = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } != 0;
    Some(if failed { limit.rlim_cur } else { raised.rlim_cur })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_limit_is_raised_once_and_for_all() {
        let limit = super::raise().unwrap();
        assert!(limit >= 64);
        assert_eq!(super::raise(), Some(limit));
    }
}
