//! Kernel text: the embedded headers of `kernels/`, the headers that a program includes, their digests, and the text in one
//! piece.
//!
//! A header is named by its path below `kernels/` (`#include "spmm/row_split.cuh"`), and so it is included everywhere.
//! Names in angle brackets are the compiler's own headers.

use crate::domain::Digest;
use rust_embed::RustEmbed;
use std::borrow::Cow;
use std::collections::BTreeMap;

#[derive(RustEmbed)]
#[folder = "kernels/"]
struct KernelHeaders;

/// A program's own text and every header it reaches, in the order first reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    pub text: String,
    pub headers: Vec<Header>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Path below `kernels/`, as it is included.
    pub name: String,
    pub text: String,
}

/// A text that cannot be assembled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    #[error("`{includer}` includes `{name}`, which is not among the kernels")]
    UnknownHeader { name: String, includer: String },
    #[error("`{name}` is not UTF-8")]
    Encoding { name: String },
    #[error("the program can only be built for {only}, and the device is {device}")]
    Architecture { only: String, device: String },
}

/// Finds every header that `source` reaches.
pub fn unit(source: &str) -> Result<Unit, SourceError> {
    let mut headers = Vec::new();
    collect(source, "the program", &mut headers)?;
    Ok(Unit { text: source.to_owned(), headers })
}

/// Digest of a family's headers and all that they include: stored plans of the family become stale when it changes.
pub fn family_digest(headers: &[&str]) -> Result<Digest, SourceError> {
    let includes: String = headers.iter().map(|h| format!("#include \"{h}\"\n")).collect();
    closure_digest(&includes)
}

/// Digest of the headers that a program reaches, without the program's own lines; if it reaches none, of its own text.
///
/// For a program that includes one header this is that header's `family_digest`.
pub fn closure_digest(source: &str) -> Result<Digest, SourceError> {
    let unit = unit(source)?;
    if unit.headers.is_empty() {
        return Ok(Digest::of(source.as_bytes()));
    }
    let mut hasher = blake3::Hasher::new();
    hash_headers(&mut hasher, &unit);
    Ok(Digest::from_bytes(*hasher.finalize().as_bytes()))
}

/// Digest that names a program's cubin: its text, its headers, the options (which hold the architecture) and the
/// compiler's version.
pub fn program_digest(unit: &Unit, options: &[String], compiler: (u32, u32)) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hash_text(&mut hasher, &format!("nvrtc {}.{}", compiler.0, compiler.1));
    hash_text(&mut hasher, &options.join("\n"));
    hash_text(&mut hasher, &unit.text);
    hash_headers(&mut hasher, unit);
    Digest::from_bytes(*hasher.finalize().as_bytes())
}

/// The program with every header in place of its first inclusion, so that it compiles by itself.
pub fn inlined(source: &str) -> Result<String, SourceError> {
    let mut text = String::new();
    inline(source, "the program", &mut Vec::new(), &mut text)?;
    Ok(text)
}

/// Bytes of spills that the headers of a program allow: the sum of their `// spills: N bytes allowed` lines.
pub fn allowed_spills(unit: &Unit) -> u32 {
    let allowed = |rest: &str| rest.split_once(" bytes allowed because")?.0.parse::<u32>().ok();
    noted(unit, "// spills:").filter_map(allowed).sum()
}

/// The architecture that a program is built for on a device of `architecture` (`sm_90`): the device's own, or its variant with
/// what no later device has (`sm_90a`) where a header has a line `// builds: sm_90a`. Such a program is for no other device.
pub fn architecture(unit: &Unit, architecture: &str) -> Result<String, SourceError> {
    let mut named = noted(unit, "// builds:");
    let Some(only) = named.next() else { return Ok(architecture.to_owned()) };
    let alone = named.all(|other| other == only);
    match alone && only.strip_suffix('a') == Some(architecture) {
        true => Ok(only.to_owned()),
        false => Err(SourceError::Architecture {
            only: only.to_owned(),
            device: architecture.to_owned(),
        }),
    }
}

/// What lines that begin so say, in a program and its headers.
fn noted<'a>(unit: &'a Unit, mark: &'a str) -> impl Iterator<Item = &'a str> {
    let lines = unit.headers.iter().flat_map(|header| header.text.lines()).chain(unit.text.lines());
    lines.filter_map(move |line| line.trim().strip_prefix(mark).map(str::trim))
}

