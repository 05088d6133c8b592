//! The header and the exported functions are equal: names, parameters, results and numbers.

use std::collections::BTreeMap;

const HEADER: &str = include_str!("../include/sparsetune.h");
const SOURCE: &str = include_str!("../src/lib.rs");

/// A function: its result, and its parameters with their types.
type Signatures = BTreeMap<String, (String, Vec<String>)>;

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `char` for `const char *`: types by the names that both languages can be translated to.
fn of_c(text: &str) -> String {
    let text = text.replace('*', " * ");
    let constant = text.split_whitespace().any(|word| word == "const");
    let stars = text.matches('*').count();
    let name = text.split_whitespace().find(|word| !["const", "*", "struct"].contains(word));
    let name = name.unwrap();
    let pointer = match (stars, constant) {
        (0, _) => "",
        (1, true) => "const pointer to ",
        (1, false) => "pointer to ",
        (2, false) => "pointer to pointer to ",
        other => panic!("{text}: {other:?}"),
    };
    format!("{pointer}{name}")
}

fn of_rust(text: &str) -> String {
    let (pointer, name) = match text {
        _ if text.starts_with("*mut *mut ") => ("pointer to pointer to ", &text[10..]),
        _ if text.starts_with("*const ") => ("const pointer to ", &text[7..]),
        _ if text.starts_with("*mut ") => ("pointer to ", &text[5..]),
        _ => ("", text),
    };
    let name = match name {
        "Plan" => "sparsetune_plan",
        "Operand" => "sparsetune_operand",
        "c_char" => "char",
        "c_void" => "void",
        "i32" => "int32_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "usize" => "size_t",
        "f64" => "double",
        "" => "void",
        other => panic!("no C type is known for {other}"),
    };
    format!("{pointer}{name}")
}

/// The header without its comments.
fn code() -> String {
    let mut code = String::new();
    let mut rest = HEADER;
    while let Some((before, after)) = rest.split_once("/*") {
        code.push_str(before);
        rest = after.split_once("*/").expect("a comment ends").1;
    }
    code + rest
}

fn declared() -> Signatures {
    let code = code();
    let mut found = Signatures::new();
    for statement in code.split(';').filter(|statement| statement.contains("(")) {
        let statement = words(statement.rsplit(['}', '{', '#']).next().unwrap());
        let (head, parameters) = statement.split_once('(').unwrap();
        let name = head.rsplit([' ', '*']).next().unwrap();
        let result = of_c(head.strip_suffix(name).unwrap());
        let parameters = parameters.trim_end_matches(')').split(',').map(str::trim);
        let parameters = parameters.filter(|parameter| *parameter != "void").map(|parameter| {
            let own = parameter.rsplit([' ', '*']).next().unwrap();
            format!("{own}: {}", of_c(parameter.strip_suffix(own).unwrap()))
        });
        found.insert(name.to_owned(), (result, parameters.collect()));
    }
    found
}

fn exported() -> Signatures {
    let mut found = Signatures::new();
    for text in SOURCE.split("#[unsafe(no_mangle)]").skip(1) {
        let head = words(text.split_once('{').unwrap().0);
        let (_, head) = head.split_once("extern \"C\" fn ").unwrap();
        let (name, rest) = head.split_once('(').unwrap();
        let (parameters, result) = rest.split_once(')').unwrap();
        let parameters = parameters.split(',').map(str::trim).filter(|one| !one.is_empty());
        let parameters = parameters.map(|parameter| {
            let (own, kind) = parameter.split_once(": ").unwrap();
            format!("{own}: {}", of_rust(kind))
        });
        let result = of_rust(result.trim().trim_start_matches("->").trim());
        found.insert(name.to_owned(), (result, parameters.collect()));
    }
    found
}

#[test]
fn the_header_declares_what_is_exported() {
    let (declared, exported) = (declared(), exported());
    assert!(exported.len() >= 12, "{exported:?}");
    assert_eq!(declared, exported);
}

#[test]
fn the_header_has_the_librarys_numbers() {
    let numbers: BTreeMap<&str, i64> = code_defines();
    let expected = [
        ("SPARSETUNE_ABI", i64::from(sparsetune_c::ABI)),
        ("SPARSETUNE_OK", sparsetune_c::OK.into()),
        ("SPARSETUNE_BAD_ARGUMENT", sparsetune_c::BAD_ARGUMENT.into()),
        ("SPARSETUNE_BAD_BUNDLE", sparsetune_c::BAD_BUNDLE.into()),
        ("SPARSETUNE_OTHER_DEVICE", sparsetune_c::OTHER_DEVICE.into()),
        ("SPARSETUNE_STALE", sparsetune_c::STALE.into()),
        ("SPARSETUNE_NO_VALUES", sparsetune_c::NO_VALUES.into()),
        ("SPARSETUNE_FAILED", sparsetune_c::FAILED.into()),
        ("SPARSETUNE_WRONG_RESULT", sparsetune_c::WRONG_RESULT.into()),
        ("SPARSETUNE_INTERNAL", sparsetune_c::INTERNAL.into()),
        ("SPARSETUNE_F32", sparsetune_c::F32.into()),
        ("SPARSETUNE_F64", sparsetune_c::F64.into()),
        ("SPARSETUNE_ROW_MAJOR", sparsetune_c::ROW_MAJOR.into()),
        ("SPARSETUNE_COLUMN_MAJOR", sparsetune_c::COLUMN_MAJOR.into()),
    ];
    assert_eq!(numbers, expected.into());
}

fn code_defines() -> BTreeMap<&'static str, i64> {
    let define = |line: &'static str| {
        let (name, value) = line.strip_prefix("#define ")?.split_once(' ')?;
        Some((name, value.trim().parse().ok()?))
    };
    HEADER.lines().filter_map(define).collect()
}
