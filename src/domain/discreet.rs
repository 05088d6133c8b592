//! Texts without the paths of this host, for clients: they are no business of theirs, and tell how the host is laid out.

/// The text with every absolute path cut to its last part: `/srv/data/blobs/ab` becomes `ab`.
pub fn discreet(text: &str) -> String {
    let mut told = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = begin(rest) {
        told.push_str(&rest[..at]);
        let path = &rest[at..];
        let end = path.find(ends).unwrap_or(path.len());
        // Punctuation that follows a path is not part of it.
        let path = path[..end].trim_end_matches(['.', ',', ':', ';']);
        told.push_str(path.trim_end_matches('/').rsplit('/').next().unwrap_or_default());
        rest = &rest[at + path.len()..];
    }
    told.push_str(rest);
    told
}

/// Where a path of at least two parts begins: a slash that follows nothing that could be part of a word or an address.
fn begin(text: &str) -> Option<usize> {
    let follows = |at: usize| match text[..at].chars().next_back() {
        None => true,
        Some(before) => before.is_whitespace() || "\"'`([{<=:,;|".contains(before),
    };
    let deep = |at: usize| {
        let path = &text[at + 1..];
        let end = path.find(ends).unwrap_or(path.len());
        path[..end].trim_end_matches('/').contains('/') && !path.starts_with('/')
    };
    text.match_indices('/').map(|(at, _)| at).find(|&at| follows(at) && deep(at))
}

fn ends(c: char) -> bool {
    c.is_whitespace() || "\"'`)]}>|".contains(c)
}

#[cfg(test)]
mod tests {
    use super::discreet;

    #[test]
    fn paths_lose_their_folders_and_nothing_else_changes() {
        for (text, told) in [
            ("/srv/data/blobs/ab/abcd: it is short", "abcd: it is short"),
            (
                "cannot stage: denied at path \"/srv/my/.tmpX\" now",
                "cannot stage: denied at path \".tmpX\" now",
            ),
            ("lib=/usr/lib/libcuda.so.1, and (/opt/cuda/).", "lib=libcuda.so.1, and (cuda)."),
            (
                "3 GB/s at 5 a/b, N/A, http://127.0.0.1/v1/jobs, /healthz",
                "3 GB/s at 5 a/b, N/A, http://127.0.0.1/v1/jobs, /healthz",
            ),
            ("a/b/c ./x/y", "a/b/c ./x/y"),
            ("/a/ü|/b/é", "ü|é"),
            ("//", "//"),
            ("", ""),
        ] {
            assert_eq!(discreet(text), told);
        }
    }
}