fn hash_headers(hasher: &mut blake3::Hasher, unit: &Unit) {
    // Sorted by name, so that the order of inclusion does not matter.
    let by_name: BTreeMap<&str, &str> =
        unit.headers.iter().map(|header| (header.name.as_str(), header.text.as_str())).collect();
    for (name, text) in by_name {
        hash_text(hasher, name);
        hash_text(hasher, text);
    }
}

/// Length first, so that no two sequences of texts give the same bytes.
fn hash_text(hasher: &mut blake3::Hasher, text: &str) {
    hasher.update(&(text.len() as u64).to_le_bytes());
    hasher.update(text.as_bytes());
}

fn collect(text: &str, includer: &str, headers: &mut Vec<Header>) -> Result<(), SourceError> {
    for name in text.lines().filter_map(included) {
        if headers.iter().all(|header| header.name != name) {
            let body = header_text(name, includer)?;
            headers.push(Header { name: name.to_owned(), text: body.clone() });
            collect(&body, name, headers)?;
        }
    }
    Ok(())
}

fn inline(
    text: &str,
    includer: &str,
    seen: &mut Vec<String>,
    out: &mut String,
) -> Result<(), SourceError> {
    for line in text.lines() {
        match included(line) {
            Some(name) if seen.iter().any(|known| known == name) => {}
            Some(name) => {
                seen.push(name.to_owned());
                let body = header_text(name, includer)?;
                out.push_str(&format!("// {name}\n"));
                inline(&body, name, seen, out)?;
            }
            // In a single file the pragma has no meaning, and compilers warn about it.
            None if line.trim() == "#pragma once" => {}
            None => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    Ok(())
}

/// The name in an `#include "name"` line.
fn included(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
    let (name, _) = rest.trim_start().strip_prefix('"')?.split_once('"')?;
    Some(name)
}

fn header_text(name: &str, includer: &str) -> Result<String, SourceError> {
    let file = KernelHeaders::get(name).ok_or_else(|| SourceError::UnknownHeader {
        name: name.to_owned(),
        includer: includer.to_owned(),
    })?;
    let bytes: Cow<'static, [u8]> = file.data;
    String::from_utf8(bytes.into_owned())
        .map_err(|_| SourceError::Encoding { name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: &str = "#include <cuda_fp16.h>\n  # include \"engine/verify.cuh\" // once\n\
                           #include \"engine/verify.cuh\"\nint x;\n";

    #[test]
    fn a_program_brings_each_header_once() {
        let unit = unit(PROGRAM).unwrap();
        let names: Vec<&str> = unit.headers.iter().map(|header| header.name.as_str()).collect();
        assert_eq!(names, ["engine/verify.cuh", "device.cuh"]);
        let text = inlined(PROGRAM).unwrap();
        assert_eq!(text.matches("// engine/verify.cuh\n").count(), 1);
        assert!(text.starts_with("#include <cuda_fp16.h>\n") && text.ends_with("int x;\n"));
        assert!(!text.contains("#pragma once") && !text.contains("include \"engine"));
    }

    #[test]
    fn an_unknown_header_is_named() {
        let error = unit("#include \"spmm/../secret.cuh\"").unwrap_err();
        assert_eq!(
            error.to_string(),
            "`the program` includes `spmm/../secret.cuh`, which is not among the kernels"
        );
    }

    #[test]
    fn digests_follow_text_headers_options_and_compiler() {
        let unit = unit(PROGRAM).unwrap();
        let options = ["-a".to_owned(), "-b".to_owned()];
        let digest = program_digest(&unit, &options, (13, 0));
        let mut other = unit.clone();
        other.headers[0].text.push('\n');
        assert_ne!(digest, program_digest(&other, &options, (13, 0)));
        assert_ne!(digest, program_digest(&unit, &options[..1], (13, 0)));
        assert_ne!(digest, program_digest(&unit, &options, (13, 1)));
        assert_eq!(closure_digest(PROGRAM), family_digest(&["engine/verify.cuh"]));
        assert_ne!(closure_digest("a"), closure_digest("b"));
    }

    #[test]
    fn spill_allowance_needs_a_reason() {
        let mut unit = unit("// spills: 16 bytes allowed because the loop is cold\n").unwrap();
        assert_eq!(allowed_spills(&unit), 16);
        unit.text = "// spills: 16 bytes allowed\n".to_owned();
        assert_eq!(allowed_spills(&unit), 0);
    }
}
